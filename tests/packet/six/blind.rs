//! What segments with wrong numbers may not do, of IPv6: the twin of the tests of IPv4.

use lb_common::{
    addr::Mac,
    conntrack::{FlowState, State},
    maps::usage,
};
use lb_tests::product::program::IDS;

use super::given::*;

/// What client and backend expect of each other behind [`establish`].
const OF_CLIENT: u32 = CLIENT_ISN + 1;
const OF_BACKEND: u32 = BACKEND_ISN + 1;

fn word(lb: &DataPlane) -> FlowState {
    let flow = lb.maps.flows.get(&DataPlane::flow_id(1024), 0);
    FlowState::from_raw(flow.expect("an entry").word)
}

fn live(lb: &DataPlane) -> u32 {
    let (network, _) = lb.desired.networks[1];
    let used = lb.maps.usage(usage::network(network));
    used.expect("a count")
}

fn assert_lives(lb: &DataPlane, what: &str) {
    assert_eq!(
        (word(lb).state(), word(lb).is_half_closed(), live(lb)),
        (State::Established, false, 1),
        "{what}"
    );
}

fn client_sends(lb: &mut DataPlane, flags: u8, sequence: u32, ack: u32) {
    let segment = request(CLIENT_A, API, flags).numbers(sequence, ack);
    forwarded(lb, Port::Tenant, &segment);
}

fn backend_sends(lb: &mut DataPlane, flags: u8, sequence: u32, ack: u32) {
    forwarded(lb, Port::Mgmt, &reply(1024, flags).numbers(sequence, ack));
}

#[privileged_test]
fn guessed_numbers_end_no_connection_and_right_ones_do() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for (flags, sequence) in [
        (SYN_ONLY, 0x7777_0000),
        (RST_ONLY, 0x7777_0001),
        (RST_ONLY, OF_CLIENT + 1),
        (RST_ACK, OF_CLIENT + 70_000),
        (FIN_ACK, 0xdead_0000),
        (FIN_ACK, OF_CLIENT + 70_000),
    ] {
        client_sends(&mut lb, flags, sequence, OF_BACKEND);
        assert_lives(&lb, "the client's");
    }
    backend_sends(&mut lb, RST_ACK, OF_BACKEND + 9, OF_CLIENT);
    assert_lives(&lb, "the backend's");
    assert!(word(&lb).is_doubted());
    client_sends(&mut lb, RST_ONLY, OF_CLIENT, 0);
    assert_eq!((word(&lb).state(), live(&lb)), (State::Closed, 0));
    let challenge = reply(1024, ACK_ONLY).numbers(OF_BACKEND, OF_CLIENT + 9);
    assert_refused(&mut lb, Port::Mgmt, &challenge.bytes(), "reply_mismatch");
    assert_eq!(lb.drain_free_ids().len(), IDS);
}

#[privileged_test]
fn a_fin_behind_data_in_flight_counts_when_it_is_acknowledged() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    backend_sends(&mut lb, FIN_ACK, OF_BACKEND + 100, OF_CLIENT);
    assert_lives(&lb, "not yet");
    client_sends(&mut lb, ACK_ONLY, OF_CLIENT, OF_BACKEND + 101);
    assert!(word(&lb).is_half_closed() && !word(&lb).is_doubted());
    client_sends(&mut lb, FIN_ACK, OF_CLIENT, OF_BACKEND + 101);
    assert_eq!((word(&lb).state(), live(&lb)), (State::Closed, 0));
    assert!(word(&lb).backend_closed_first());
}

#[privileged_test]
fn a_client_moves_to_a_station_only_by_a_segment_of_its_connection() {
    let thief = Mac::new([2, 0, 0, 0, 0xbb, 1]);
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let mac = |lb: &DataPlane| {
        let flow = lb.maps.flows.get(&DataPlane::flow_id(1024), 0);
        flow.expect("an entry").client_mac
    };
    for (sequence, station) in [(0x7777_0000, CLIENT), (OF_CLIENT, thief)] {
        let segment = request(CLIENT_A, API, ACK_ONLY).numbers(sequence, OF_BACKEND);
        forwarded(&mut lb, Port::Tenant, &segment.between(thief, TENANT_NIC));
        assert_eq!(mac(&lb), station);
    }
    for group in [Mac::new([0x33, 0x33, 0, 0, 0, 1]), Mac::new([0; 6])] {
        let syn = request(CLIENT_B, API, SYN_ONLY).between(group, TENANT_NIC);
        assert_dropped(&mut lb, Port::Tenant, &syn.bytes(), "group_source");
    }
}
