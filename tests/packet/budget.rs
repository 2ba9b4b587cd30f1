//! Budgets, rings of flows, and ids that rest.

use lb_common::{
    conntrack::{FlowState, State},
    maps::usage,
};
use lb_tests::{
    frames::packet::{Frame, flags::*, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

fn syn(client_port: u16) -> Frame {
    request(&format!("192.168.203.50:{client_port}"), API, SYN_ONLY).numbers(CLIENT_ISN, 0)
}

fn word(lb: &DataPlane, port: u16) -> FlowState {
    let flow = lb
        .maps
        .flows
        .get(&DataPlane::flow_id(port), 0)
        .expect("an entry");
    FlowState::from_raw(flow.word)
}

fn live(lb: &DataPlane) -> [u32; 2] {
    let (network, _) = lb.desired.networks[1];
    let service = lb.desired.services[0];
    [usage::network(network), usage::service(service.id)]
        .map(|index| lb.maps.usage(index).expect("a count"))
}

/// The resolver's answer to the flow with this SNAT port.
fn answer(port: u16) -> Frame {
    udp(RESOLVER, &snat(port)).between(RESOLVER_MAC, MGMT_NIC)
}

#[privileged_test]
fn live_flows_are_counted_for_network_and_service() {
    let mut lb = DataPlane::new(CONFIG);
    assert_eq!(live(&lb), [0, 0]);
    establish(&mut lb, CLIENT_A, 1024);
    establish(&mut lb, CLIENT_B, 1025);
    assert_eq!(live(&lb), [2, 2]);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A));
    forwarded(&mut lb, Port::Tenant, &syn(20_000));
    assert_eq!(live(&lb), [2, 2], "half-open flows do not count");
    forwarded(&mut lb, Port::Mgmt, &answer(1026));
    assert_eq!(live(&lb), [3, 2], "DNS is another service");
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    assert_eq!(live(&lb), [2, 1]);
    forwarded(&mut lb, Port::Tenant, &reset);
    assert_eq!(live(&lb), [2, 1], "it ends once");
}

