//! Services with a pool whose SYNs are answered by cookies: the ACK behind one opens the flow.

use std::time::SystemTime;

use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        counts::{BOUND, CONNECTS, FAILED, FLOWS, service},
        service::SERVICE_COOKIES,
        usage,
    },
};
use lb_tests::{
    frames::{
        packet::{check, flags::*, tcp},
        segment::Segment,
    },
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::{
    dataplane::{cookie_secret::CookieSecret, cookies::Cookies},
    model::registry::Kind,
};

use super::{
    bind::{AGREED, BACKEND, CLOCK, NUMBER, TIME, from_backend, opened, receive, syn_ack},
    bind_again::free_ids,
    cookies::{Answer, ISN, OPTIONS, keys_at, start_with},
    counts::table,
    given::{API, CLIENT_A, KAS_MAC, assert_refused, passed_on, request},
};

pub(super) const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas: { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api:
    network: tenant-a
    listen: ["192.168.203.110:6443/tcp"]
    pool: kas
    syn_cookies: always
"#;
/// What the backend echoes in [`AGREED`].
const AGREED_ECHO: [u8; 4] = [1, 2, 3, 5];
const OTHER: &str = "10.32.96.106:30918";

/// The same with a second backend.
fn of_two() -> String {
    CONFIG.replace("30918\"]", &format!("30918\", \"{OTHER}\"]"))
}

/// What has been counted of the service: flows, those that were bound, those whose backend has answered, and those that have none.
fn numbers(lb: &DataPlane) -> [u64; 4] {
    let id = lb.ids.get(Kind::Service, "api").expect("the service");
    let record = service(u16::try_from(id).expect("a short id"));
    let counts = table(lb).get(record);
    [FLOWS, BOUND, CONNECTS, FAILED].map(|number| counts[number])
}

/// The ACK of a client, which opens the flow: the SYN to the backend, and its SNAT port.
pub(super) fn connected(lb: &mut DataPlane) -> (Answer, Vec<u8>, String) {
    let answer = Answer::to(lb, &OPTIONS);
    let (syn, port) = opened(lb, &answer.segment(0, ACK_ONLY).window(501));
    (answer, syn, port)
}

pub(super) fn kept(lb: &mut DataPlane, frame: &[u8]) {
    let kept = receive(lb, Port::Tenant, frame);
    assert_eq!(
        (kept.action, &kept.counted[..]),
        (Action::Drop, &["consumed"][..])
    );
}

/// A segment that the backend is sent in the place of its SYN-ACK.
pub(super) fn met(lb: &mut DataPlane, port: &str) -> Vec<u8> {
    let met = receive(lb, Port::Mgmt, &syn_ack(port).bytes());
    assert_eq!(
        (met.action, &met.counted[..]),
        (Action::Transmit, &["transmitted"][..])
    );
    check(&met.frame).expect("right checksums");
    met.frame
}

/// Byte by byte: the SYN for the ACK, the ACK for the SYN-ACK, and what the backend says first.
#[privileged_test]
fn an_ack_behind_a_cookie_opens_a_flow() {
    let mut lb = start_with(CONFIG);
    let (answer, syn, port) = connected(&mut lb);
    let options = [
        &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 8, 10][..],
        &TIME,
        &[0; 4],
    ];
    let wanted = tcp(&port, BACKEND, SYN_ONLY)
        .between(MGMT_NIC, KAS_MAC)
        .numbers(ISN, 0)
        .window(64_128)
        .tcp_options(&options.concat());
    assert_eq!(syn[..14], wanted.bytes()[..14], "stations");
    assert_eq!(syn[34..50], wanted.bytes()[34..50], "ports to window");
    assert_eq!(syn[54..], wanted.bytes()[54..], "options");
    assert_eq!(numbers(&lb), [0; 4]);

    // The ACK again says nothing new.
    kept(&mut lb, &answer.segment(0, ACK_ONLY).window(501).bytes());

    let ack = met(&mut lb, &port);
    let times = [&[1, 1, 8, 10][..], &TIME, &CLOCK.to_be_bytes()].concat();
    let wanted = tcp(&port, BACKEND, ACK_ONLY)
        .between(MGMT_NIC, KAS_MAC)
        .numbers(ISN.wrapping_add(1), NUMBER + 1)
        .tcp_options(&times)
        .window(501);
    assert_eq!(Segment::read(&ack), Segment::read(&wanted.bytes()));
    assert_eq!(ack[..14], wanted.bytes()[..14], "stations");
    assert_eq!(ack[46..50], wanted.bytes()[46..50], "length, flags, window");
    assert_eq!(ack[54..], wanted.bytes()[54..], "options, and nothing else");
    assert_eq!(numbers(&lb), [1, 0, 1, 0]);
    // Its client has shown that it is there: from now on it is in full use.
    let (network, _) = lb.desired.networks[1];
    assert_eq!(lb.maps.usage(usage::network(network)).expect("a count"), 1);
    let id = DataPlane::flow_id(port.rsplit(':').next().unwrap().parse().unwrap());
    let word = FlowState::from_raw(lb.maps.flows.get(&id, 0).expect("an entry").word);
    assert_eq!(word.state(), State::Established);

    // The banner has our number and clock.
    let times = [&[1, 1, 8, 10][..], &(CLOCK + 7).to_be_bytes(), &TIME].concat();
    let banner = from_backend(&port, ACK_ONLY, NUMBER + 1, ISN.wrapping_add(1));
    let banner = banner.tcp_options(&times).payload(b"220 lab").window(100);
    let banner = passed_on(&mut lb, Port::Mgmt, &banner.bytes());
    let clock = answer.time.expect("a clock").wrapping_add(7);
    let times = [&[1, 1, 8, 10][..], &clock.to_be_bytes(), &TIME].concat();
    let wanted = tcp(API, CLIENT_A, ACK_ONLY)
        .between(TENANT_NIC, CLIENT)
        .numbers(answer.number.wrapping_add(1), ISN.wrapping_add(1))
        .tcp_options(&times)
        .payload(b"220 lab")
        .window(400);
    assert_eq!(banner[34..50], wanted.bytes()[34..50]);
    assert_eq!(banner[54..], wanted.bytes()[54..]);
    let reply = answer.segment(0, ACK_ONLY).payload(b"HELO");
    let reply = reply.numbers(ISN.wrapping_add(1), answer.number.wrapping_add(8));
    let reply = passed_on(&mut lb, Port::Tenant, &reply.bytes());
    let reply = Segment::read(&reply).expect("a segment");
    assert_eq!(
        (reply.sequence, reply.acknowledgment, reply.payload),
        (ISN.wrapping_add(1), NUMBER + 8, 4)
    );
    assert!(lb.hellos().is_empty(), "no process has to do with it");
}

/// What a client sends at once waits with its flow, and goes to the backend behind its SYN-ACK: one segment, or two.
#[privileged_test]
fn data_of_a_client_wait_for_its_backend() {
    for second in [false, true] {
        let mut lb = start_with(CONFIG);
        let (answer, _, port) = connected(&mut lb);
        kept(
            &mut lb,
            &answer.segment(0, ACK_ONLY).payload(b"GET /").bytes(),
        );
        if second {
            kept(
                &mut lb,
                &answer.segment(5, ACK_ONLY).payload(b" HTTP/1.1").bytes(),
            );
            // No third one has room; nor does a second one that does not follow.
            for offset in [14, 30] {
                let third = answer.segment(offset, ACK_ONLY).payload(b"more");
                let third = receive(&mut lb, Port::Tenant, &third.bytes());
                assert_eq!(third.counted, ["hello_unordered"]);
            }
        }
        // An ACK again, such as one that answers a copy of the SYN-ACK, loses nothing.
        kept(&mut lb, &answer.segment(0, ACK_ONLY).bytes());
        let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
        if second {
            // Both by copies, or the second one on the ACK of the first: as of a hello in two.
            assert!(matches!(met.action, Action::Redirect | Action::Transmit));
            continue;
        }
        assert_eq!(met.action, Action::Transmit);
        assert_eq!(met.frame[66..], *b"GET /");
        check(&met.frame).expect("right checksums");
    }
}

/// A client without options, whose ACK is shorter than the SYN that it becomes.
#[privileged_test]
fn a_bare_client_is_served() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &[2, 4, 5, 0xb4, 1, 3, 3, 7]);
    let ack = answer.segment(0, ACK_ONLY);
    assert_eq!(ack.bytes().len(), 54);
    let (syn, port) = opened(&mut lb, &ack);
    assert_eq!(syn.len(), 62, "MSS and scale");
    let agreed = syn_ack(&port).tcp_options(&[2, 4, 5, 0xb4, 1, 3, 3, 9]);
    let met = receive(&mut lb, Port::Mgmt, &agreed.bytes());
    assert_eq!(met.counted, ["transmitted"]);
    check(&met.frame).expect("right checksums");
    assert_eq!(met.frame.len(), 54);
    assert_eq!(
        Segment::read(&met.frame).map(|segment| segment.flags),
        Some(ACK_ONLY)
    );
}

