//! What segments with wrong numbers may not do: blind ones of others, and those of a client that wants to be
//! out of its budget.

use lb_common::{
    addr::Mac,
    conntrack::{FlowState, State},
    maps::usage,
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// What client and backend expect of each other behind [`establish`].
const OF_CLIENT: u32 = CLIENT_ISN + 1;
const OF_BACKEND: u32 = BACKEND_ISN + 1;

fn word(lb: &DataPlane) -> FlowState {
    let flow = lb.maps.flows.get(&DataPlane::flow_id(1024), 0);
    FlowState::from_raw(flow.expect("an entry").word)
}

/// Flows that count against the client's network.
fn live(lb: &DataPlane) -> u32 {
    let (network, _) = lb.desired.networks[1];
    let used = lb.maps.usage(usage::network(network));
    used.expect("a count")
}

/// Sends a segment of the client, with these numbers, that must be forwarded.
fn client_sends(
    ip: &Family,
    lb: &mut DataPlane,
    flags: u8,
    sequence: u32,
    ack: u32,
    payload: &[u8],
) {
    let segment = request(ip.client_a, ip.api, flags).numbers(sequence, ack);
    forwarded(lb, Port::Tenant, &segment.payload(payload));
}

/// The same of the backend.
fn backend_sends(
    ip: &Family,
    lb: &mut DataPlane,
    flags: u8,
    sequence: u32,
    ack: u32,
    payload: &[u8],
) {
    let segment = ip.reply(1024, flags).numbers(sequence, ack);
    forwarded(lb, Port::Mgmt, &segment.payload(payload));
}

fn assert_lives(lb: &DataPlane, what: &str) {
    assert_eq!(
        (word(lb).state(), word(lb).is_half_closed(), live(lb)),
        (State::Established, false, 1),
        "{what}"
    );
}

/// It is over, out of the budget, and its id is free once.
fn assert_over(lb: &mut DataPlane, what: &str) {
    assert_eq!((word(lb).state(), live(lb)), (State::Closed, 0), "{what}");
    assert_eq!(lb.drain_free_ids().len(), IDS, "{what}");
}

#[privileged_test(families)]
fn a_spoofed_syn_does_not_say_what_a_reset_must_carry(ip: &Family) {
    let mut lb = ip.established();
    for number in [0x7777_0000, OF_CLIENT - 1, OF_CLIENT - 100, 0xffff_ff00] {
        client_sends(ip, &mut lb, SYN_ONLY, number, 0, &[]);
        assert_lives(&lb, "behind the SYN");
        let resets = [1, 2].map(|ahead| number.wrapping_add(ahead));
        for reset in resets.into_iter().filter(|reset| *reset != OF_CLIENT) {
            client_sends(ip, &mut lb, RST_ONLY, reset, 0, &[]);
            assert_lives(&lb, "behind the reset");
        }
        // The backend's answer to all that.
        backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT, &[]);
        assert_lives(&lb, "behind the answer");
    }
    client_sends(ip, &mut lb, RST_ONLY, OF_CLIENT, 0, &[]);
    assert_over(&mut lb, "a right number");
}

/// A backend challenges such a reset (RFC 5961 section 3.2), so the connection is there: it goes on to count.
#[privileged_test(families)]
fn a_reset_that_is_not_exact_ends_nothing_and_stays_in_the_budget(ip: &Family) {
    for ahead in [1, 1000, (1 << 30) - 1, 1 << 31] {
        for flags in [RST_ONLY, RST_ACK] {
            let mut lb = ip.established();
            client_sends(ip, &mut lb, flags, OF_CLIENT + ahead, OF_BACKEND, &[]);
            assert_lives(&lb, "the client's");
            let aside = OF_CLIENT - 9;
            backend_sends(ip, &mut lb, flags, OF_BACKEND + ahead, aside, &[]);
            assert_lives(&lb, "the backend's");
            client_sends(ip, &mut lb, ACK_ONLY, OF_CLIENT, OF_BACKEND, b"more");
            backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT + 4, b"yes");
            assert_lives(&lb, "data");
            client_sends(ip, &mut lb, RST_ONLY, OF_CLIENT + 4, 0, &[]);
            assert_over(&mut lb, "an exact one");
        }
    }
}

