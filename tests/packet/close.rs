//! The end of a flow: its id is free at once, still translates, and is taken again oldest first.

use lb_common::conntrack::{FlowState, LATE_SYN_TIMEOUT, State};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp},
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

fn state(lb: &DataPlane, port: u16) -> State {
    let flow = lb
        .maps
        .flows
        .get(&DataPlane::flow_id(port), 0)
        .expect("an entry");
    FlowState::from_raw(flow.word).state()
}

fn finish(lb: &mut DataPlane, client: &str, port: u16) {
    forwarded(
        lb,
        Port::Tenant,
        &request(client, API, FIN_ACK).numbers(1001, 5001),
    );
    forwarded(lb, Port::Mgmt, &reply(port, FIN_ACK).numbers(5001, 1002));
}

#[privileged_test]
fn both_fins_free_the_id_and_the_last_ack_still_arrives() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    assert_eq!(state(&lb, 1024), State::Established);
    finish(&mut lb, CLIENT_A, 1024);
    assert_eq!(state(&lb, 1024), State::Closed);

    let last = request(CLIENT_A, API, ACK_ONLY).numbers(1002, 5002);
    let sent = forwarded(&mut lb, Port::Tenant, &last);
    let wanted = tcp(&snat(1024), KAS, ACK_ONLY).numbers(1002, 5002).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));

    let free = lb.drain_free_ids();
    assert_eq!(free.len(), IDS);
    assert_eq!(
        free.last(),
        Some(&DataPlane::flow_id(1024)),
        "freed last, taken last"
    );
}

#[privileged_test]
fn a_fitting_reset_frees_the_id_from_either_side() {
    let frames: [(Port, Frame); 2] = [
        (
            Port::Tenant,
            request(CLIENT_A, API, RST_ONLY).numbers(1001, 0),
        ),
        (Port::Mgmt, reply(1024, RST_ONLY).numbers(5001, 0)),
    ];
    for (port, reset) in frames {
        let mut lb = DataPlane::new(CONFIG);
        establish(&mut lb, CLIENT_A, 1024);
        forwarded(&mut lb, port, &reset.clone().numbers(77, 0));
        assert_eq!(
            state(&lb, 1024),
            State::Established,
            "a blind reset from {port:?}"
        );
        forwarded(&mut lb, port, &reset);
        assert_eq!(state(&lb, 1024), State::Closed, "{port:?}");
        assert_eq!(lb.drain_free_ids().len(), IDS);
    }
}

#[privileged_test]
fn a_refused_connection_frees_its_id() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let sent = forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, RST_ACK).numbers(0, CLIENT_ISN + 1),
    );
    let wanted = tcp(API, CLIENT_A, RST_ACK)
        .numbers(0, CLIENT_ISN + 1)
        .ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    assert_eq!(state(&lb, 1024), State::Closed);
}

#[privileged_test]
fn the_same_client_port_opens_again_with_a_new_id() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    finish(&mut lb, CLIENT_A, 1024);
    let again = request(CLIENT_A, API, SYN_ONLY).numbers(9000, 0);
    let sent = forwarded(&mut lb, Port::Tenant, &again);
    let wanted = tcp(&snat(1025), KAS, SYN_ONLY).numbers(9000, 0).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
}

/// A SYN that the network has kept until its connection was over opens no other one: a reset of that would
/// reach a client that still waits for the last one's end. Its number says so, for half a second.
#[privileged_test]
fn a_late_syn_opens_nothing_until_a_client_would_have_sent_another() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    finish(&mut lb, CLIENT_A, 1024);
    let late = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_dropped(&mut lb, Port::Tenant, &late.bytes(), "late_syn");
    let fin = forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, FIN_ACK).numbers(5001, 1002),
    );
    let wanted = tcp(API, CLIENT_A, FIN_ACK).numbers(5001, 1002).ttl(63);
    assert_frame(&fin, &wanted.between(TENANT_NIC, CLIENT));
    let last = request(CLIENT_A, API, ACK_ONLY).numbers(1002, 5002);
    let sent = forwarded(&mut lb, Port::Tenant, &last);
    let wanted = tcp(&snat(1024), KAS, ACK_ONLY).numbers(1002, 5002).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));

    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.last_seen = flow.last_seen.wrapping_sub(LATE_SYN_TIMEOUT);
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    let sent = forwarded(&mut lb, Port::Tenant, &late);
    let wanted = tcp(&snat(1025), KAS, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));
}

