//! Shared VIPs whose SYNs are answered by cookies: what a client gets for its SYN, and what becomes of what it sends
//! next.

use std::{thread, time::SystemTime};

use lb_common::{
    addr::{Be16, Be32},
    maps::{
        cookies::{COOKIE_KEYS, CookieKey, CookieKeys},
        flow::FlowKey,
        hello::{HELLO_HAS_SUMS, HELLO_HAS_TIMES, HelloHead},
    },
    rate::GUESSES,
    syn_cookie::payload,
};
use lb_tests::{
    frames::{
        packet::{Frame, check, flags::*, tcp},
        segment::Segment,
    },
    product::{
        cpu,
        program::{Action, CLIENT, DataPlane, Outcome, Port, TENANT_NIC},
    },
};
use lb_user::dataplane::{
    cell_sockets::CellSocketMap, cookie_secret::CookieSecret, cookies::Cookies,
};

use super::given::{API, CLIENT_A, CLIENT_B, assert_dropped, assert_refused, request};

const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas:  { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api:
    network: tenant-a
    listen: ["192.168.203.110:6443/tcp"]
    deny: [192.168.203.51/32]
    sni: { late_binding: never, routes: [{ names: [a.lab], pool: kas }] }
"#;

/// A service of the same kind, at another port.
pub(super) const SERVICE: &str = r#"shared: { network: tenant-a, listen: ["192.168.203.110:443/tcp"], sni: { late_binding: never, routes: [{ names: [a.lab], pool: kas-a }] } }"#;

/// Leaves a hello to [`SERVICE`] in the ring of hellos.
pub(super) fn leave_hello(lb: &mut DataPlane) {
    const VIP: &str = "192.168.203.110:443";
    begin_epoch(lb, 8);
    let syn = request(CLIENT_A, VIP, SYN_ONLY).numbers(ISN, 0);
    let answer = lb.receive(Port::Tenant, &syn.bytes()).frame;
    let number = Segment::read(&answer).expect("an answer").sequence;
    let first = request(CLIENT_A, VIP, ACK_ONLY);
    let first = first.numbers(ISN.wrapping_add(1), number.wrapping_add(1));
    consumed(lb, &first.payload(&hello()));
}

pub(super) const ISN: u32 = 0xffff_ff00;
/// What Linux sends: MSS 1460, SACK, timestamps, scale 7.
pub(super) const OPTIONS: [u8; 20] = [
    2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
];
/// The beginning of a hello of 60 bytes, and all of it.
const HEAD: [u8; 5] = [22, 3, 1, 0, 55];

fn hello() -> Vec<u8> {
    [&HEAD[..], &[7; 55]].concat()
}

/// A data plane with keys, and a process that takes hellos.
pub(super) fn start() -> DataPlane {
    start_with(CONFIG)
}

/// The same with this configuration.
pub(super) fn start_with(config: &str) -> DataPlane {
    let lb = DataPlane::new(config);
    begin_epoch(&lb, 8);
    lb
}

/// An epoch begins, with the keys that it always has, so that what is wrong is wrong in each run.
pub(super) fn begin_epoch(lb: &DataPlane, epoch: u32) {
    let map = &lb.raw_maps()["COOKIES"];
    map.write_entries(&[COOKIE_KEYS], &[keys(epoch)])
        .expect("keys");
    open(lb).beat();
}

/// The map of keys, with those of a secret.
fn open(lb: &DataPlane) -> Cookies {
    let secret = CookieSecret::new(b"of a test");
    Cookies::open(&lb.maps_folder(), secret).expect("the map of keys")
}

/// Keys without a process that takes hellos.
pub(super) fn keys_alone(lb: &DataPlane) -> Cookies {
    keys_at(lb, SystemTime::now())
}

/// The same at another moment.
pub(super) fn keys_at(lb: &DataPlane, time: SystemTime) -> Cookies {
    let cookies = open(lb);
    cookies.follow(time);
    cookies
}

/// Those of an epoch.
pub(super) fn keys(epoch: u32) -> CookieKeys {
    let key = |epoch: u32| CookieKey {
        low: u64::from(epoch),
        high: 0x0123_4567_89ab_cdef,
    };
    let mut keys = CookieKeys {
        epoch: epoch - 2,
        ..CookieKeys::default()
    };
    keys.turn(key(epoch - 1));
    keys.turn(key(epoch));
    keys
}

/// What is answered to a SYN with these options.
pub(super) struct Answer {
    pub(super) number: u32,
    /// Our clock, if it has one.
    pub(super) time: Option<u32>,
    pub(super) frame: Vec<u8>,
    /// Where the SYN came from.
    client: String,
}

impl Answer {
    pub(super) fn to(lb: &mut DataPlane, options: &[u8]) -> Self {
        Self::from(CLIENT_A, lb, options)
    }

    /// The same from another port, with [`OPTIONS`].
    pub(super) fn of(lb: &mut DataPlane, port: u16) -> Self {
        Self::from(&format!("192.168.203.50:{port}"), lb, &OPTIONS)
    }

    /// The same from another client.
    pub(super) fn from(client: &str, lb: &mut DataPlane, options: &[u8]) -> Self {
        let syn = request(client, API, SYN_ONLY).numbers(ISN, 0);
        let Outcome {
            action,
            frame,
            counted,
        } = lb.receive(Port::Tenant, &syn.tcp_options(options).bytes());
        assert_eq!(
            (action, counted),
            (
                Action::Transmit,
                ("nic", "tenant-a".to_owned(), "transmitted")
            )
        );
        let segment = Segment::read(&frame).expect("a segment");
        assert_eq!(segment.acknowledgment, ISN.wrapping_add(1));
        let times = frame[54..].windows(2).position(|kind| kind == [8, 10]);
        let time = times.map(|at| u32::from_be_bytes(frame[56 + at..60 + at].try_into().unwrap()));
        Self {
            number: segment.sequence,
            time,
            frame,
            client: client.to_owned(),
        }
    }

    /// The options of a segment behind it, of a client with this clock.
    fn times(&self, clock: u32) -> Vec<u8> {
        let Some(time) = self.time else {
            return Vec::new();
        };
        [
            &[1, 1, 8, 10][..],
            &clock.to_be_bytes(),
            &time.to_be_bytes(),
        ]
        .concat()
    }

    /// A segment of the client, so many bytes behind its first one.
    pub(super) fn segment(&self, offset: u32, flags: u8) -> Frame {
        let sequence = ISN.wrapping_add(1).wrapping_add(offset);
        request(&self.client, API, flags)
            .numbers(sequence, self.number.wrapping_add(1))
            .tcp_options(&self.times(0x0102_0305))
    }
}

pub(super) fn consumed(lb: &mut DataPlane, frame: &Frame) {
    let outcome = lb.receive(Port::Tenant, &frame.bytes());
    let counted = ("nic", "tenant-a".to_owned(), "consumed");
    assert_eq!((outcome.action, outcome.counted), (Action::Drop, counted));
}

fn delivered(lb: &mut DataPlane, frame: &Frame) {
    let wanted = Outcome {
        action: Action::Redirect,
        frame: frame.bytes(),
        counted: ("nic", "tenant-a".to_owned(), "delivered"),
    };
    assert_eq!(lb.receive(Port::Tenant, &frame.bytes()), wanted);
}

/// The reset that a segment is answered with.
fn reset(lb: &mut DataPlane, frame: &Frame, number: u32, reason: &str) {
    let found = assert_refused(lb, Port::Tenant, &frame.bytes(), reason);
    let wanted = tcp(API, CLIENT_A, RST_ONLY)
        .between(TENANT_NIC, CLIENT)
        .numbers(number, 0);
    assert_eq!(
        Segment::read(&found),
        Segment::read(&wanted.bytes()),
        "{reason}"
    );
}

/// Byte by byte: the addresses and numbers, the options that the client offered, in an order of our own, and checksums.
#[privileged_test]
fn a_syn_is_answered_and_nothing_is_kept() {
    let mut lb = start();
    let answer = Answer::to(&mut lb, &OPTIONS);
    let time = answer.time.expect("a clock").to_be_bytes();
    let options = [
        &[2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 8, 10][..],
        &time,
        &[1, 2, 3, 4],
    ]
    .concat();
    check(&answer.frame).expect("right checksums");
    assert_eq!(answer.frame.len(), 74);
    assert_eq!(answer.frame[54..], options);
    assert_eq!(answer.frame[48..50], 2920_u16.to_be_bytes(), "window");
    let again = Answer::to(&mut lb, &OPTIONS);
    assert_eq!(again.number, answer.number, "the same number as before");
    // One without options has an answer without any, in a frame of the shortest length.
    let bare = Answer::to(&mut lb, &[]);
    check(&bare.frame).expect("right checksums");
    assert_eq!((bare.frame[46] >> 4, bare.time), (5, None));
    // Nothing but a segment of plain TCP has one, and nothing that policy refuses.
    let denied = request(CLIENT_B, API, SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Tenant, &denied, "denied");
    let options = request(CLIENT_A, API, SYN_ONLY).options(&[148, 4, 0, 0]);
    assert_dropped(
        &mut lb,
        Port::Tenant,
        &options.bytes(),
        "unsupported_protocol",
    );
    assert!(lb.hellos().is_empty());
}

/// What comes behind the right number goes to userspace, with what it takes to make a socket of it.
#[privileged_test]
fn a_hello_goes_to_userspace_with_its_numbers() {
    let mut lb = start();
    for (options, flags, scale_and_sack) in [
        (&OPTIONS[..], HELLO_HAS_TIMES | HELLO_HAS_SUMS, 0x17),
        (
            &[2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2],
            HELLO_HAS_SUMS,
            0x18,
        ),
        (&[2, 4, 4, 0xd8], HELLO_HAS_SUMS, 0x0f),
    ] {
        let answer = Answer::to(&mut lb, options);
        consumed(&mut lb, &answer.segment(0, ACK_ONLY));
        consumed(
            &mut lb,
            &answer.segment(0, ACK_ONLY).payload(&hello()).window(501),
        );
        let hellos = lb.hellos();
        let [record] = &hellos[..] else {
            panic!("{hellos:?}")
        };
        let HelloHead {
            key,
            isn,
            number,
            time,
            clock,
            sums,
            lengths,
            window,
            mss,
            announced,
            mac,
            ..
        } = record.head;
        let expected = FlowKey {
            client: Be32::new(0xc0a8_cb32),
            vip: Be32::new(0xc0a8_cb6e),
            client_port: Be16::new(40_000),
            vip_port: Be16::new(6443),
            network: key.network,
            protocol: 6,
        };
        assert_eq!((key, isn, number), (expected, ISN, answer.number));
        assert_eq!(record.head.flags, flags);
        assert_eq!((record.bytes.as_slice(), lengths), (&hello()[..], [60, 0]));
        assert_eq!((window, announced, mac), (501, 1460, CLIENT));
        assert_eq!(number & 0x1f, scale_and_sack);
        assert_eq!(mss, if options.len() == 4 { 1220 } else { 1460 });
        assert!(payload::is_whole(&record.bytes, sums[0]));
        if let Some(first) = answer.time {
            assert_eq!(time, 0x0102_0305);
            assert!(clock.wrapping_sub(first) < 10_000, "{clock} {first}");
        }
    }
}

/// A number that was not given, or not for this segment, opens nothing: the cell's kernel may have the connection, or has a
/// reset for it.
#[privileged_test]
fn a_wrong_number_opens_nothing() {
    let mut lb = start();
    let answer = Answer::to(&mut lb, &OPTIONS);
    let first = ISN.wrapping_add(1);
    let data = |frame: Frame| frame.payload(&hello());
    let forged = |bit: u32| {
        let number = answer.number ^ 1 << bit;
        data(answer.segment(0, ACK_ONLY)).numbers(first, number.wrapping_add(1))
    };
    // No bit of it may be another one; some make it look like a later segment's.
    for bit in (0..8).chain(20..32) {
        delivered(&mut lb, &forged(bit));
    }
    for bit in 8..20 {
        assert_dropped(
            &mut lb,
            Port::Tenant,
            &forged(bit).bytes(),
            "hello_unordered",
        );
    }
    // The same number from another port, and an echo of a clock that was never shown.
    let acknowledged = answer.number.wrapping_add(1);
    let other = data(request("192.168.203.50:40001", API, ACK_ONLY));
    delivered(&mut lb, &other.numbers(first, acknowledged));
    let time = answer.time.expect("a clock").wrapping_add(1000);
    let echo = [&[1, 1, 8, 10, 0, 0, 0, 9][..], &time.to_be_bytes()].concat();
    let forged = data(answer.segment(0, ACK_ONLY)).tcp_options(&echo);
    reset(&mut lb, &forged, acknowledged, "no_flow");
    // A FIN without data, and a reset.
    reset(
        &mut lb,
        &answer.segment(0, FIN_ACK),
        acknowledged,
        "no_flow",
    );
    delivered(&mut lb, &answer.segment(0, RST_ACK));
    assert!(lb.hellos().is_empty());
    // Two epochs later it is too old.
    begin_epoch(&lb, 9);
    consumed(&mut lb, &data(answer.segment(0, ACK_ONLY)));
    begin_epoch(&lb, 10);
    delivered(&mut lb, &data(answer.segment(0, ACK_ONLY)));
    assert_eq!(lb.hellos().len(), 1);
}

/// Where numbers are guessed, a right one alone opens nothing for a while; with an echo of our clock it does.
#[privileged_test]
fn a_guessed_number_opens_nothing() {
    // Guesses are counted by the CPU that they come to.
    let bound = || {
        cpu::bind(cpu::all().expect("CPUs")[0]).expect("a CPU of this process");
        let mut lb = start();
        let [bare, timed] = [&[][..], &OPTIONS].map(|options| Answer::to(&mut lb, options));
        let [bare, timed, guess] = [&bare, &timed, &bare].map(|answer| {
            let segment = answer.segment(0, ACK_ONLY);
            segment.payload(&hello())
        });
        let guess = guess.numbers(ISN.wrapping_add(1), 7).bytes();
        lb.run(Port::Tenant, &guess, GUESSES.burst * 2 / 5);
        consumed(&mut lb, &bare);
        lb.run(Port::Tenant, &guess, GUESSES.burst * 2);
        assert_dropped(&mut lb, Port::Tenant, &bare.bytes(), "cell_rate");
        consumed(&mut lb, &timed);
        assert_eq!(lb.hellos().len(), 2);
    };
    thread::scope(|scope| scope.spawn(bound).join()).expect("no panic");
}

/// What is no record of TLS goes on as it is, however short, and what its sender has cut off itself.
#[privileged_test]
fn what_no_segment_has_cut_off_goes_to_userspace_at_once() {
    let mut lb = start();
    let answer = Answer::to(&mut lb, &OPTIONS);
    for piece in [b"G", &hello()[..1], &hello()[..59]] {
        consumed(&mut lb, &answer.segment(0, ACK_ONLY).payload(piece));
        assert_eq!(lb.hellos().len(), 1);
    }
}

/// Without a process that takes hellos a client is refused loudly; its SYN is answered, because the process may be back
/// by then.
#[privileged_test]
fn without_a_process_a_hello_is_refused() {
    let mut lb = DataPlane::new(CONFIG);
    let cookies = keys_alone(&lb);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let data = answer.segment(0, ACK_ONLY).payload(&hello());
    reset(&mut lb, &data, answer.number.wrapping_add(1), "no_process");
    cookies.beat();
    consumed(&mut lb, &data);
}

/// What a socket of the cell has goes there, until the client opens another connection from the same port.
#[privileged_test]
fn what_a_socket_has_goes_into_the_cell() {
    let mut lb = start();
    let answer = Answer::to(&mut lb, &OPTIONS);
    let first = answer.segment(0, ACK_ONLY).payload(&hello());
    consumed(&mut lb, &first);
    let key = lb.hellos()[0].head.key;
    let mut sockets = CellSocketMap::open(&lb.maps_folder()).expect("the map of sockets");
    sockets.enter(&key, ISN).expect("an entry");
    delivered(&mut lb, &first);
    delivered(&mut lb, &answer.segment(60, ACK_ONLY).payload(b"more"));
    delivered(&mut lb, &answer.segment(60, FIN_ACK));
    delivered(&mut lb, &answer.segment(60, RST_ONLY));
    // A new connection from there: answered, and known by its number.
    let syn = request(CLIENT_A, API, SYN_ONLY)
        .numbers(5000, 0)
        .tcp_options(&OPTIONS);
    let outcome = lb.receive(Port::Tenant, &syn.bytes());
    let number = Segment::read(&outcome.frame).expect("an answer").sequence;
    delivered(
        &mut lb,
        &answer.segment(60, ACK_ONLY).payload(b"of the earlier one"),
    );
    let next = request(CLIENT_A, API, ACK_ONLY).numbers(5001, number.wrapping_add(1));
    // The cell has no socket for it, and would reset it.
    consumed(&mut lb, &next);
    let first = next.clone().payload(&hello());
    consumed(&mut lb, &first);
    assert_eq!(lb.hellos()[0].head.isn, 5000);
    // Nor has it one for what follows, whatever SYNs come.
    let next = next.numbers(5061, number.wrapping_add(1)).payload(b"more");
    for _ in 0..2 {
        assert_dropped(&mut lb, Port::Tenant, &next.bytes(), "hello_unordered");
        lb.receive(Port::Tenant, &syn.bytes());
    }
    sockets.enter(&key, 5000).expect("an entry");
    delivered(&mut lb, &next);
    sockets.remove(&key);
    let late = answer.segment(60, ACK_ONLY).payload(b"late");
    assert_dropped(&mut lb, Port::Tenant, &late.bytes(), "hello_unordered");
}