/// A reset with the last number that was acknowledged, behind data that is in flight: the backend challenges it. What
/// it says then is answered, so that it has no connection which does not count.
#[privileged_test(families)]
fn a_backend_that_did_not_take_an_exact_reset_is_reset(ip: &Family) {
    let mut lb = ip.established();
    client_sends(ip, &mut lb, ACK_ONLY, OF_CLIENT, OF_BACKEND, &[7; 100]);
    client_sends(ip, &mut lb, RST_ONLY, OF_CLIENT, 0, &[]);
    assert_eq!((word(&lb).state(), live(&lb)), (State::Closed, 0));
    // What was on its way reaches the client.
    backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT, b"data");
    let challenge = ip
        .reply(1024, ACK_ONLY)
        .numbers(OF_BACKEND + 4, OF_CLIENT + 100);
    let bytes = challenge.padding(6).bytes();
    let sent = assert_refused(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    let reset = tcp(&ip.snat(1024), ip.kas, RST_ONLY).numbers(OF_CLIENT + 100, 0);
    assert_eq!(
        sent[34..48],
        reset.between(MGMT_NIC, ip.kas_mac).bytes()[34..48]
    );
    assert_over(&mut lb, "once");
}

#[privileged_test(families)]
fn guessed_numbers_end_no_connection_and_right_ones_do(ip: &Family) {
    let mut lb = ip.established();
    for (flags, sequence) in [
        (SYN_ONLY, 0x7777_0000),
        (RST_ONLY, 0x7777_0001),
        (RST_ONLY, OF_CLIENT + 1),
        (RST_ACK, OF_CLIENT + 70_000),
        (FIN_ACK, 0xdead_0000),
        (FIN_ACK, OF_CLIENT + 70_000),
    ] {
        client_sends(ip, &mut lb, flags, sequence, OF_BACKEND, &[]);
        assert_lives(&lb, "the client's");
    }
    backend_sends(ip, &mut lb, RST_ACK, OF_BACKEND + 9, OF_CLIENT, &[]);
    assert_lives(&lb, "the backend's");
    assert!(word(&lb).is_doubted());
    client_sends(ip, &mut lb, RST_ONLY, OF_CLIENT, 0, &[]);
    assert_eq!((word(&lb).state(), live(&lb)), (State::Closed, 0));
    let challenge = ip.reply(1024, ACK_ONLY).numbers(OF_BACKEND, OF_CLIENT + 9);
    assert_refused(&mut lb, Port::Mgmt, &challenge.bytes(), "reply_mismatch");
    assert_eq!(lb.drain_free_ids().len(), IDS);
}

/// The number is a guess without the connection in sight; and an idle watch would be taken for half closed.
#[privileged_test(families)]
fn a_blind_fin_closes_nothing(ip: &Family) {
    for guess in [
        0xdead_0000,
        OF_CLIENT - 1,
        OF_CLIENT + 1,
        OF_CLIENT + 70_000,
    ] {
        let mut lb = ip.established();
        client_sends(ip, &mut lb, FIN_ACK, guess, OF_BACKEND, &[]);
        assert_lives(&lb, "the guess");
        backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT, &[]);
        client_sends(ip, &mut lb, ACK_ONLY, OF_CLIENT, OF_BACKEND, b"go on");
        backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT + 5, &[]);
        assert_lives(&lb, "it goes on");
        client_sends(ip, &mut lb, FIN_ACK, OF_CLIENT + 5, OF_BACKEND, &[]);
        assert!(word(&lb).is_half_closed(), "the real one");
        backend_sends(ip, &mut lb, FIN_ACK, OF_BACKEND, OF_CLIENT + 6, &[]);
        assert_over(&mut lb, "both");
    }
}