/// A first SYN without answer, then another from the same port with another initial number.
#[privileged_test]
fn a_second_try_with_another_number_is_answered() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(1000, 0),
    );
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(7000, 0),
    );
    let first = reply(1024, SYN_ACK).numbers(5000, 1001).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &first, "reply_unexpected");
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, SYN_ACK).numbers(5000, 7001),
    );
}

/// The id of a closed flow goes to another client: the first one's tuple is forgotten, and its late
/// packets reach neither end.
#[privileged_test]
fn a_recycled_id_belongs_to_its_new_flow_alone() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    finish(&mut lb, CLIENT_A, 1024);
    let others = lb.drain_free_ids();
    assert_eq!(others.len(), IDS);
    lb.give_free_ids(&[DataPlane::flow_id(1024)]);

    let sent = forwarded(&mut lb, Port::Tenant, &request(CLIENT_B, API, SYN_ONLY));
    let wanted = tcp(&snat(1024), KAS, SYN_ONLY)
        .ttl(63)
        .between(MGMT_NIC, KAS_MAC);
    assert_frame(&sent, &wanted);
    let late = request(CLIENT_A, API, ACK_ONLY).numbers(1002, 5002).bytes();
    assert_refused(&mut lb, Port::Tenant, &late, "no_flow");
    let flow = lb
        .maps
        .flows
        .get(&DataPlane::flow_id(1024), 0)
        .expect("an entry");
    assert_eq!(FlowState::from_raw(flow.word).generation(), 2);
    assert_eq!(
        lb.maps.flow_lines.ids().count(),
        1,
        "the earlier tuple is gone"
    );
}

/// Hints may be stale: an id that turns up in the queue while its flow lives is skipped.
#[privileged_test]
fn a_queued_id_of_a_live_flow_is_not_given_out() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    lb.drain_free_ids();
    lb.give_free_ids(&[DataPlane::flow_id(1024), DataPlane::flow_id(1030)]);
    let sent = forwarded(&mut lb, Port::Tenant, &request(CLIENT_B, API, SYN_ONLY));
    let wanted = tcp(&snat(1030), KAS, SYN_ONLY)
        .ttl(63)
        .between(MGMT_NIC, KAS_MAC);
    assert_frame(&sent, &wanted);
    assert_eq!(state(&lb, 1024), State::Established);
}

/// A reset that is repeated, or that crosses the last FIN, frees no id a second time.
#[privileged_test]
fn a_reset_after_the_end_frees_nothing_again() {
    let mut lb = DataPlane::new(CONFIG);
    // A full queue refuses an id: one flow must live for a second copy to find room.
    establish(&mut lb, CLIENT_B, 1024);
    establish(&mut lb, CLIENT_A, 1025);
    finish(&mut lb, CLIENT_A, 1025);
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(1002, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    forwarded(&mut lb, Port::Mgmt, &reply(1025, RST_ONLY).numbers(5002, 0));
    assert_eq!(state(&lb, 1025), State::Closed);
    assert_eq!(lb.drain_free_ids().len(), IDS - 1);
}

/// Until the client acknowledges it, the backend's own SYN-ACK says what its reset must carry.
#[privileged_test]
fn a_reset_before_the_clients_ack_is_judged_by_the_syn_ack() {
    let isn = 0x8000_0000;
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, SYN_ACK).numbers(isn, CLIENT_ISN + 1),
    );
    forwarded(&mut lb, Port::Mgmt, &reply(1024, RST_ONLY).numbers(77, 0));
    assert_eq!(state(&lb, 1024), State::Replied, "a blind reset");
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, RST_ONLY).numbers(isn + 1, 0),
    );
    assert_eq!(state(&lb, 1024), State::Closed);
}

/// The id of a closed flow is taken while its client has opened the same port again: the index
/// belongs to the client's new flow, and stays.
#[privileged_test]
fn a_recycled_id_leaves_the_same_clients_next_flow_alone() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    finish(&mut lb, CLIENT_A, 1024);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(9000, 0),
    );
    lb.drain_free_ids();
    lb.give_free_ids(&[DataPlane::flow_id(1024)]);
    forwarded(&mut lb, Port::Tenant, &request(CLIENT_B, API, SYN_ONLY));

    let next = request(CLIENT_A, API, ACK_ONLY).numbers(9001, 1);
    let sent = forwarded(&mut lb, Port::Tenant, &next);
    let wanted = tcp(&snat(1025), KAS, ACK_ONLY).numbers(9001, 1).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
}
