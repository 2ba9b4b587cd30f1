//! Backends that get a header of the PROXY protocol in front of a bound client's hello: see [`bind`](super::bind).

use std::time::{SystemTime, UNIX_EPOCH};

use lb_common::wire::header::{ACK, PSH};
use lb_tests::{
    frames::{
        packet::{Frame, check, flags::*, tcp},
        segment::Segment,
    },
    product::program::{Action, DataPlane, MGMT_NIC, Port},
    traffic::hello::named,
};

use super::{
    bind::{BACKEND, CLOCK, CONFIG, NUMBER, TIME, from_backend, hello, receive},
    bind_two::{long_hello, segments},
    cookies::{Answer, ISN, OPTIONS, start_with},
    given::{KAS_MAC, passed_on},
};

/// The backend's options: those of Linux with another scale.
const AGREED: [u8; 20] = [
    2, 4, 5, 0xb4, 4, 2, 8, 10, 0x50, 0, 0, 0, 1, 2, 3, 5, 1, 3, 3, 9,
];
/// Bytes of the header for `a.lab`, but for those of the port in its id.
const BYTES: u32 = 28 + 3 + 5 + 3 + 11 + 1 + 1 + 13;

/// With the header.
fn config() -> String {
    CONFIG.replace(
        "kas:   { network: mgmt,",
        "kas:   { network: mgmt, proxy_protocol: v2,",
    )
}

/// A flow whose backend has got its SYN.
struct Opened {
    lb: DataPlane,
    answer: Answer,
    /// The SNAT end.
    port: String,
    /// Bytes of the header.
    header: u32,
    /// What the backend has sent, and the client has not got.
    sent: u32,
}

impl Opened {
    /// By a client that has said its name in one segment; the frame of the SYN.
    fn named() -> (Self, Vec<u8>) {
        let mut lb = start_with(&config());
        let answer = Answer::to(&mut lb, &OPTIONS);
        let frame = passed_on(&mut lb, Port::Tenant, &hello(&answer, "a.lab").bytes());
        check(&frame).expect("right checksums");
        let syn = Segment::read(&frame).expect("a SYN");
        assert_eq!((syn.flags, syn.payload), (SYN_ONLY, 0));
        assert_eq!(syn.to.to_string(), BACKEND);
        let digits = syn.from.port().to_string().len();
        let header = BYTES + u32::try_from(digits).expect("a short port");
        assert_eq!(syn.sequence, ISN.wrapping_sub(header));
        let flow = Self {
            lb,
            answer,
            port: syn.from.to_string(),
            header,
            sent: 0,
        };
        (flow, frame)
    }

    fn syn_ack(&mut self) -> Vec<u8> {
        let behind_syn = ISN.wrapping_sub(self.header).wrapping_add(1);
        let frame = from_backend(&self.port, SYN_ACK, NUMBER, behind_syn).tcp_options(&AGREED);
        self.transmitted(&frame)
    }

    /// A bare segment of the backend that acknowledges all but so many bytes of the header.
    fn reply(&self, flags: u8, behind: u32) -> Frame {
        let number = ISN.wrapping_add(1).wrapping_sub(behind);
        let times = [&[1, 1, 8, 10][..], &(CLOCK + 3).to_be_bytes(), &TIME].concat();
        let sequence = NUMBER + 1 + self.sent;
        from_backend(&self.port, flags, sequence, number).tcp_options(&times)
    }

    /// What a segment of the backend becomes that is not the flow's yet.
    fn transmitted(&mut self, frame: &Frame) -> Vec<u8> {
        let sent = receive(&mut self.lb, Port::Mgmt, &frame.bytes());
        assert_eq!(
            (sent.action, &sent.counted[..]),
            (Action::Transmit, &["transmitted"][..])
        );
        sent.frame
    }

    /// The header, as it should be, behind this clock of the backend; its id has the time of now.
    fn assert_header(&self, frame: &[u8], clock: u32) {
        let name = "a.lab";
        self.assert_sent(frame, ISN.wrapping_add(1).wrapping_sub(self.header), clock);
        let (fixed, id) = frame[66..].split_at(28 + 3 + name.len() + 3);
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0".to_vec();
        expected.push(u8::try_from(self.header - 16).expect("a short header"));
        expected.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        expected.extend([0x9c, 0x40, 0x19, 0x2b]);
        expected.extend([2, 0, u8::try_from(name.len()).expect("a short name")]);
        expected.extend(name.as_bytes());
        expected.extend([5, 0, u8::try_from(id.len()).expect("a short id")]);
        assert_eq!(fixed, expected);
        let id = str::from_utf8(id).expect("an id");
        let (snat, time) = id.split_once('-').expect("an id");
        assert_eq!(snat, self.port);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time");
        let time: u128 = time.parse().expect("a time");
        assert!(now.as_millis().abs_diff(time) < 5_000, "{id}");
    }

