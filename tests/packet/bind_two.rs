//! Hellos of two segments: see [`bind`](super::bind).

use lb_common::wire::header::{ACK, PSH};
use lb_tests::{
    frames::{
        packet::{Frame, check, flags::*},
        segment::Segment,
    },
    product::program::{Action, DataPlane, Port},
    traffic::hello::{TLS12, hello, names},
};

use super::{
    bind::{BACKEND, CLOCK, CONFIG, NUMBER, TIME, from_backend, receive, syn_ack},
    cookies::{Answer, ISN, OPTIONS, start_with},
    given::passed_on,
};

/// Bytes of the first segment.
const FIRST: usize = 1448;

/// A hello of 1,800 bytes whose name is in the second segment.
pub(super) fn long_hello() -> Vec<u8> {
    hello_of(1800)
}

/// One of so many bytes.
fn hello_of(bytes: usize) -> Vec<u8> {
    let padded = |padding| {
        let name = names(&[(0, b"a.lab")]);
        hello(TLS12, &[(21, vec![0; padding]), (0, name)])
    };
    padded(bytes - padded(0).len())
}

pub(super) fn segments(answer: &Answer, whole: &[u8]) -> [Frame; 2] {
    let (one, other) = whole.split_at(FIRST);
    [(0, one), (1448, other)]
        .map(|(offset, data)| answer.segment(offset, ACK_ONLY).payload(data).window(501))
}

/// The SYN that a hello of a client, or a refusal, becomes: the backend, and the SNAT port.
pub(super) fn syn(frame: &[u8]) -> (String, String) {
    check(frame).expect("right checksums");
    let syn = Segment::read(frame).expect("a SYN");
    assert_eq!((syn.flags, syn.sequence, syn.payload), (SYN_ONLY, ISN, 0));
    (syn.to.to_string(), syn.from.to_string())
}

/// Both segments have come; the SYN of the second one.
pub(super) fn open(lb: &mut DataPlane, answer: &Answer, whole: &[u8]) -> (String, String) {
    let [first, second] = segments(answer, whole);
    let held = receive(lb, Port::Tenant, &first.bytes());
    assert_eq!(
        (held.action, &held.counted[..]),
        (Action::Drop, &["consumed"][..])
    );
    syn(&passed_on(lb, Port::Tenant, &second.bytes()))
}

/// A segment of the hello at its backend.
fn assert_sent(frame: &[u8], port: &str, offset: u32, data: &[u8], clock: u32) {
    check(frame).expect("right checksums");
    let sent = Segment::read(frame).expect("a segment");
    let (from, to) = (sent.from.to_string(), sent.to.to_string());
    assert_eq!((from.as_str(), to.as_str()), (port, BACKEND));
    let sequence = ISN.wrapping_add(1).wrapping_add(offset);
    assert_eq!(
        (sent.flags, sent.sequence, sent.acknowledgment),
        (PSH | ACK, sequence, NUMBER + 1)
    );
    let times = [&[1, 1, 8, 10][..], &TIME, &clock.to_be_bytes()].concat();
    assert_eq!(frame[54..66], times);
    assert_eq!(frame[66..], *data);
}

