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
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port},
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

/// The key of the only flow in the request index.
fn only_key(lb: &DataPlane) -> FlowKey {
    let mut keys = lb.maps.flow_index.keys();
    keys.next().expect("a flow").expect("a key")
}

/// The index word that the race of `forget` loses is put back by the flow's first reply.
#[privileged_test]
fn a_flow_that_was_lost_from_the_index_comes_back_with_its_first_reply() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let key = only_key(&lb);
    lb.maps.flow_index.remove(&key).expect("it is there");
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1),
    );
    let ack = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let sent = forwarded(&mut lb, Port::Tenant, &ack);
    let wanted = tcp(&snat(1024), KAS, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));
}

#[privileged_test]
fn a_first_reply_does_not_take_the_index_from_another_flow() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let (key, other) = (only_key(&lb), DataPlane::flow_id(1030));
    lb.maps.flow_index.insert(&key, &other, 0).expect("a write");
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1),
    );
    assert_eq!(lb.maps.flow_index.get(&key, 0).expect("a word"), other);
}

/// The index is a hint; the entry's own tuple decides.
#[privileged_test]
fn a_stale_index_word_leads_into_no_other_clients_flow() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let stale = FlowKey {
        client: Ipv4Addr::new(192, 168, 203, 51).into(),
        ..only_key(&lb)
    };
    lb.maps
        .flow_index
        .insert(&stale, &DataPlane::flow_id(1024), 0)
        .expect("a write");
    let data = request(CLIENT_B, API, ACK_ONLY).numbers(1001, 5001);
    assert_refused(&mut lb, Port::Tenant, &data.bytes(), "no_flow");
    let sent = forwarded(&mut lb, Port::Tenant, &request(CLIENT_B, API, SYN_ONLY));
    let wanted = tcp(&snat(1025), KAS, SYN_ONLY).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
}

/// A word that was to be removed, and was not: the kernel may refuse that. The next flow of its tuple has it.
#[privileged_test]
fn a_forgotten_tuple_opens_again() {
    for client in [CLIENT_A, CLIENT_B] {
        let mut lb = DataPlane::new(CONFIG);
        let syn = request(client, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
        forwarded(&mut lb, Port::Tenant, &syn);
        let key = only_key(&lb);
        let reset = request(client, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
        forwarded(&mut lb, Port::Tenant, &reset);
        lb.maps.flow_index.insert(&key, &0, 0).expect("a write");
        establish(&mut lb, client, 1025);
        let word = lb.maps.flow_index.get(&key, 0);
        assert_eq!(word.expect("a word"), DataPlane::flow_id(1025));
    }
}

/// One that another CPU is removing at this moment stays that CPU's: the packet is dropped, and comes again.
#[privileged_test]
fn a_tuple_that_is_being_forgotten_does_not_open() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let key = only_key(&lb);
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    lb.maps.flow_index.insert(&key, &1, 0).expect("a write");
    assert_dropped(&mut lb, Port::Tenant, &syn.bytes(), "flow_race");
    assert_eq!(lb.drain_free_ids().len(), IDS, "no id is lost");
    assert_eq!(lb.maps.flow_index.get(&key, 0).expect("a word"), 1);
}

/// Without room in the index a new flow is withdrawn: its id goes back, and its entry is no flow's.
#[privileged_test]
fn without_room_in_the_index_no_id_is_lost() {
    let mut lb = DataPlane::new(CONFIG);
    let mut filler = FlowKey::default();
    for client in 1..=u32::MAX {
        filler.client = lb_common::addr::Be32::new(client);
        if lb.maps.flow_index.insert(&filler, &0, 0).is_err() {
            break;
        }
    }
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "flow_table_full");
    let answer = reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    assert_dropped(&mut lb, Port::Mgmt, &answer.bytes(), "reply_mismatch");
    let free = lb.drain_free_ids();
    assert_eq!(free.len(), IDS);
    assert_eq!(free.last(), Some(&DataPlane::flow_id(1024)));
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
        while queue.pop(0).is_ok() {}
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