#[privileged_test]
fn a_spent_budget_refuses_new_flows_and_leaves_the_others() {
    for (from, to) in [
        ("pool: kas-a }", "pool: kas-a, max_flows: 2 }"),
        (
            "prefixes: [192.168.203.0/24] }",
            "prefixes: [192.168.203.0/24], max_flows: 2 }",
        ),
    ] {
        let mut lb = DataPlane::new(&CONFIG.replace(from, to));
        establish(&mut lb, CLIENT_A, 1024);
        establish(&mut lb, CLIENT_B, 1025);
        assert_refused(&mut lb, Port::Tenant, &syn(50_000).bytes(), "budget_spent");
        let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
        forwarded(&mut lb, Port::Tenant, &data);
        let reset = request(CLIENT_B, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
        forwarded(&mut lb, Port::Tenant, &reset);
        forwarded(&mut lb, Port::Tenant, &syn(50_000));
    }
}

/// A flood of SYNs takes the places of SYNs: what got established keeps its id.
#[privileged_test]
fn half_open_flows_recycle_each_other() {
    let config = CONFIG.replace(
        "prefixes: [192.168.203.0/24] }",
        "prefixes: [192.168.203.0/24], half_open: 64, udp_flows: 64 }",
    );
    let mut lb = DataPlane::new(&without_cookies(&config));
    establish(&mut lb, CLIENT_A, 1024);
    for client in 0..1000 {
        forwarded(&mut lb, Port::Tenant, &syn(20_000 + client));
    }
    assert_eq!(word(&lb, 1024).state(), State::Established);
    assert_eq!(live(&lb), [1, 1], "the established one");
    // Its place was taken by a flow with an id of its own; from then on there are 64, over and over.
    let words: Vec<FlowState> = (1025..1025 + 64).map(|port| word(&lb, port)).collect();
    assert!(words.iter().all(|word| word.state() == State::New));
    let claims = words.iter().map(|word| word.generation());
    assert_eq!(claims.sum::<u32>(), 1000);
    assert_eq!(word(&lb, 1025 + 64).state(), State::Free);
    // UDP has a ring of its own, of queries that were answered or not.
    for client in 0..200u16 {
        let query = udp(&format!("192.168.203.50:{}", 30_000 + client), DNS);
        forwarded(&mut lb, Port::Tenant, &query.between(CLIENT, TENANT_NIC));
    }
    let words: Vec<FlowState> = (1089..1089 + 64).map(|port| word(&lb, port)).collect();
    assert!(words.iter().all(|word| word.state() == State::New));
    let claims = words.iter().map(|word| word.generation());
    assert_eq!(claims.sum::<u32>(), 200);
    assert_eq!(word(&lb, 1089 + 64).state(), State::Free);
}

/// A place outlives its flow: the flow that has the id next is not ended for that.
#[privileged_test]
fn a_stale_place_ends_nobody_elses_flow() {
    let config = CONFIG.replace(
        "prefixes: [192.168.203.0/24] }",
        "prefixes: [192.168.203.0/24], half_open: 64 }",
    );
    let mut lb = DataPlane::new(&without_cookies(&config));
    forwarded(&mut lb, Port::Tenant, &syn(20_000));
    let reset = request("192.168.203.50:20000", API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    let ids = lb.drain_free_ids();
    let id = DataPlane::flow_id(1024);
    lb.give_free_ids(&[id]);
    forwarded(&mut lb, Port::Tenant, &syn(20_001));
    assert_eq!(word(&lb, 1024).generation(), 2);
    lb.give_free_ids(ids.get(..100).expect("as many ids"));
    for client in 2..=64 {
        forwarded(&mut lb, Port::Tenant, &syn(20_000 + client));
    }
    assert_eq!(word(&lb, 1024).state(), State::New, "the stale place");
    forwarded(&mut lb, Port::Tenant, &syn(20_065));
    assert_eq!(word(&lb, 1024).generation(), 3, "its own");
}

/// A backend's SYN-ACK is not enough to keep an id: only the client's answer to it is.
#[privileged_test]
fn a_handshake_without_its_last_step_is_half_open() {
    let config = CONFIG.replace(
        "prefixes: [192.168.203.0/24] }",
        "prefixes: [192.168.203.0/24], half_open: 64 }",
    );
    let mut lb = DataPlane::new(&config);
    forwarded(&mut lb, Port::Tenant, &syn(20_000));
    let syn_ack = reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &syn_ack);
    for client in 1..=63 {
        forwarded(&mut lb, Port::Tenant, &syn(20_000 + client));
    }
    assert_eq!(word(&lb, 1024).state(), State::Replied);
    forwarded(&mut lb, Port::Tenant, &syn(20_064));
    let taken = word(&lb, 1024);
    assert_eq!((taken.state(), taken.generation()), (State::New, 2));
}

/// An answered query that was in use just now outlives a burst of others.
#[privileged_test]
fn a_busy_udp_flow_keeps_its_id() {
    let config = CONFIG.replace(
        "prefixes: [192.168.203.0/24] }",
        "prefixes: [192.168.203.0/24], udp_flows: 64 }",
    );
    let mut lb = DataPlane::new(&config);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A));
    forwarded(&mut lb, Port::Mgmt, &answer(1024));
    for client in 0..64u16 {
        let query = udp(&format!("192.168.203.50:{}", 30_000 + client), DNS);
        let bytes = query.between(CLIENT, TENANT_NIC).bytes();
        lb.run(Port::Tenant, &bytes, 1);
    }
    let of = |port| {
        let word = word(&lb, port);
        (word.state(), word.generation())
    };
    assert_eq!(of(1024), (State::Established, 1));
    assert_eq!(of(1025), (State::New, 2), "in its stead");
    assert_eq!(of(1026), (State::New, 1));
}

/// Also of answered queries a network has no more than its ring has places.
#[privileged_test]
fn busy_udp_flows_stay_within_their_ring() {
    let config = CONFIG.replace(
        "prefixes: [192.168.203.0/24] }",
        "prefixes: [192.168.203.0/24], udp_flows: 64 }",
    );
    let mut lb = DataPlane::new(&config);
    for client in 0..300u16 {
        let query = query(&format!("192.168.203.50:{}", 30_000 + client));
        let sent = forwarded(&mut lb, Port::Tenant, &query);
        let port = u16::from_be_bytes([sent[34], sent[35]]);
        forwarded(&mut lb, Port::Mgmt, &answer(port));
    }
    assert_eq!(live(&lb), [64, 0]);
}

