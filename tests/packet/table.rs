//! The flow's entry: what a flow leaves in it.

use std::net::Ipv4Addr;

use lb_common::{
    addr::{Be16, Mac},
    maglev,
    maps::flow::FlowKey,
    traffic::Amount,
};
use lb_tests::{
    frames::packet::{flags::*, tcp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port},
};

use super::given::*;

#[privileged_test]
fn an_entry_tells_the_whole_flow() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let data = request(CLIENT_A, API, ACK_ONLY)
        .numbers(1001, 5001)
        .payload(&[7; 100])
        .padding(4);
    forwarded(&mut lb, Port::Tenant, &data);
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, ACK_ONLY).numbers(5001, 1101),
    );

    let flow = lb
        .maps
        .flows
        .get(&DataPlane::flow_id(1024), 0)
        .expect("an entry");
    assert_eq!(
        Ipv4Addr::from(flow.client),
        Ipv4Addr::new(192, 168, 203, 50)
    );
    assert_eq!(Ipv4Addr::from(flow.vip), Ipv4Addr::new(192, 168, 203, 110));
    assert_eq!((flow.client_port.get(), flow.vip_port.get()), (40000, 6443));
    assert_eq!(Ipv4Addr::from(flow.backend), Ipv4Addr::new(10, 32, 96, 105));
    assert_eq!(flow.backend_port.get(), 30918);
    assert_eq!(flow.client_mac, CLIENT);
    assert_eq!((flow.ack_request.get(), flow.ack_reply.get()), (5001, 1101));
    // Frames of 54 bytes: SYN, ACK and 100 bytes of data; SYN-ACK and ACK. Padding does not count.
    assert_eq!(
        (flow.request(), flow.reply()),
        (amount(54 * 3 + 100, 3), amount(54 * 2, 2))
    );
    assert!(flow.last_seen != 0);
}

/// One write of a next hop moves every flow of the backend.
#[privileged_test]
fn a_changed_next_hop_moves_established_flows() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let moved = Mac::new([2, 0, 0, 0, 0xe, 1]);
    let (id, _) = lb.desired.backends[0];
    let record = lb.maps.backends.get(&id, 0).expect("the backend");
    let record = lb_common::maps::backend::Backend {
        next_hop: moved,
        ..record
    };
    lb.maps.backends.set(id, &record, 0).expect("a write");
    let sent = forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, ACK_ONLY).numbers(1001, 5001),
    );
    assert_eq!(sent[..6], moved.bytes());
}

/// A backend that never answered ARP does not swallow its share of the flows.
#[privileged_test]
fn a_backend_without_next_hop_is_passed_over() {
    let config = CONFIG.replace(
        r#"backends: ["10.32.96.105:30918"]"#,
        r#"backends: ["10.32.96.105:30918", "10.32.96.107:30918", "10.32.96.108:30918"]"#,
    );
    let mut lb = DataPlane::new(&config);
    let (id, record) = lb.desired.backends[0];
    lb.maps.backends.set(id, &record, 0).expect("a write");
    let mut dropped = 0;
    for port in 20000..20200u16 {
        let syn = request(&format!("192.168.203.50:{port}"), API, SYN_ONLY).bytes();
        let outcome = lb.receive(Port::Tenant, &syn);
        dropped += u32::from(outcome.counted.2 == "refused: no_next_hop");
        assert_ne!(outcome.frame[33], 105, "to the backend without next hop");
    }
    // One in three, four times in a row: 1 of 81.
    assert!(dropped <= 10, "{dropped} of 200");
}

/// Maglev: the weights of a pool are the shares of its flows.
#[privileged_test]
fn flows_are_spread_by_weight() {
    let config = CONFIG.replace(
        r#"backends: ["10.32.96.105:30918"]"#,
        r#"backends: [{ address: "10.32.96.105:30918", weight: 3 }, "10.32.96.107:30918"]"#,
    );
    let mut lb = DataPlane::new(&config);
    let mut heavy = 0;
    for port in 20000..24000u16 {
        let syn = request(&format!("192.168.203.50:{port}"), API, SYN_ONLY);
        let sent = forwarded(&mut lb, Port::Tenant, &syn);
        heavy += u32::from(sent[33] == 105);
    }
    // 3000 expected of 4000; five standard deviations are 137.
    assert!((2863..=3137).contains(&heavy), "{heavy} of 4000");
}

/// A client that knows the hash of Maglev chooses a backend with it, but not the SNAT address, whose ports are all
/// clients'.
#[privileged_test]
fn no_client_chooses_its_snat_address() {
    let config = CONFIG.replace("snat: [10.32.96.50]", "snat: [10.32.96.50, 10.32.96.51]");
    let mut lb = DataPlane::new(&config);
    let (network, _) = lb.desired.networks[1];
    let aimed = (20_000..u16::MAX).filter(|port| {
        let key = FlowKey {
            client: Ipv4Addr::new(192, 168, 203, 50).into(),
            vip: Ipv4Addr::new(192, 168, 203, 110).into(),
            client_port: Be16::new(*port),
            vip_port: Be16::new(6443),
            network,
            protocol: 6,
        };
        maglev::index(maglev::hash(&key).rotate_left(16), 2) == 0
    });
    let mut first = 0;
    for port in aimed.take(400) {
        let client = format!("192.168.203.50:{port}");
        let sent = forwarded(&mut lb, Port::Tenant, &request(&client, API, SYN_ONLY));
        first += u32::from(sent[26..30] == [10, 32, 96, 50]);
    }
    // 200 expected of 400; six standard deviations are 60.
    assert!((140..=260).contains(&first), "{first} of 400");
}

/// Where one SNAT address has no id left, the network's other one takes over, either way round.
#[privileged_test]
fn one_snat_address_stands_in_for_the_other() {
    let config = CONFIG.replace("snat: [10.32.96.50]", "snat: [10.32.96.50, 10.32.96.51]");
    for (empty, left) in [(0, 51), (1, 50)] {
        let mut lb = DataPlane::new(&config);
        let queue = lb.maps.free_ids(empty).expect("a queue");
        let mut queue = queue.expect("the slot is open");
        while queue.pop().is_ok() {}
        for port in 20000..20032u16 {
            let client = format!("192.168.203.50:{port}");
            let sent = forwarded(&mut lb, Port::Tenant, &request(&client, API, SYN_ONLY));
            assert_eq!(sent[26..30], [10, 32, 96, left]);
            let source = u16::from_be_bytes([sent[34], sent[35]]);
            let answer = tcp(KAS, &format!("10.32.96.{left}:{source}"), SYN_ACK)
                .numbers(BACKEND_ISN, 1)
                .between(KAS_MAC, MGMT_NIC);
            let sent = forwarded(&mut lb, Port::Mgmt, &answer);
            assert_eq!(sent[36..38], port.to_be_bytes());
        }
    }
}

const fn amount(bytes: u64, packets: u64) -> Amount {
    Amount { bytes, packets }
}