/// The first data may come before the ACK, or without it.
#[privileged_test]
fn data_open_a_flow() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = opened(&mut lb, &answer.segment(0, ACK_ONLY).payload(b"GET /"));
    assert_eq!(met(&mut lb, &port)[66..], *b"GET /");
    assert_eq!(numbers(&lb), [1, 0, 1, 0]);
}

/// Without a right cookie nothing is opened; and an end comes again.
#[privileged_test]
fn other_segments_are_reset() {
    let mut lb = start_with(CONFIG);
    let ids = free_ids(&lb);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let wrong = answer.segment(0, ACK_ONLY);
    let number = answer.number ^ 1 << 25;
    let wrong = wrong.numbers(ISN.wrapping_add(1), number.wrapping_add(1));
    for wrong in [wrong.clone(), wrong.payload(b"GET /")] {
        let reset = assert_refused(&mut lb, Port::Tenant, &wrong.bytes(), "no_flow");
        let reset = Segment::read(&reset).expect("a reset");
        assert_eq!(
            (reset.flags, reset.sequence),
            (RST_ONLY, number.wrapping_add(1))
        );
    }
    assert_eq!(free_ids(&lb), ids);
    // A client that closes at once has a connection first; its FIN comes again.
    let (_, port) = opened(&mut lb, &answer.segment(0, FIN_ACK));
    met(&mut lb, &port);
    let fin = passed_on(&mut lb, Port::Tenant, &answer.segment(0, FIN_ACK).bytes());
    let fin = Segment::read(&fin).expect("a segment");
    assert_eq!((fin.flags, fin.acknowledgment), (FIN_ACK, NUMBER + 1));
}