/// A flood of SYNs spends no budget; what comes of a handshake does.
#[privileged_test]
fn half_open_flows_spend_no_budget() {
    let config = CONFIG.replace(
        "prefixes: [192.168.203.0/24] }",
        "prefixes: [192.168.203.0/24], max_flows: 2, half_open: 64 }",
    );
    let mut lb = DataPlane::new(&config);
    for client in 0..64 {
        forwarded(&mut lb, Port::Tenant, &syn(20_000 + client));
    }
    assert_eq!(live(&lb), [0, 0]);
    for port in [1024, 1025, 1026].map(|port| port + 61) {
        let syn_ack = reply(port, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
        forwarded(&mut lb, Port::Mgmt, &syn_ack);
    }
    let ack = |client: u16| {
        let client = format!("192.168.203.50:{}", 20_000 + client);
        request(&client, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
    };
    forwarded(&mut lb, Port::Tenant, &ack(61));
    forwarded(&mut lb, Port::Tenant, &ack(62));
    assert_eq!(live(&lb), [2, 2]);
    assert_refused(&mut lb, Port::Tenant, &ack(63).bytes(), "budget_spent");
    assert_refused(&mut lb, Port::Tenant, &syn(30_000).bytes(), "budget_spent");
    assert_eq!(live(&lb), [2, 2]);
}

/// An id whose last connection the same backend closed first may rest there in TIME_WAIT.
#[privileged_test]
fn an_id_that_rests_at_the_backend_is_taken_last() {
    let mut lb = DataPlane::new(CONFIG);
    let ids = lb.drain_free_ids();
    lb.give_free_ids(&ids[..2]);
    establish(&mut lb, CLIENT_A, 1024);
    // The backend closes first.
    let fin = reply(1024, FIN_ACK).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &fin);
    let fin = request(CLIENT_A, API, FIN_ACK).numbers(CLIENT_ISN + 1, BACKEND_ISN + 2);
    forwarded(&mut lb, Port::Tenant, &fin);
    assert_eq!(word(&lb, 1024).state(), State::Closed);
    // In the queue: 1025, then 1024. Two flows: the second has to take what rests.
    let port = |frame: &[u8]| u16::from_be_bytes([frame[34], frame[35]]);
    let sent = forwarded(&mut lb, Port::Tenant, &syn(50_000));
    assert_eq!(port(&sent), 1025);
    let unrested = || ("nic", "tenant-a".to_owned(), "unknown");
    assert_eq!(lb.counters().get(&unrested()), None);
    let before = lb.counters();
    let ((action, frame), _) = lb.run(Port::Tenant, &syn(50_001).bytes(), 1);
    assert_eq!(
        (action, port(&frame)),
        (lb_tests::product::program::Action::Redirect, 1024)
    );
    assert_eq!(lb.counters()[&unrested()], 1, "counted beside the verdict");
    assert_eq!(before.get(&unrested()), None);
}

/// Where every id that is looked at rests, it is the one that has rested longest; the others come later again.
#[privileged_test]
fn of_ids_that_rest_the_oldest_is_taken() {
    let mut lb = DataPlane::new(CONFIG);
    let ids = lb.drain_free_ids();
    let few = &ids[..12];
    lb.give_free_ids(few);
    let client = |number: u16| format!("192.168.203.50:{}", 30_000 + number);
    for number in 0..12 {
        establish(&mut lb, &client(number), 1024 + number);
    }
    for number in 0..12 {
        let fin = reply(1024 + number, FIN_ACK).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
        forwarded(&mut lb, Port::Mgmt, &fin);
        let fin = request(&client(number), API, FIN_ACK).numbers(CLIENT_ISN + 1, BACKEND_ISN + 2);
        forwarded(&mut lb, Port::Tenant, &fin);
    }
    let ((_, sent), _) = lb.run(Port::Tenant, &syn(50_000).bytes(), 1);
    assert_eq!(sent[34..36], 1024_u16.to_be_bytes());
    let unrested = ("nic", "tenant-a".to_owned(), "unknown");
    assert_eq!(lb.counters()[&unrested], 1);
    // The seven behind it were looked at as well, and are the last ones now.
    let order: Vec<u32> = (8..12).chain(1..8).map(|place| few[place]).collect();
    assert_eq!(lb.drain_free_ids(), order);
    // One that does not rest is taken instead, wherever it is among the eight; then the oldest goes back, too.
    lb.give_free_ids(&[few[8], few[9], ids[20], few[10]]);
    let sent = forwarded(&mut lb, Port::Tenant, &syn(50_001));
    assert_eq!(sent[34..36], (1024 + 20_u16).to_be_bytes());
    assert_eq!(lb.drain_free_ids(), [few[10], few[9], few[8]]);
}

/// A packet takes the mark of expiry off, so that userspace does not close the flow.
#[privileged_test]
fn a_packet_of_either_side_wakes_a_flow_that_is_about_to_expire() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let answer = reply(1024, ACK_ONLY).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    for (port, frame) in [(Port::Tenant, data), (Port::Mgmt, answer)] {
        let id = DataPlane::flow_id(1024);
        let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
        flow.word = FlowState::from_raw(flow.word).expiring().raw();
        lb.maps.flows.set(id, &flow, 0).expect("a write");
        assert!(word(&lb, 1024).is_expiring());
        forwarded(&mut lb, port, &frame);
        assert!(!word(&lb, 1024).is_expiring());
        assert_eq!(word(&lb, 1024).state(), State::Established);
    }
}

/// What userspace ended translates no more: either end that goes on gets a reset.
#[privileged_test]
fn an_ended_flow_is_no_flow_for_either_end() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = FlowState::from_raw(flow.word).end().raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_refused(&mut lb, Port::Tenant, &data.bytes(), "no_flow");
    let answer = reply(1024, ACK_ONLY).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    assert_refused(&mut lb, Port::Mgmt, &answer.bytes(), "reply_mismatch");
    // The client's port opens a new flow, on another id.
    let sent = forwarded(&mut lb, Port::Tenant, &syn(40_000));
    assert_eq!(u16::from_be_bytes([sent[34], sent[35]]), 1025);
    let ack = reply(1025, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &ack);
}