/// Data and a FIN on their way: the FIN counts when the other end has it, also where data before it was lost.
#[privileged_test(families)]
fn a_fin_behind_data_in_flight_counts_when_it_is_acknowledged(ip: &Family) {
    let data = [7; 100];
    let mut lb = ip.established();
    client_sends(ip, &mut lb, ACK_ONLY, OF_CLIENT, OF_BACKEND, &data);
    client_sends(ip, &mut lb, FIN_ACK, OF_CLIENT + 100, OF_BACKEND, b"end");
    assert_lives(&lb, "not yet");
    client_sends(ip, &mut lb, ACK_ONLY, OF_CLIENT, OF_BACKEND, &data);
    backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT + 100, &[]);
    assert_lives(&lb, "data only");
    backend_sends(
        ip,
        &mut lb,
        ACK_ONLY,
        OF_BACKEND,
        OF_CLIENT + 104,
        b"answer",
    );
    assert!(word(&lb).is_half_closed() && live(&lb) == 1);
    client_sends(ip, &mut lb, ACK_ONLY, OF_CLIENT + 104, OF_BACKEND + 6, &[]);
    backend_sends(ip, &mut lb, FIN_ACK, OF_BACKEND + 6, OF_CLIENT + 104, &[]);
    assert!(!word(&lb).backend_closed_first());
    assert_over(&mut lb, "both");

    // The backend's, and the client's own acknowledges it.
    let mut lb = ip.established();
    backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT, &data);
    backend_sends(ip, &mut lb, FIN_ACK, OF_BACKEND + 100, OF_CLIENT, &[]);
    assert_lives(&lb, "not yet");
    client_sends(ip, &mut lb, FIN_ACK, OF_CLIENT, OF_BACKEND + 101, &[]);
    assert!(word(&lb).backend_closed_first());
    assert_over(&mut lb, "both");

    // Both at once: the later acknowledgment closes.
    let mut lb = ip.established();
    client_sends(ip, &mut lb, ACK_ONLY, OF_CLIENT, OF_BACKEND, &data);
    backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT, &data);
    client_sends(ip, &mut lb, FIN_ACK, OF_CLIENT + 100, OF_BACKEND, &[]);
    backend_sends(ip, &mut lb, FIN_ACK, OF_BACKEND + 100, OF_CLIENT, &[]);
    assert_lives(&lb, "not yet");
    client_sends(
        ip,
        &mut lb,
        ACK_ONLY,
        OF_CLIENT + 101,
        OF_BACKEND + 101,
        &[],
    );
    assert!(word(&lb).is_half_closed());
    backend_sends(
        ip,
        &mut lb,
        ACK_ONLY,
        OF_BACKEND + 101,
        OF_CLIENT + 101,
        &[],
    );
    assert_over(&mut lb, "both");
}

/// A client that opens its port again where one end of the last connection was not seen to close: the backend's
/// answer says that there is another connection, or none.
#[privileged_test(families)]
fn a_port_opens_again_when_the_backend_says_so(ip: &Family) {
    let half = || {
        let mut lb = ip.established();
        client_sends(ip, &mut lb, FIN_ACK, OF_CLIENT, OF_BACKEND, &[]);
        assert!(word(&lb).is_half_closed());
        client_sends(ip, &mut lb, SYN_ONLY, 9000, 0, &[]);
        assert!(word(&lb).is_half_closed(), "not by the SYN alone");
        lb
    };
    let mut lb = half();
    // A challenge, and a SYN-ACK of another connection.
    backend_sends(ip, &mut lb, ACK_ONLY, OF_BACKEND, OF_CLIENT + 1, &[]);
    backend_sends(ip, &mut lb, SYN_ACK, 70_000, 8000, &[]);
    assert!(word(&lb).is_half_closed());
    backend_sends(ip, &mut lb, SYN_ACK, 70_000, 9001, &[]);
    assert_lives(&lb, "it starts over");
    client_sends(ip, &mut lb, ACK_ONLY, 9001, 70_001, &[]);
    client_sends(ip, &mut lb, RST_ONLY, 9001, 0, &[]);
    assert_over(&mut lb, "by the new numbers");

    let mut lb = half();
    backend_sends(ip, &mut lb, RST_ACK, 0, 9002, &[]);
    assert_eq!(word(&lb).state(), State::Established, "another SYN's");
    backend_sends(ip, &mut lb, RST_ACK, 0, 9001, &[]);
    assert_over(&mut lb, "refused");
}

/// A station that is not the client cannot have its answers: not without a number of the connection.
#[privileged_test(families)]
fn a_client_moves_to_another_mac_only_by_a_segment_of_its_connection(ip: &Family) {
    let thief = Mac::new([2, 0, 0, 0, 0xbb, 1]);
    let mut lb = ip.established();
    let goes_to = |lb: &mut DataPlane| -> [u8; 6] {
        let answer = ip.reply(1024, ACK_ONLY).numbers(OF_BACKEND, OF_CLIENT);
        let sent = forwarded(lb, Port::Mgmt, &answer);
        sent[..6].try_into().expect("a MAC")
    };
    let steals: [Frame; 5] = [
        request(ip.client_a, ip.api, SYN_ONLY).numbers(0x7777_0000, 0),
        request(ip.client_a, ip.api, ACK_ONLY)
            .numbers(0x7777_0000, 1)
            .payload(b"x"),
        request(ip.client_a, ip.api, RST_ONLY).numbers(OF_CLIENT + 1, 0),
        request(ip.client_a, ip.api, FIN_ACK).numbers(0x7777_0000, 0),
        request(ip.client_a, ip.api, SYN_ACK).numbers(OF_CLIENT, OF_BACKEND),
    ];
    for steal in steals {
        forwarded(&mut lb, Port::Tenant, &steal.between(thief, TENANT_NIC));
        assert_eq!(goes_to(&mut lb), CLIENT.bytes());
    }
    let moved = request(ip.client_a, ip.api, ACK_ONLY).numbers(OF_CLIENT, OF_BACKEND);
    forwarded(&mut lb, Port::Tenant, &moved.between(thief, TENANT_NIC));
    assert_eq!(goes_to(&mut lb), thief.bytes());
    // One byte that has been acknowledged, as probes of Linux have, and data in flight.
    for sequence in [OF_CLIENT - 1, OF_CLIENT + 100_000] {
        for station in [CLIENT, thief] {
            let moved = request(ip.client_a, ip.api, ACK_ONLY).numbers(sequence, OF_BACKEND);
            forwarded(&mut lb, Port::Tenant, &moved.between(station, TENANT_NIC));
            assert_eq!(goes_to(&mut lb), station.bytes(), "{sequence}");
        }
    }
}

