//! Ports of clients that are used again, and hellos that come again, or while there is no process: see [`bind`](super::bind).

use lb_common::conntrack::State;
use lb_tests::{
    frames::{
        packet::{check, flags::*},
        segment::Segment,
    },
    product::program::{Action, DataPlane, IDS, Port},
    traffic::hello::named,
};

use super::{
    bind::{BACKEND, CONFIG, NUMBER, hello, opened, receive, syn_ack},
    bind_ends::Bound,
    cookies::{Answer, ISN, OPTIONS, keys_alone, start_with},
    given::{API, CLIENT_A, passed_on, request},
};

/// The number of the client's other connection from the same port.
const OTHER_ISN: u32 = 5000;

/// The hello of the other connection, behind the cookie that its SYN is answered with.
fn other_hello(lb: &mut DataPlane) -> Vec<u8> {
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(OTHER_ISN, 0);
    let answer = receive(lb, Port::Tenant, &syn.bytes());
    assert_eq!(
        (answer.action, &answer.counted[..]),
        (Action::Transmit, &["transmitted"][..])
    );
    let number = Segment::read(&answer.frame).expect("an answer").sequence;
    let hello = request(CLIENT_A, API, ACK_ONLY).numbers(OTHER_ISN + 1, number.wrapping_add(1));
    hello.payload(&named(b"a.lab")).bytes()
}

/// The SNAT end of the other connection's SYN to the backend.
fn assert_opens_other(lb: &mut DataPlane, hello: &[u8]) -> String {
    let syn = passed_on(lb, Port::Tenant, hello);
    let syn = Segment::read(&syn).expect("a SYN");
    assert_eq!((syn.flags, syn.sequence), (SYN_ONLY, OTHER_ISN));
    assert_eq!(syn.to.to_string(), BACKEND);
    syn.from.to_string()
}

/// How many flows there may be yet.
pub(super) fn free_ids(lb: &DataPlane) -> usize {
    let ids = lb.drain_free_ids();
    lb.give_free_ids(&ids);
    ids.len()
}

/// A SYN from the port of a flow is answered by a cookie and changes nothing; the hello behind that opens the other connection in the
/// place of one that waits for its backend.
#[privileged_test]
fn a_syn_forgets_nothing_and_the_hello_behind_it_does() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let first = hello(&answer, "a.lab");
    let (syn, port) = opened(&mut lb, &first);
    let other = other_hello(&mut lb);
    assert_eq!(
        opened(&mut lb, &first),
        (syn, port.clone()),
        "the same SYN as before"
    );
    let new_port = assert_opens_other(&mut lb, &other);
    assert_ne!(new_port, port);
    assert_eq!(free_ids(&lb), IDS - 1, "the former one is given back");
    assert!(lb.hellos().is_empty());
}

/// The same over a flow that is over.
#[privileged_test]
fn a_port_opens_another_connection_behind_its_end() {
    let mut bound = Bound::closed();
    let word = bound.word();
    let other = other_hello(&mut bound.lb);
    assert_eq!(bound.word(), word, "a SYN changes nothing");
    assert_opens_other(&mut bound.lb, &other);
    assert!(bound.lb.hellos().is_empty());
}

/// A SYN from the port of a flow that lives is its backend's to judge, and a hello behind a guess is one of its segments.
#[privileged_test]
fn a_flow_that_lives_has_its_port() {
    for half_closed in [false, true] {
        let mut bound = Bound::established();
        if half_closed {
            bound.client_sends(FIN_ACK, 0, &[]);
        }
        let word = bound.word();
        let syn = request(CLIENT_A, API, SYN_ONLY).numbers(OTHER_ISN, 0);
        let syn = passed_on(&mut bound.lb, Port::Tenant, &syn.bytes());
        let syn = Segment::read(&syn).expect("a SYN");
        assert_eq!((syn.flags, syn.sequence), (SYN_ONLY, OTHER_ISN));
        assert_eq!(syn.from.to_string(), bound.port);
        let guess = request(CLIENT_A, API, ACK_ONLY).numbers(OTHER_ISN + 1, 77);
        passed_on(
            &mut bound.lb,
            Port::Tenant,
            &guess.payload(&named(b"a.lab")).bytes(),
        );
        assert_eq!(bound.word(), word);
        assert_eq!(free_ids(&bound.lb), IDS - 1);
    }
}

/// A hello that comes again when its connection is over opens none while the entry is there.
#[privileged_test]
fn a_hello_that_comes_again_behind_the_end_opens_nothing() {
    let mut bound = Bound::closed();
    let first = hello(&bound.answer, "a.lab").bytes();
    assert_eq!(bound.word().state(), State::Closed);
    let again = passed_on(&mut bound.lb, Port::Tenant, &first);
    let again = Segment::read(&again).expect("a segment");
    assert_eq!(
        (again.flags & SYN_ONLY, again.sequence),
        (0, ISN.wrapping_add(1))
    );
    assert_eq!(bound.word().state(), State::Closed);
    assert_eq!(free_ids(&bound.lb), IDS);
    assert!(bound.lb.hellos().is_empty());
}

/// A known name is served while no process takes hellos, whatever the time; another one is refused loudly.
#[privileged_test]
fn a_known_name_needs_no_process() {
    let mut lb = DataPlane::new(CONFIG);
    keys_alone(&lb);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = opened(&mut lb, &hello(&answer, "a.lab"));
    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(met.counted, ["transmitted", "bound"]);
    let mut lb = lb.again(CONFIG);
    keys_alone(&lb);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let left = receive(&mut lb, Port::Tenant, &hello(&answer, "b.lab").bytes());
    assert_eq!(left.counted, ["refused: no_process", "unrouted"]);
    let reset = Segment::read(&left.frame).expect("a reset");
    assert_eq!((left.action, reset.flags), (Action::Transmit, RST_ONLY));
    assert!(lb.hellos().is_empty());
}

/// Data and a FIN in one segment: the data opens the connection and reaches the backend without the FIN, which comes again.
#[privileged_test]
fn a_fin_behind_a_hello_comes_again() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let data = named(b"a.lab");
    let first = answer.segment(0, FIN_ACK).payload(&data);
    let (_, port) = opened(&mut lb, &first);
    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    check(&met.frame).expect("right checksums");
    let sent = Segment::read(&met.frame).expect("a segment");
    assert_eq!(
        (sent.flags & FIN_ACK, sent.payload as usize),
        (ACK_ONLY, data.len())
    );
    assert_eq!(met.frame[66..], data);
    let length = u32::try_from(data.len()).expect("a short hello");
    let fin = passed_on(
        &mut lb,
        Port::Tenant,
        &answer.segment(length, FIN_ACK).bytes(),
    );
    let fin = Segment::read(&fin).expect("a FIN");
    let behind = ISN.wrapping_add(1 + length);
    assert_eq!(
        (fin.flags, fin.sequence, fin.acknowledgment),
        (FIN_ACK, behind, NUMBER + 1)
    );
}
