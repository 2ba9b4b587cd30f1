//! What strangers and floods send takes nothing from other clients.

use lb_common::conntrack::{FlowState, State};
use lb_tests::{
    frames::packet::{flags::*, udp},
    product::program::{Action, CLIENT, DataPlane, Port, TENANT_NIC},
};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use super::{
    given::*,
    ring::{PLACES, far_dns, two_networks},
};

fn state(lb: &DataPlane, port: u16) -> State {
    let flow = lb.maps.flows.get(&DataPlane::flow_id(port), 0);
    FlowState::from_raw(flow.expect("an entry").word).state()
}

fn with(keys: &str) -> DataPlane {
    let to = format!("prefixes: [192.168.203.0/24], {keys} }}");
    DataPlane::new(&CONFIG.replace("prefixes: [192.168.203.0/24] }", &to))
}

/// Answers are counted per CPU.
fn stay_on_one_cpu() {
    let mut cpus = CpuSet::new();
    cpus.set(0).expect("the first CPU");
    sched_setaffinity(Pid::from_raw(0), &cpus).expect("one CPU");
}

/// What gets no answer takes none from those who get one.
#[privileged_test]
fn resets_spend_no_answers() {
    stay_on_one_cpu();
    let mut lb = DataPlane::new(CONFIG);
    let reset = request(CLIENT_A, API, RST_ONLY).bytes();
    assert_eq!(lb.run(Port::Tenant, &reset, 20_000).0.0, Action::Drop);
    let stray = request(CLIENT_A, API, ACK_ONLY).bytes();
    let answers = (0..500).filter(|_| lb.run(Port::Tenant, &stray, 1).0.0 == Action::Transmit);
    assert_eq!(answers.count(), 500);
}

/// The clients of one network take no answers from those of another.
#[privileged_test]
fn every_network_has_answers_of_its_own() {
    stay_on_one_cpu();
    let mut lb = DataPlane::new(CONFIG);
    let stray = request(CLIENT_A, API, ACK_ONLY).bytes();
    for _ in 0..5000 {
        lb.run(Port::Tenant, &stray, 1);
    }
    let late = reply(1024, ACK_ONLY).numbers(5000, 1000).bytes();
    let answers = (0..500).filter(|_| lb.run(Port::Mgmt, &late, 1).0.0 == Action::Transmit);
    assert_eq!(answers.count(), 500);
}

/// What a reset that is not believed says spoils nothing.
#[privileged_test]
fn a_blind_reset_leaves_the_numbers_alone() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let blind = request(CLIENT_A, API, RST_ACK).numbers(77, 0x9000_0000);
    forwarded(&mut lb, Port::Tenant, &blind);
    assert_eq!(state(&lb, 1024), State::Established);
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, RST_ONLY).numbers(BACKEND_ISN + 1, 0),
    );
    assert_eq!(state(&lb, 1024), State::Closed);
}

#[privileged_test]
fn only_the_acknowledgment_of_the_syn_ack_establishes() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1),
    );
    let blind = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, 0x7777_0000);
    lb.receive(Port::Tenant, &blind.bytes());
    assert_eq!(state(&lb, 1024), State::Replied);
    let right = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &right);
    assert_eq!(state(&lb, 1024), State::Established);
}

#[privileged_test]
fn a_datagram_after_the_end_of_its_flow_opens_another() {
    let mut lb = DataPlane::new(&two_networks(&Family::V4));
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A));
    // Those of another network of backends, which do not take its id.
    for client in 0..PLACES {
        let query = udp(
            &format!("192.168.203.51:{}", 30_000 + client),
            &far_dns(&Family::V4),
        );
        forwarded(&mut lb, Port::Tenant, &query.between(CLIENT, TENANT_NIC));
    }
    assert_eq!(state(&lb, 1024), State::Closed);
    let sent = forwarded(&mut lb, Port::Tenant, &query(CLIENT_A));
    assert_eq!(u16::from_be_bytes([sent[34], sent[35]]), 1025);
}

/// `reject` answers the network's own clients, and no host whose address was forged.
#[privileged_test]
fn a_spoofed_source_is_not_answered_for_a_port_without_service() {
    let mut lb = with("reject: true");
    let unknown = "192.168.203.110:22";
    assert_refused(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, unknown, SYN_ONLY).bytes(),
        "no_service",
    );
    for source in [
        "192.168.204.1:40000",
        "192.168.203.110:6443",
        "10.32.96.105:30918",
    ] {
        let outcome = lb.receive(Port::Tenant, &request(source, unknown, SYN_ONLY).bytes());
        assert_eq!(
            outcome.action,
            Action::Drop,
            "{source} {:?}",
            outcome.counted
        );
    }
}

#[privileged_test]
fn a_group_mac_as_source_gets_no_answer() {
    let mut lb = DataPlane::new(CONFIG);
    let group = lb_common::addr::Mac::new([3, 0, 0, 0, 0, 1]);
    let stray = lb_tests::frames::packet::tcp(CLIENT_A, API, ACK_ONLY)
        .between(group, TENANT_NIC)
        .bytes();
    assert_dropped(&mut lb, Port::Tenant, &stray, "group_source");
}