/// A refusal of the last backend, or options that are not those that were promised: the client gets a reset that it takes, the flow
/// is over, and later clients are promised less.
#[privileged_test]
fn a_client_without_a_backend_is_reset() {
    let no_scale = [&AGREED[..16], &[1; 4]].concat();
    let no_times = [&AGREED[..4], &[1; 12], &AGREED[16..]].concat();
    let narrow = [&[2, 4, 2, 24][..], &AGREED[4..]].concat();
    let refusal = |to: &str| from_backend(to, RST_ACK, 0, ISN.wrapping_add(1));
    for (options, counted) in [
        (None, &["forwarded"][..]),
        (Some(&no_scale), &["disagreed", "forwarded"]),
        (Some(&no_times), &["disagreed", "forwarded"]),
        (Some(&narrow), &["disagreed", "forwarded"]),
    ] {
        for has_slot in [true, false] {
            let mut lb = start_with(CONFIG);
            let ids = free_ids(&lb);
            let (answer, _, port) = connected(&mut lb);
            if !has_slot {
                lb.raw_maps()["HELLO_SLOTS"].clear().expect("no slots");
            }
            let reply = match options {
                None => refusal(&port),
                Some(options) => syn_ack(&port).tcp_options(options),
            };
            let sent = receive(&mut lb, Port::Mgmt, &reply.bytes());
            if options == Some(&narrow) && !has_slot {
                // Nothing says any more what the client was offered.
                continue;
            }
            let mut found = sent.counted.clone();
            found.sort_unstable();
            assert_eq!(
                (sent.action, &found[..]),
                (Action::Redirect, counted),
                "{has_slot}"
            );
            let wanted = tcp(API, CLIENT_A, RST_ACK)
                .between(TENANT_NIC, CLIENT)
                .numbers(answer.number.wrapping_add(1), ISN.wrapping_add(1))
                .window(0);
            assert_eq!(Segment::read(&sent.frame), Segment::read(&wanted.bytes()));
            assert_eq!(sent.frame[..14], wanted.bytes()[..14], "stations");
            check(&sent.frame).expect("right checksums");
            assert_eq!(free_ids(&lb), ids);
            assert_eq!(numbers(&lb), [1, 0, 0, 1]);
            let Some(options) = options else {
                continue;
            };
            // The next client is promised what the backend agrees to.
            let (_, _, port) = connected(&mut lb);
            let agreed = receive(
                &mut lb,
                Port::Mgmt,
                &syn_ack(&port).tcp_options(options).bytes(),
            );
            assert_eq!(agreed.counted, ["transmitted"], "{options:02x?} {has_slot}");
        }
    }
}