/// The client's first SYN may come again, by another way and with another number.
#[privileged_test(families)]
fn a_client_that_is_not_answered_yet_may_move(ip: &Family) {
    let router = Mac::new([2, 0, 0, 0, 0xbb, 1]);
    let mut lb = DataPlane::new(ip.config);
    for (station, number) in [
        (CLIENT, CLIENT_ISN),
        (router, CLIENT_ISN),
        (CLIENT, 7000),
        (router, 9000),
    ] {
        let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(number, 0);
        forwarded(&mut lb, Port::Tenant, &syn.between(station, TENANT_NIC));
        let flow = lb.maps.flows.get(&DataPlane::flow_id(1024), 0);
        assert_eq!(flow.expect("an entry").client_mac, station, "{number}");
    }
    let syn_ack = ip.reply(1024, SYN_ACK).numbers(BACKEND_ISN, 9001);
    let sent = forwarded(&mut lb, Port::Mgmt, &syn_ack);
    let wanted = tcp(ip.api, ip.client_a, SYN_ACK)
        .numbers(BACKEND_ISN, 9001)
        .ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, router));
}

/// A reply to such a station would be broadcast on the tenant's network.
#[privileged_test(families)]
fn no_station_has_a_group_address(ip: &Family) {
    let zeros = Mac::new([0; 6]);
    let group = Mac::new([0x33, 0x33, 0, 0, 0, 1]);
    let mut lb = ip.established();
    for source in [Mac::BROADCAST, group, zeros] {
        for frame in [
            request(ip.client_b, ip.api, SYN_ONLY),
            request(ip.client_a, ip.api, ACK_ONLY).numbers(OF_CLIENT, OF_BACKEND),
            udp(ip.client_a, ip.dns),
            udp(ip.client_a, &ip.end(ip.vip, 9)),
        ] {
            let bytes = frame.between(source, TENANT_NIC).bytes();
            assert_dropped(&mut lb, Port::Tenant, &bytes, "group_source");
        }
        // What is for another station is none of ours.
        let other = Mac::new([2, 9, 9, 9, 9, 9]);
        let bytes = request(ip.client_a, ip.api, SYN_ONLY)
            .between(source, other)
            .bytes();
        assert_passed(&mut lb, Port::Tenant, &bytes);
    }
    assert_eq!(lb.drain_free_ids().len(), IDS - 1, "no state was made");
}

/// Where the host has its own network as well, such a frame passes unless a flow would begin with it.
#[privileged_test(families)]
fn a_network_that_is_the_hosts_too_learns_no_group_address(ip: &Family) {
    let vip = ip.pick("10.32.96.60:6443", "[fd00:32::60]:6443");
    let [client, host] = ip.pick(
        ["10.32.97.9:40000", "10.32.96.61:22"],
        ["[fd00:32::97:9]:40000", "[fd00:32::61]:22"],
    );
    let config = ip.config.replace(
        "services:",
        &format!("services:\n  own: {{ network: mgmt, listen: [\"{vip}/tcp\"], pool: kas-a }}"),
    );
    let mut lb = DataPlane::new(&config);
    let syn = tcp(client, vip, SYN_ONLY);
    for source in [Mac::BROADCAST, Mac::new([0; 6])] {
        let frame = |frame: Frame| frame.between(source, MGMT_NIC).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &frame(syn.clone()), "group_source");
        let host = tcp(client, host, SYN_ONLY);
        assert_passed(&mut lb, Port::Mgmt, &frame(host));
    }
    assert_eq!(lb.drain_free_ids().len(), IDS, "no state was made");
}
