//! Backends of bound flows that refuse or are silent, and that another one of the pool follows: see [`bind`](super::bind).

use std::collections::BTreeSet;

use lb_common::conntrack::ANSWER_TIMEOUT;
use lb_tests::{
    frames::packet::{flags::*, tcp},
    product::program::{Action, DataPlane, MGMT_NIC, Port},
};

use super::{
    bind::{self, BACKEND, CONFIG, NUMBER, receive},
    bind_two::{long_hello, open, segments, syn},
    cookies::{Answer, ISN, OPTIONS, start_with},
    given::{KAS_MAC, passed_on},
};

/// The other backend of the pool.
pub(super) const OTHER: &str = "10.32.96.106:30918";

/// With two backends in the pool.
pub(super) fn with_two() -> String {
    let one = format!("{BACKEND:?}");
    CONFIG.replacen(&one, &format!("{one}, {OTHER:?}"), 1)
}

/// Byte by byte: the RST of a backend becomes the SYN to the other one, and what the first one still sends is not the flow's.
#[privileged_test]
fn a_refused_hello_goes_to_the_other_backend() {
    let mut lb = start_with(&with_two());
    let answer = Answer::to(&mut lb, &OPTIONS);
    let whole = bind::hello(&answer, "a.lab").bytes();
    let (first, port) = syn(&passed_on(&mut lb, Port::Tenant, &whole));
    let next = ISN.wrapping_add(1);
    let refusal = |backend: &str| {
        tcp(backend, &port, RST_ACK)
            .between(KAS_MAC, MGMT_NIC)
            .numbers(0, next)
    };
    let refused = receive(&mut lb, Port::Mgmt, &refusal(&first).bytes());
    assert_eq!(
        (refused.action, &refused.counted[..]),
        (Action::Transmit, &["transmitted"][..])
    );
    let (second, same_port) = syn(&refused.frame);
    assert_eq!(same_port, port);
    assert_ne!(second, first);
    let late = receive(&mut lb, Port::Mgmt, &refusal(&first).bytes());
    assert_eq!(late.counted, ["reply_mismatch"]);
    assert!(lb.hellos().is_empty());
    // The last one refuses: the process has the hello.
    let refused = receive(&mut lb, Port::Mgmt, &refusal(&second).bytes());
    assert_eq!(
        (refused.action, &refused.counted[..]),
        (Action::Drop, &["refused_by_backend", "unanswered"][..])
    );
    assert_eq!(lb.hellos().len(), 1);
}

/// A silent backend: the first repetition of the hello is its own, the next one that of the other backend.
#[privileged_test]
fn a_hello_without_an_answer_goes_to_the_other_backend() {
    let mut lb = start_with(&with_two());
    let answer = Answer::to(&mut lb, &OPTIONS);
    let whole = long_hello();
    let [one, _] = segments(&answer, &whole);
    let (silent, port) = open(&mut lb, &answer, &whole);
    let again = |lb: &mut DataPlane| receive(lb, Port::Tenant, &one.bytes());
    let repeated = again(&mut lb);
    assert_eq!(syn(&repeated.frame).0, silent);
    let id = DataPlane::flow_id(port.rsplit(':').next().unwrap().parse().unwrap());
    let later = |lb: &mut DataPlane| {
        let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
        flow.last_seen = flow.last_seen.wrapping_sub(ANSWER_TIMEOUT);
        lb.maps.flows.set(id, &flow, 0).expect("a write");
    };
    later(&mut lb);
    let moved = again(&mut lb);
    assert_eq!(moved.counted, ["forwarded"]);
    let (other, same_port) = syn(&moved.frame);
    assert_eq!(same_port, port);
    assert_ne!(other, silent);
    // The backend that was left answers at last.
    let late = tcp(&silent, &port, SYN_ACK)
        .between(KAS_MAC, MGMT_NIC)
        .numbers(NUMBER, ISN.wrapping_add(1));
    let late = receive(&mut lb, Port::Mgmt, &late.bytes());
    assert_eq!(late.counted, ["reply_mismatch"]);
    later(&mut lb);
    let left = again(&mut lb);
    assert_eq!(left.counted, ["consumed", "unanswered"]);
    assert_eq!(lb.hellos()[0].bytes, whole);
}

/// Of five backends that refuse four are asked; then the process has the hello.
#[privileged_test]
fn three_other_backends_follow_at_most() {
    let five = (105..110).map(|host| format!("\"10.32.96.{host}:30918\""));
    let five = five.collect::<Vec<_>>().join(", ");
    let mut lb = start_with(&CONFIG.replacen(&format!("{BACKEND:?}"), &five, 1));
    let answer = Answer::to(&mut lb, &OPTIONS);
    let whole = bind::hello(&answer, "a.lab").bytes();
    let mut sent = passed_on(&mut lb, Port::Tenant, &whole);
    let mut asked = BTreeSet::new();
    while lb.hellos().is_empty() {
        let (backend, port) = syn(&sent);
        assert!(asked.insert(backend.clone()), "{backend} is asked again");
        let refusal = tcp(&backend, &port, RST_ACK)
            .between(KAS_MAC, MGMT_NIC)
            .numbers(0, ISN.wrapping_add(1));
        sent = lb.run(Port::Mgmt, &refusal.bytes(), 1).0.1;
    }
    assert_eq!(asked.len(), 4);
}
