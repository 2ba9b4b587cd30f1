//! Shared VIPs whose connections the data plane opens by the names in their hellos.

use std::collections::BTreeMap;

use lb_common::{
    conntrack::FlowState,
    maps::counts::{BOUND, CONNECTS, FIRST_BYTES, FLOWS, service},
};
use lb_tests::{
    frames::{
        packet::{Frame, check, flags::*, tcp},
        segment::Segment,
    },
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
    traffic::hello::named,
};
use lb_user::model::registry::Kind;

use super::{
    cookies::{Answer, ISN, OPTIONS, start_with},
    counts::table,
    given::{API, CLIENT_A, KAS_MAC, passed_on},
};

pub(super) const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas:   { network: mgmt, backends: ["10.32.96.105:30918"] }
  other: { network: mgmt, backends: ["10.32.96.106:30918"], balance: source, source_timeout: 1m }
services:
  api:
    network: tenant-a
    listen: ["192.168.203.110:6443/tcp"]
    sni:
      late_binding: always
      routes:
        - { names: [a.lab, "*.a.lab"], pool: kas }
        - { names: [kept.a.lab], pool: other }
"#;

pub(super) const BACKEND: &str = "10.32.96.105:30918";
const SNAT: &str = "10.32.96.50";
/// The backend's number, clock and options: those of Linux with another scale.
pub(super) const NUMBER: u32 = 0x1020_3040;
pub(super) const CLOCK: u32 = 0x5000_0000;
pub(super) const AGREED: [u8; 20] = [
    2, 4, 5, 0xb4, 4, 2, 8, 10, 0x50, 0, 0, 0, 1, 2, 3, 5, 1, 3, 3, 9,
];
/// The client's clock in its hello.
pub(super) const TIME: [u8; 4] = [1, 2, 3, 5];

/// What has been done with a frame, and what was counted.
pub(super) struct Received {
    pub(super) action: Action,
    pub(super) frame: Vec<u8>,
    pub(super) counted: Vec<&'static str>,
}

pub(super) fn receive(lb: &mut DataPlane, port: Port, frame: &[u8]) -> Received {
    let counters = |lb: &DataPlane| -> BTreeMap<_, _> { lb.counters() };
    let before = counters(lb);
    let (action, frame) = lb.run(port, frame, 1).0;
    let after = counters(lb);
    let grown = after
        .iter()
        .filter(|(key, count)| before.get(key) != Some(count));
    let counted = grown.map(|((_, _, what), _)| *what).collect();
    Received {
        action,
        frame,
        counted,
    }
}

pub(super) fn hello(answer: &Answer, name: &str) -> Frame {
    let data = named(name.as_bytes());
    answer.segment(0, ACK_ONLY).payload(&data).window(501)
}

/// The hello of a client goes to this backend as a SYN, whose frame this gives, and its SNAT port.
pub(super) fn opened(lb: &mut DataPlane, hello: &Frame) -> (Vec<u8>, String) {
    let frame = passed_on(lb, Port::Tenant, &hello.bytes());
    let syn = Segment::read(&frame).expect("a SYN");
    assert_eq!((syn.flags, syn.sequence, syn.payload), (SYN_ONLY, ISN, 0));
    assert_eq!(syn.to.to_string(), BACKEND);
    assert_eq!(syn.from.ip().to_string(), SNAT);
    (frame, syn.from.to_string())
}

/// A segment of the backend.
pub(super) fn from_backend(to: &str, flags: u8, sequence: u32, acknowledgment: u32) -> Frame {
    tcp(BACKEND, to, flags)
        .between(KAS_MAC, MGMT_NIC)
        .numbers(sequence, acknowledgment)
}

pub(super) fn syn_ack(to: &str) -> Frame {
    from_backend(to, SYN_ACK, NUMBER, ISN.wrapping_add(1)).tcp_options(&AGREED)
}

/// What has been counted of the service: flows, those that were bound, those whose backend has answered, and that have its
/// first byte.
fn numbers(lb: &DataPlane) -> [u64; 4] {
    let id = lb.ids.get(Kind::Service, "api").expect("the service");
    let record = service(u16::try_from(id).expect("a short id"));
    let counts = table(lb).get(record);
    [FLOWS, BOUND, CONNECTS, FIRST_BYTES].map(|number| counts[number])
}