/// A refusal goes on to the next backend at once.
#[privileged_test]
fn a_refused_client_gets_the_next_backend() {
    let mut lb = start_with(&of_two());
    let answer = Answer::to(&mut lb, &OPTIONS);
    let frame = passed_on(&mut lb, Port::Tenant, &answer.segment(0, ACK_ONLY).bytes());
    let first = Segment::read(&frame).expect("a SYN");
    let (of, port) = (first.to.to_string(), first.from.to_string());
    let refusal = tcp(&of, &port, RST_ACK)
        .between(KAS_MAC, MGMT_NIC)
        .numbers(0, ISN.wrapping_add(1));
    let next = receive(&mut lb, Port::Mgmt, &refusal.bytes());
    let second = Segment::read(&next.frame).expect("a SYN");
    assert_eq!((second.flags, second.sequence), (SYN_ONLY, ISN));
    assert_ne!(second.to.to_string(), of);
    assert_eq!(second.from.to_string(), port);
    let refusal = tcp(&second.to.to_string(), &port, RST_ACK)
        .between(KAS_MAC, MGMT_NIC)
        .numbers(0, ISN.wrapping_add(1));
    let end = receive(&mut lb, Port::Mgmt, &refusal.bytes());
    let end = Segment::read(&end.frame).expect("a reset");
    assert_eq!(
        (end.flags, end.to.to_string()),
        (RST_ACK, CLIENT_A.to_owned())
    );
}

/// Where nothing is kept of the ACK any more, it is made anew, with the clock that the SYN had.
#[privileged_test]
fn a_lost_ack_is_made_anew() {
    let mut lb = start_with(CONFIG);
    let (answer, _, port) = connected(&mut lb);
    lb.raw_maps()["HELLO_SLOTS"].clear().expect("no slots");
    let ack = met(&mut lb, &port);
    let times = [&[1, 1, 8, 10][..], &AGREED_ECHO, &CLOCK.to_be_bytes()].concat();
    let wanted = tcp(&port, BACKEND, ACK_ONLY)
        .between(MGMT_NIC, KAS_MAC)
        .numbers(ISN.wrapping_add(1), NUMBER + 1)
        .tcp_options(&times)
        .window(511);
    assert_eq!(Segment::read(&ack), Segment::read(&wanted.bytes()));
    assert_eq!(ack[46..50], wanted.bytes()[46..50], "length, flags, window");
    assert_eq!(ack[54..], wanted.bytes()[54..], "options, and nothing else");
    let data = answer.segment(0, ACK_ONLY).payload(b"GET /");
    let data = passed_on(&mut lb, Port::Tenant, &data.bytes());
    let data = Segment::read(&data).expect("a segment");
    assert_eq!(
        (data.sequence, data.acknowledgment),
        (ISN.wrapping_add(1), NUMBER + 1)
    );
    assert_eq!(numbers(&lb), [1, 0, 1, 0]);
}

