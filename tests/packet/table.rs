//! The flow's entry: what a flow leaves in it.

use std::net::Ipv4Addr;

use lb_common::addr::Mac;
use lb_tests::{
    packet::flags::*,
    program::{CLIENT, DataPlane, Port},
};

use super::given::*;

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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
        (flow.bytes_request, flow.bytes_reply),
        (54 * 3 + 100, 54 * 2)
    );
    assert!(flow.last_seen != 0);
}

/// The race in `allocate::forget`: a new flow may lose its place in the request index.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a_flow_that_fell_out_of_the_index_is_put_back_by_its_first_reply() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let key = lb
        .maps
        .flow_index
        .keys()
        .next()
        .expect("one flow")
        .expect("its key");
    lb.maps.flow_index.remove(&key).expect("the key was there");

    let syn_ack = reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &syn_ack);
    let ack = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let sent = forwarded(&mut lb, Port::Tenant, &ack);
    assert_eq!(sent[34..36], 1024u16.to_be_bytes(), "the same SNAT port");
}

/// One write of a next hop moves every flow of the backend.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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

/// Maglev: the weights of a pool are the shares of its flows.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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