/// Byte by byte: the SYN with the client's number and options, the hello behind the SYN-ACK, and both directions after it.
#[privileged_test]
fn a_known_name_opens_a_flow() {
    for name in ["a.lab", "A.Lab", "x.a.lab", "1.2.3.4.5.6.7.8.a.lab"] {
        let mut lb = start_with(CONFIG);
        let answer = Answer::to(&mut lb, &OPTIONS);
        let first = hello(&answer, name);
        let (syn, port) = opened(&mut lb, &first);
        let wanted = tcp(&port, BACKEND, SYN_ONLY)
            .between(MGMT_NIC, KAS_MAC)
            .numbers(ISN, 0)
            .window(64_128);
        let options = [
            &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 8, 10][..],
            &TIME,
            &[0; 4],
        ];
        let wanted = wanted.tcp_options(&options.concat());
        assert_eq!(Segment::read(&syn), Segment::read(&wanted.bytes()));
        assert_eq!(syn[..14], wanted.bytes()[..14], "stations");
        assert_eq!(syn[46..50], wanted.bytes()[46..50], "length, flags, window");
        assert_eq!(syn[54..], wanted.bytes()[54..], "options");

        // Meanwhile: an ACK says nothing, the hello is a SYN again.
        let ack = receive(&mut lb, Port::Tenant, &answer.segment(0, ACK_ONLY).bytes());
        assert_eq!(
            (ack.action, &ack.counted[..]),
            (Action::Drop, &["consumed"][..])
        );
        assert_eq!(opened(&mut lb, &first), (syn.clone(), port.clone()));

        let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
        assert_eq!(
            (met.action, &met.counted[..]),
            (Action::Transmit, &["transmitted", "bound"][..])
        );
        check(&met.frame).expect("right checksums");
        let sent = Segment::read(&met.frame).expect("a segment");
        assert_eq!(
            (sent.sequence, sent.acknowledgment),
            (ISN.wrapping_add(1), NUMBER + 1)
        );
        assert_eq!(
            (sent.from.to_string(), sent.to.to_string()),
            (port.clone(), BACKEND.to_owned())
        );
        assert_eq!(met.frame[..12], syn[..12], "to the station of the SYN");
        assert_eq!(met.frame[48..50], 501_u16.to_be_bytes());
        let times = [&[1, 1, 8, 10][..], &TIME, &CLOCK.to_be_bytes()].concat();
        assert_eq!(met.frame[54..66], times);
        let data = named(name.as_bytes());
        assert_eq!(met.frame[66..], data);

        // What the backend sends gets our number and clock; what the client sends keeps its own.
        let length = u32::try_from(data.len()).unwrap();
        let behind = ISN.wrapping_add(1).wrapping_add(length);
        let times = [&[1, 1, 8, 10][..], &(CLOCK + 7).to_be_bytes(), &TIME].concat();
        let reply = from_backend(&port, ACK_ONLY, NUMBER + 1, behind);
        let reply = reply
            .tcp_options(&times)
            .payload(b"server hello")
            .window(100);
        assert_eq!(numbers(&lb), [1, 1, 1, 0]);
        let reply = passed_on(&mut lb, Port::Mgmt, &reply.bytes());
        assert_eq!(numbers(&lb), [1, 1, 1, 1]);
        let clock = answer.time.expect("a clock");
        let times = [
            &[1, 1, 8, 10][..],
            &clock.wrapping_add(7).to_be_bytes(),
            &TIME,
        ]
        .concat();
        let wanted = tcp(API, CLIENT_A, ACK_ONLY)
            .between(TENANT_NIC, CLIENT)
            .numbers(answer.number.wrapping_add(1), behind)
            .tcp_options(&times)
            .payload(b"server hello")
            .window(400);
        assert_eq!(reply[34..50], wanted.bytes()[34..50]);
        assert_eq!(reply[54..], wanted.bytes()[54..]);
        let acknowledged = answer.number.wrapping_add(1 + 12);
        let ack = answer
            .segment(length, ACK_ONLY)
            .numbers(behind, acknowledged);
        let ack = passed_on(&mut lb, Port::Tenant, &ack.bytes());
        let ack_read = Segment::read(&ack).expect("a segment");
        assert_eq!(
            (ack_read.sequence, ack_read.acknowledgment),
            (behind, NUMBER + 13)
        );
        assert_eq!(ack[58..66], [&TIME[..], &CLOCK.to_be_bytes()].concat());
        assert!(
            lb.hellos().is_empty(),
            "the process has nothing to do with it"
        );
    }
}

/// What the data plane does not know, or has no backend for, goes to the process, with its reason.
#[privileged_test]
fn what_is_not_known_goes_to_the_process() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let cases = [
        ("b.lab", "unrouted"),
        ("kept.a.lab", "unrouted"),
        ("1.2.3.4.5.6.7.8.9.a.lab", "unrouted"),
        ("a.lab.", "unrouted"),
        (".a.lab", "unrouted"),
    ];
    for (name, reason) in cases {
        let left = receive(&mut lb, Port::Tenant, &hello(&answer, name).bytes());
        assert_eq!(
            (left.action, &left.counted[..]),
            (Action::Drop, &["consumed", reason][..]),
            "{name}"
        );
        let hellos = lb.hellos();
        assert_eq!(hellos.len(), 1, "{name}");
        assert_eq!(hellos[0].bytes, named(name.as_bytes()));
    }
    for data in [&b"GET / HTTP/1.1"[..], &named(b"a.lab")[..50]] {
        let frame = answer.segment(0, ACK_ONLY).payload(data);
        let left = receive(&mut lb, Port::Tenant, &frame.bytes());
        assert_eq!(left.counted, ["consumed", "unread"]);
        assert_eq!(lb.hellos()[0].bytes, data);
    }
    let ids = lb.drain_free_ids();
    let left = receive(&mut lb, Port::Tenant, &hello(&answer, "a.lab").bytes());
    assert_eq!(left.counted, ["consumed", "unopened"]);
    assert_eq!(lb.hellos().len(), 1);
    lb.give_free_ids(&ids);
    opened(&mut lb, &hello(&answer, "a.lab"));
}