/// A segment of an earlier connection that the backend still has is answered by a reset, and the flow waits on.
#[privileged_test]
fn an_earlier_connection_of_the_backend_is_reset() {
    let mut lb = start_with(CONFIG);
    let (_, _, port) = connected(&mut lb);
    let other = from_backend(&port, ACK_ONLY, 77, 99);
    let reset = assert_refused(&mut lb, Port::Mgmt, &other.bytes(), "no_flow");
    let reset = Segment::read(&reset).expect("a reset");
    assert_eq!((reset.flags, reset.sequence), (RST_ONLY, 99));
    // It may also answer a copy of the SYN that it has.
    let copy = from_backend(&port, ACK_ONLY, NUMBER + 1, ISN.wrapping_add(1));
    let copy = receive(&mut lb, Port::Mgmt, &copy.bytes());
    assert_eq!(
        (copy.action, &copy.counted[..]),
        (Action::Drop, &["consumed"][..])
    );
    met(&mut lb, &port);
}

/// A client that opens its port anew when there are no cookies any more finds the flow that waits gone.
#[privileged_test]
fn a_waiting_flow_gives_way_to_a_new_one() {
    let mut lb = start_with(CONFIG);
    let ids = free_ids(&lb);
    connected(&mut lb);
    let key = *lb.desired.services.keys().next().expect("the service");
    let mut record = lb.maps.services.get(&key, 0).expect("a record");
    record.flags &= !SERVICE_COOKIES;
    lb.maps.services.insert(&key, &record, 0).expect("a write");
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(5000, 0).bytes();
    let first = receive(&mut lb, Port::Tenant, &syn);
    assert_eq!(first.counted, ["flow_race"]);
    assert_eq!(free_ids(&lb), ids, "both are free");
    passed_on(&mut lb, Port::Tenant, &syn);
    assert_eq!(free_ids(&lb), ids - 1);
}

/// A box that has the same secret takes the cookies of another one, whatever its epoch began with. Later than that epoch the key of the
/// one before would be the stranger's.
#[privileged_test]
fn a_cookie_of_one_box_is_good_at_another() {
    let now = SystemTime::now();
    let mut one = DataPlane::new(CONFIG);
    keys_at(&one, now);
    let answer = Answer::to(&mut one, &OPTIONS);
    drop(one);
    let mut other = DataPlane::new(CONFIG);
    let stranger = CookieSecret::new(b"of another group");
    let stranger = Cookies::open(&other.maps_folder(), stranger).expect("the map of keys");
    stranger.follow(now);
    let ack = answer.segment(0, ACK_ONLY);
    assert_refused(&mut other, Port::Tenant, &ack.bytes(), "no_flow");
    keys_at(&other, now);
    let (_, port) = opened(&mut other, &ack);
    met(&mut other, &port);
}

/// With `auto`, SYNs open flows until one leaves the ring before it is a second old; then they are answered. A cookie is good also
/// behind that.
#[privileged_test]
fn a_flood_turns_cookies_on() {
    const PLACES: u16 = 64;
    let config = CONFIG
        .replace("always", "auto")
        .replace("192.168.203.0/24] }", "192.168.203.0/24], half_open: 64 }");
    let mut lb = start_with(&config);
    let syn = |port: u16| {
        let client = format!("192.168.203.50:{port}");
        request(&client, API, SYN_ONLY).numbers(ISN, 0).bytes()
    };
    for port in 0..PLACES {
        passed_on(&mut lb, Port::Tenant, &syn(2000 + port));
    }
    // The first one of the second turn pushes one out.
    passed_on(&mut lb, Port::Tenant, &syn(3000));
    let ids = free_ids(&lb);
    let answered = lb.receive(Port::Tenant, &syn(3001));
    assert_eq!(answered.counted.2, "transmitted");
    assert_eq!(
        Segment::read(&answered.frame).map(|segment| segment.flags),
        Some(SYN_ACK)
    );
    assert_eq!(free_ids(&lb), ids);
    // One that has begun goes on as it is.
    passed_on(&mut lb, Port::Tenant, &syn(3000));
    let (_, _, port) = connected(&mut lb);
    met(&mut lb, &port);
}
