//! TCP options of connections that XDP has opened, in whatever order: see [`bind`](super::bind).

use lb_tests::{
    frames::packet::{check, flags::*},
    product::program::{Action, Port},
};

use super::{
    bind::{CLOCK, NUMBER, TIME, from_backend, receive},
    bind_ends::Bound,
    given::passed_on,
    splice::BROKEN_OPTIONS,
};

const NOPS: [u8; 2] = [1; 2];

/// An option with two numbers: timestamps (RFC 7323), or a block that has come out of order (RFC 2018).
fn pair(kind: u8, numbers: [u32; 2]) -> Vec<u8> {
    let numbers = numbers.map(u32::to_be_bytes).concat();
    [&[kind, 10][..], &numbers].concat()
}

/// The list of options with the clocks of a segment and a block of its peer's bytes, in three orders.
fn lists(times: [u32; 2], block: [u32; 2]) -> [Vec<u8>; 3] {
    let [times, block] = [pair(8, times), pair(5, block)];
    [
        [&block[..], &NOPS, &times, &NOPS].concat(),
        [&NOPS[..], &times, &NOPS, &block].concat(),
        [&times[..], &block, &[0; 4]].concat(),
    ]
}

/// Clocks and numbers of the backend become ours for the client, and ours the backend's; those of the client stay.
#[privileged_test]
fn options_are_translated_wherever_they_stand() {
    let mut bound = Bound::established();
    let (ours, clock) = (bound.answer.number, bound.answer.time.expect("a clock"));
    let time = u32::from_be_bytes(TIME);
    let block = |number: u32| [100, 2000].map(|ahead| number.wrapping_add(ahead));
    let client = block(bound.client);
    let said = lists([CLOCK + 9, time], client);
    for (said, seen) in said
        .into_iter()
        .zip(lists([clock.wrapping_add(9), time], client))
    {
        let segment = from_backend(&bound.port, ACK_ONLY, NUMBER + 13, bound.client);
        let segment = segment.tcp_options(&said).payload(b"odd");
        let sent = passed_on(&mut bound.lb, Port::Mgmt, &segment.bytes());
        assert_eq!(sent[54..54 + seen.len()], seen);
    }
    let said = lists([time + 1, clock.wrapping_add(9)], block(ours));
    for (said, seen) in said
        .into_iter()
        .zip(lists([time + 1, CLOCK + 9], block(NUMBER)))
    {
        let segment = bound.answer.segment(0, ACK_ONLY);
        let segment = segment.numbers(bound.client, ours.wrapping_add(13));
        let segment = segment.tcp_options(&said).payload(b"odd");
        let sent = passed_on(&mut bound.lb, Port::Tenant, &segment.bytes());
        check(&sent).expect("right checksums");
        assert_eq!(sent[54..54 + seen.len()], seen);
    }
}

/// A list that is broken goes nowhere, from either side.
#[privileged_test]
fn broken_options_go_nowhere() {
    let mut bound = Bound::established();
    for options in BROKEN_OPTIONS {
        let reply = from_backend(&bound.port, ACK_ONLY, NUMBER + 13, bound.client);
        let request = bound.answer.segment(0, ACK_ONLY);
        let request = request.numbers(bound.client, bound.answer.number.wrapping_add(13));
        for (port, frame) in [(Port::Mgmt, reply), (Port::Tenant, request)] {
            let frame = frame.tcp_options(&options).bytes();
            let dropped = receive(&mut bound.lb, port, &frame);
            assert_eq!(
                (dropped.action, &dropped.counted[..]),
                (Action::Drop, &["malformed"][..])
            );
        }
    }
    bound.assert_lives("behind broken ones");
}