/// A backend that refuses, that has another connection on the port, or that does not agree to what the client was promised: the
/// flow ends, and the process has the hello.
#[privileged_test]
fn what_its_backend_does_not_take_goes_to_the_process() {
    let no_scale = [&AGREED[..16], &[1; 4]].concat();
    let no_times = [&AGREED[..4], &[1; 12], &AGREED[16..]].concat();
    let narrow = [&[2, 4, 0, 60][..], &AGREED[4..]].concat();
    let next = ISN.wrapping_add(1);
    type Answers = fn(&str) -> Frame;
    let answers: [(Answers, &[u8], u8, &[&str]); 5] = [
        (
            |to| from_backend(to, RST_ACK, 0, ISN.wrapping_add(1)),
            &[],
            0,
            &["refused_by_backend", "unanswered"],
        ),
        (
            |to| from_backend(to, ACK_ONLY, 77, 99),
            &[],
            RST_ONLY,
            &["unanswered", "refused: no_flow"],
        ),
        (
            syn_ack,
            &no_scale,
            RST_ONLY,
            &["disagreed", "refused: no_flow"],
        ),
        (
            syn_ack,
            &no_times,
            RST_ONLY,
            &["disagreed", "refused: no_flow"],
        ),
        (
            syn_ack,
            &narrow,
            RST_ONLY,
            &["disagreed", "refused: no_flow"],
        ),
    ];
    for (reply, options, flags, counted) in answers {
        let mut lb = start_with(CONFIG);
        let answer = Answer::to(&mut lb, &OPTIONS);
        let first = hello(&answer, "a.lab");
        let (_, port) = opened(&mut lb, &first);
        // A reset that is none of this connection's changes nothing.
        let forged = from_backend(&port, RST_ACK, 0, next.wrapping_add(1));
        assert_eq!(
            receive(&mut lb, Port::Mgmt, &forged.bytes()).counted,
            ["reply_unexpected"]
        );
        let mut reply = reply(&port);
        if !options.is_empty() {
            reply = reply.tcp_options(options);
        }
        let given_up = receive(&mut lb, Port::Mgmt, &reply.bytes());
        let mut found = given_up.counted.clone();
        found.sort_unstable();
        let mut wanted = counted.to_vec();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        if flags != 0 {
            assert_eq!(
                Segment::read(&given_up.frame).expect("a reset").flags,
                flags
            );
        }
        let hellos = lb.hellos();
        assert_eq!(hellos.len(), 1, "{counted:?}");
        assert_eq!(hellos[0].bytes, named(b"a.lab"));
        assert_eq!(hellos[0].head.number, answer.number);
        // A new hello opens another flow.
        opened(&mut lb, &first);
    }
}

/// Of a hello that is not kept any more, the client's repetition completes the flow.
#[privileged_test]
fn a_lost_hello_comes_again() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let first = hello(&answer, "a.lab");
    let (_, port) = opened(&mut lb, &first);
    lb.raw_maps()["HELLO_SLOTS"].clear().expect("no hellos");
    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(
        (met.action, &met.counted[..]),
        (Action::Drop, &["consumed", "bound", "repeated"][..])
    );
    let again = passed_on(&mut lb, Port::Tenant, &first.bytes());
    let again = Segment::read(&again).expect("a segment");
    assert_eq!(
        (again.sequence, again.acknowledgment),
        (ISN.wrapping_add(1), NUMBER + 1)
    );
    assert_eq!(again.payload as usize, named(b"a.lab").len());
}

/// A flow has the name of its hello, also of one that a wildcard is for, until it has been over for a while.
#[privileged_test]
fn a_bound_flow_has_its_name() {
    for name in ["a.lab", "X.A.lab"] {
        let mut lb = start_with(CONFIG);
        let answer = Answer::to(&mut lb, &OPTIONS);
        let (_, port) = opened(&mut lb, &hello(&answer, name));
        let port = port.rsplit(':').next().expect("a port");
        let id = DataPlane::flow_id(port.parse().expect("a number"));
        let splices = lb.splices();
        let word = |lb: &DataPlane| FlowState::from_raw(lb.maps.flows.get(&id, 0).unwrap().word);
        let alive = word(&lb);
        let wanted = Some(name.to_ascii_lowercase());
        assert_eq!(splices.name(id, alive), wanted);
        splices.forget_names().expect("the names");
        assert_eq!(splices.name(id, alive), wanted, "it lives");
        let mut change = |state: FlowState, age: u32| {
            let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
            flow.word = state.raw();
            flow.last_seen = flow.last_seen.wrapping_sub(age);
            lb.maps.flows.set(id, &flow, 0).expect("a write");
        };
        change(alive.close(), 0);
        splices.forget_names().expect("the names");
        assert_eq!(splices.name(id, alive), wanted, "its line may be written");
        change(alive.close(), 11_000);
        splices.forget_names().expect("the names");
        assert_eq!(splices.name(id, alive), None);
    }
}