    /// A segment to the backend with this number, and the backend's latest clock.
    fn assert_sent(&self, frame: &[u8], sequence: u32, clock: u32) {
        check(frame).expect("right checksums");
        let sent = Segment::read(frame).expect("a segment");
        let ends = (sent.from.to_string(), sent.to.to_string());
        assert_eq!(ends, (self.port.clone(), BACKEND.to_owned()));
        assert_eq!(
            (sent.flags, sent.sequence, sent.acknowledgment),
            (PSH | ACK, sequence, NUMBER + 1)
        );
        let times = [&[1, 1, 8, 10][..], &TIME, &clock.to_be_bytes()].concat();
        assert_eq!(frame[54..66], times);
    }

    /// The ACK of the header, which may say something itself, becomes the first segment of the hello, with this data.
    fn meet(&mut self, said: &[u8], data: &[u8]) {
        let ack = self.reply(ACK_ONLY, 0).payload(said);
        let met = receive(&mut self.lb, Port::Mgmt, &ack.bytes());
        assert_eq!(
            (met.action, &met.counted[..]),
            (Action::Transmit, &["transmitted", "bound"][..])
        );
        self.assert_sent(&met.frame, ISN.wrapping_add(1), CLOCK + 3);
        assert_eq!(met.frame[66..], *data);
    }
}

/// Byte by byte: the SYN has the client's number less the header's bytes, the SYN-ACK becomes the header, the ACK of that the
/// hello; from then on each end has what it has without a header.
#[privileged_test]
fn a_header_comes_in_front_of_the_hello() {
    let (mut flow, _) = Opened::named();
    let header = flow.syn_ack();
    flow.assert_header(&header, CLOCK);
    let data = named(b"a.lab");
    flow.meet(b"", &data);
    let behind = u32::try_from(data.len()).expect("a short hello");
    let reply = flow.reply(ACK_ONLY, 0_u32.wrapping_sub(behind));
    let reply = reply.payload(b"server hello").window(100);
    let reply = passed_on(&mut flow.lb, Port::Mgmt, &reply.bytes());
    let reply = Segment::read(&reply).expect("a segment");
    let next = ISN.wrapping_add(1).wrapping_add(behind);
    assert_eq!(
        (reply.sequence, reply.acknowledgment),
        (flow.answer.number.wrapping_add(1), next)
    );
    let ack = flow.answer.segment(behind, ACK_ONLY);
    let ack = ack.numbers(next, flow.answer.number.wrapping_add(13));
    let ack = passed_on(&mut flow.lb, Port::Tenant, &ack.bytes());
    let ack = Segment::read(&ack).expect("a segment");
    assert_eq!((ack.sequence, ack.acknowledgment), (next, NUMBER + 13));
    assert!(flow.lb.hellos().is_empty());
}

/// As long as the backend has not acknowledged it, the client's hello is the SYN again; what the backend answers, or a SYN-ACK that it
/// repeats, is the header again. What else it says is kept from the client.
#[privileged_test]
fn a_lost_header_is_sent_again() {
    let (mut flow, syn) = Opened::named();
    let first = flow.syn_ack();
    let again = hello(&flow.answer, "a.lab");
    for _ in 0..2 {
        let sent = passed_on(&mut flow.lb, Port::Tenant, &again.bytes());
        assert_eq!(sent, syn);
        let challenge = flow.reply(ACK_ONLY, flow.header);
        let repeated = flow.transmitted(&challenge);
        flow.assert_header(&repeated, CLOCK + 3);
        assert_eq!(repeated[..12], first[..12], "stations");
        let repeated = flow.syn_ack();
        flow.assert_header(&repeated, CLOCK);
    }
    let early = [
        flow.reply(ACK_ONLY, flow.header - 1),
        flow.reply(ACK_ONLY, 1),
        flow.reply(ACK_ONLY, flow.header).payload(b"220 mail"),
    ];
    for segment in early {
        let kept = receive(&mut flow.lb, Port::Mgmt, &segment.bytes());
        assert_eq!(
            (kept.action, &kept.counted[..]),
            (Action::Drop, &["consumed"][..])
        );
    }
    flow.sent = 8;
    flow.meet(b"", &named(b"a.lab"));
    assert!(flow.lb.hellos().is_empty());
}