/// Byte by byte: the ACK of the first segment becomes the second one; the next ACK is the client's.
#[privileged_test]
fn the_second_segment_follows_the_acknowledgment_of_the_first() {
    let never = CONFIG.replace(
        "interface: eth1,",
        "interface: eth1, second_segment: on_ack,",
    );
    let mut lb = start_with(&never);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let whole = hello_of(2 * FIRST);
    let [first, second] = segments(&answer, &whole);
    let (backend, port) = open(&mut lb, &answer, &whole);
    assert_eq!(backend, BACKEND);
    // The client repeats the last segment, and then the first one alone.
    let again = receive(&mut lb, Port::Tenant, &second.bytes());
    assert_eq!(again.counted, ["hello_unordered"]);
    let again = passed_on(&mut lb, Port::Tenant, &first.bytes());
    assert_eq!(syn(&again), (backend, port.clone()));

    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(
        (met.action, &met.counted[..]),
        (Action::Transmit, &["transmitted", "bound"][..])
    );
    assert_sent(&met.frame, &port, 0, &whole[..FIRST], CLOCK);

    let ack = |offset: u32, clock: u32| {
        let times = [&[1, 1, 8, 10][..], &clock.to_be_bytes(), &TIME].concat();
        let number = ISN.wrapping_add(1).wrapping_add(offset);
        from_backend(&port, ACK_ONLY, NUMBER + 1, number).tcp_options(&times)
    };
    let rest = receive(&mut lb, Port::Mgmt, &ack(1448, CLOCK + 3).bytes());
    assert_eq!(
        (rest.action, &rest.counted[..]),
        (Action::Transmit, &["transmitted"][..])
    );
    assert_sent(&rest.frame, &port, 1448, &whole[FIRST..], CLOCK + 3);

    let length = u32::try_from(whole.len()).unwrap();
    for offset in [1448, length] {
        let ack = passed_on(&mut lb, Port::Mgmt, &ack(offset, CLOCK + 4).bytes());
        let ack = Segment::read(&ack).expect("a segment");
        let number = ISN.wrapping_add(1).wrapping_add(offset);
        assert_eq!(
            (ack.sequence, ack.acknowledgment),
            (answer.number.wrapping_add(1), number)
        );
    }
    assert!(lb.hellos().is_empty());
}

/// What comes instead of that ACK is the client's, and the client repeats its second segment.
#[privileged_test]
fn without_that_acknowledgment_the_client_sends_the_rest() {
    let never = CONFIG.replace(
        "interface: eth1,",
        "interface: eth1, second_segment: on_ack,",
    );
    let whole = long_hello();
    for case in ["overwritten", "part", "data"] {
        let mut lb = start_with(&never);
        let answer = Answer::to(&mut lb, &OPTIONS);
        let (_, port) = open(&mut lb, &answer, &whole);
        receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
        let offset = if case == "part" { 1447 } else { 1448 };
        let number = ISN.wrapping_add(1).wrapping_add(offset);
        let mut reply = from_backend(&port, ACK_ONLY, NUMBER + 1, number);
        if case == "data" {
            reply = reply.payload(b"alert");
        }
        if case == "overwritten" {
            lb.raw_maps()["HELLO_SLOTS"].clear().expect("no hellos");
        }
        let reply = passed_on(&mut lb, Port::Mgmt, &reply.bytes());
        let reply = Segment::read(&reply).expect("a segment");
        assert_eq!(reply.sequence, answer.number.wrapping_add(1), "{case}");
        let [_, second] = segments(&answer, &whole);
        let second = passed_on(&mut lb, Port::Tenant, &second.bytes());
        assert_eq!(second[66..], whole[FIRST..], "{case}");
    }
}

/// Where frames are copied, the SYN-ACK goes to the map of devices, marked for the program in there.
#[privileged_test]
fn both_segments_are_copies() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = open(&mut lb, &answer, &long_hello());
    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(
        (met.action, &met.counted[..]),
        (Action::Redirect, &["forwarded", "bound"][..])
    );
    assert_eq!(met.frame[12..14], [0x88, 0xb5]);
    assert_eq!(met.frame[18..22], (NUMBER + 1).to_be_bytes());
    assert_eq!(met.frame[22..26], CLOCK.to_be_bytes());
}

/// Not both are there, or they are no hello: the process has what has come.
#[privileged_test]
fn what_two_segments_do_not_hold_goes_to_the_process() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let mut whole = long_hello();
    let [first, _] = segments(&answer, &whole);
    for counted in [&["consumed"][..], &["consumed", "unread"]] {
        let left = receive(&mut lb, Port::Tenant, &first.bytes());
        assert_eq!(left.counted, counted);
    }
    assert_eq!(lb.hellos()[0].bytes, whole[..FIRST]);
    // The length of the record says that there is more.
    whole[3..5].copy_from_slice(&2040_u16.to_be_bytes());
    let [first, second] = segments(&answer, &whole);
    receive(&mut lb, Port::Tenant, &first.bytes());
    let left = receive(&mut lb, Port::Tenant, &second.bytes());
    assert_eq!(left.counted, ["consumed", "unread"]);
    let hellos = lb.hellos();
    assert_eq!((hellos.len(), &hellos[0].bytes), (1, &whole));
}
