//! Slots of hellos that another hello has, or another CPU: see [`bind`](super::bind).

use std::mem::offset_of;

use lb_common::{
    conntrack::FlowState,
    maps::hello::{HelloHead, HelloSlot},
};
use lb_tests::{
    frames::{packet::flags::*, segment::Segment},
    product::program::{Action, DataPlane, IDS, Port},
    traffic::hello::named,
};

use super::{
    bind::{CONFIG, NUMBER, from_backend, hello, opened, receive, syn_ack},
    bind_again::free_ids,
    bind_two::{long_hello, open, segments},
    cookies::{Answer, ISN, OPTIONS, begin_epoch, start_with},
    given::passed_on,
};

/// Changes the bytes of each slot, whose word is the first of them.
fn change_slots(lb: &DataPlane, change: impl Fn(&mut [u8])) {
    let slots = &lb.raw_maps()["HELLO_SLOTS"];
    let mut bytes = slots.read().expect("the slots");
    let (each, _) = bytes.as_chunks_mut::<{ size_of::<HelloSlot>() }>();
    each.iter_mut().for_each(|slot| change(slot));
    slots.write(&bytes).expect("slots");
}

/// The slot has the hello of another client when the backend answers, or of another connection: nothing of that is sent, and the
/// client's repetition completes the flow.
#[privileged_test]
fn no_hello_of_another_client_is_sent() {
    const HEAD: usize = offset_of!(HelloSlot, head);
    const BYTES: usize = offset_of!(HelloSlot, bytes);
    let fields = [
        offset_of!(HelloHead, key),
        offset_of!(HelloHead, number),
        offset_of!(HelloHead, isn),
    ];
    for field in fields {
        let mut lb = start_with(CONFIG);
        let answer = Answer::to(&mut lb, &OPTIONS);
        let first = hello(&answer, "a.lab");
        let (_, port) = opened(&mut lb, &first);
        change_slots(&lb, |slot| {
            slot[HEAD + field] ^= 1;
            slot[BYTES..][..200].fill(0x5a);
        });
        let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
        let counted = &["consumed", "bound", "repeated"][..];
        assert_eq!(
            (met.action, &met.counted[..]),
            (Action::Drop, counted),
            "{field}"
        );
        let again = passed_on(&mut lb, Port::Tenant, &first.bytes());
        assert_eq!(again[66..], named(b"a.lab"), "{field}");
    }
}

/// The same of the second segment, which follows the acknowledgment of the first; and where the backend refuses, the process gets
/// nothing of it either.
#[privileged_test]
fn no_rest_of_another_hello_is_sent() {
    let on_ack = CONFIG.replace(
        "interface: eth1,",
        "interface: eth1, second_segment: on_ack,",
    );
    let whole = long_hello();
    let change =
        |slot: &mut [u8]| slot[offset_of!(HelloSlot, head) + offset_of!(HelloHead, key)] ^= 1;
    let mut lb = start_with(&on_ack);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = open(&mut lb, &answer, &whole);
    receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    change_slots(&lb, change);
    let behind_first = ISN.wrapping_add(1 + 1448);
    let ack = from_backend(&port, ACK_ONLY, NUMBER + 1, behind_first);
    let ack = passed_on(&mut lb, Port::Mgmt, &ack.bytes());
    assert_eq!(Segment::read(&ack).expect("an ACK").payload, 0);
    let [_, second] = segments(&answer, &whole);
    let second = passed_on(&mut lb, Port::Tenant, &second.bytes());
    assert_eq!(second[66..], whole[1448..]);

    let mut lb = lb.again(CONFIG);
    begin_epoch(&lb, 8);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = opened(&mut lb, &hello(&answer, "a.lab"));
    change_slots(&lb, change);
    let refused = from_backend(&port, RST_ACK, 0, ISN.wrapping_add(1));
    receive(&mut lb, Port::Mgmt, &refused.bytes());
    assert!(lb.hellos().is_empty());
}

/// Another CPU has the slot: the hello is dropped and counted, and the client sends it again.
#[privileged_test]
fn a_slot_has_one_cpu_at_a_time() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let first = hello(&answer, "a.lab");
    change_slots(&lb, |slot| slot[0] |= 1);
    let dropped = receive(&mut lb, Port::Tenant, &first.bytes());
    assert_eq!(
        (dropped.action, &dropped.counted[..]),
        (Action::Drop, &["hellos_full"][..])
    );
    change_slots(&lb, |slot| slot[0] &= !1);
    let (_, port) = opened(&mut lb, &first);
    change_slots(&lb, |slot| slot[0] |= 1);
    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(met.counted, ["consumed", "bound", "repeated"]);
    change_slots(&lb, |slot| slot[0] &= !1);
    let again = passed_on(&mut lb, Port::Tenant, &first.bytes());
    assert_eq!(again[66..], named(b"a.lab"));
}

/// Another CPU writes the flow's record: what comes from either side meanwhile is dropped, and comes again.
#[privileged_test]
fn a_flow_has_one_cpu_at_a_time() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let first = hello(&answer, "a.lab");
    let (syn, port) = opened(&mut lb, &first);
    let (_, number) = port.rsplit_once(':').expect("a port");
    let id = DataPlane::flow_id(number.parse().expect("a number"));
    let change = |lb: &mut DataPlane, to: fn(FlowState) -> FlowState| {
        let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
        flow.word = to(FlowState::from_raw(flow.word)).raw();
        lb.maps.flows.set(id, &flow, 0).expect("a write");
    };
    change(&mut lb, FlowState::hold);
    let dropped = receive(&mut lb, Port::Tenant, &first.bytes());
    assert_eq!(
        (dropped.action, &dropped.counted[..]),
        (Action::Drop, &["held"][..])
    );
    let dropped = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(
        (dropped.action, &dropped.counted[..]),
        (Action::Drop, &["flow_race"][..])
    );
    assert_eq!(free_ids(&lb), IDS - 1);
    change(&mut lb, FlowState::release);
    assert_eq!(opened(&mut lb, &first), (syn, port.clone()));
    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(met.counted, ["transmitted", "bound"]);
}