/// Both segments of a hello follow the header; the second one by the ACK of the first.
#[privileged_test]
fn a_header_comes_in_front_of_two_segments() {
    let whole = long_hello();
    let mut lb = start_with(&config().replace(
        "interface: eth1,",
        "interface: eth1, second_segment: on_ack,",
    ));
    let answer = Answer::to(&mut lb, &OPTIONS);
    let [first, second] = segments(&answer, &whole);
    receive(&mut lb, Port::Tenant, &first.bytes());
    let syn = passed_on(&mut lb, Port::Tenant, &second.bytes());
    let syn = Segment::read(&syn).expect("a SYN");
    let mut flow = Opened {
        lb,
        answer,
        port: syn.from.to_string(),
        header: ISN.wrapping_sub(syn.sequence),
        sent: 0,
    };
    let header = flow.syn_ack();
    flow.assert_header(&header, CLOCK);
    flow.meet(b"220 mail", &whole[..1448]);
    let ack = flow.reply(ACK_ONLY, 0_u32.wrapping_sub(1448));
    let rest = flow.transmitted(&ack);
    flow.assert_sent(&rest, ISN.wrapping_add(1449), CLOCK + 3);
    assert_eq!(rest[66..], whole[1448..]);
}

/// A backend that does not like the header, and resets or ends the connection: the process has the hello. A client that leaves
/// takes its connection back.
#[privileged_test]
fn a_flow_may_end_behind_its_header() {
    for (flags, counted) in [
        (RST_ACK, ["refused_by_backend", "unanswered"]),
        (FIN_ACK, ["refused: no_flow", "unanswered"]),
    ] {
        let (mut flow, _) = Opened::named();
        flow.syn_ack();
        let end = flow.reply(flags, 0);
        let ended = receive(&mut flow.lb, Port::Mgmt, &end.bytes());
        assert_eq!(ended.counted, counted);
        let hellos = flow.lb.hellos();
        assert_eq!(hellos.len(), 1);
        assert_eq!(hellos[0].bytes, named(b"a.lab"));
    }
    let length = u32::try_from(named(b"a.lab").len()).expect("a short hello");
    for is_answered in [false, true] {
        let (mut flow, _) = Opened::named();
        if is_answered {
            flow.syn_ack();
        }
        let reset = flow.answer.segment(length, RST_ONLY);
        let left = receive(&mut flow.lb, Port::Tenant, &reset.bytes());
        assert_eq!(left.counted, ["forwarded"]);
        let sent = Segment::read(&left.frame).expect("a reset");
        let awaited = ISN.wrapping_add(1);
        let awaited = match is_answered {
            true => awaited,
            false => awaited.wrapping_sub(flow.header),
        };
        assert_eq!((sent.flags, sent.sequence), (RST_ONLY, awaited));
        assert!(flow.lb.hellos().is_empty());
    }
}

/// A backend that refuses is followed by another one, whose SYN has room for the header, and which gets it.
#[privileged_test]
fn the_next_backend_gets_the_header_too() {
    const OTHER: &str = "10.32.96.106:30918";
    let one = format!("{BACKEND:?}");
    let two = config().replacen(&one, &format!("{one}, {OTHER:?}"), 1);
    let mut lb = start_with(&two);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let first = passed_on(&mut lb, Port::Tenant, &hello(&answer, "a.lab").bytes());
    let first = Segment::read(&first).expect("a SYN");
    let port = first.from.to_string();
    let from = |backend: &str, flags, sequence| {
        tcp(backend, &port, flags)
            .between(KAS_MAC, MGMT_NIC)
            .numbers(sequence, first.sequence.wrapping_add(1))
    };
    let refusal = from(&first.to.to_string(), RST_ACK, 0);
    let refused = receive(&mut lb, Port::Mgmt, &refusal.bytes());
    check(&refused.frame).expect("right checksums");
    let second = Segment::read(&refused.frame).expect("a SYN");
    assert_eq!((second.flags, second.sequence), (SYN_ONLY, first.sequence));
    assert_eq!(second.from, first.from);
    assert_ne!(second.to, first.to);
    let met = from(&second.to.to_string(), SYN_ACK, NUMBER).tcp_options(&AGREED);
    let header = receive(&mut lb, Port::Mgmt, &met.bytes());
    let sent = Segment::read(&header.frame).expect("a header");
    assert_eq!(
        (sent.sequence, sent.to),
        (first.sequence.wrapping_add(1), second.to)
    );
    assert_eq!(header.frame[66..78], *b"\r\n\r\n\0\r\nQUIT\n");
}
