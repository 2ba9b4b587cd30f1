//! ICMP: pings of a VIP, and errors about packets of a flow, to the end that had sent them.

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, icmp, tag, tcp, udp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Outcome, Port, TENANT_NIC},
};

use super::given::*;

const HOST: &str = "192.168.203.50";
const VIP: &str = "192.168.203.110";
const SNAT: &str = "10.32.96.50";
const NODE: &str = "10.32.96.105";
/// A router on the way to a backend, and one on the way to a client.
const HUB_ROUTER: &str = "10.32.100.1";
const TENANT_ROUTER: &str = "10.99.9.9";

const PORT_UNREACHABLE: (u8, u8) = (3, 3);
const TOO_BIG: (u8, u8) = (3, 4);
const TIME_EXCEEDED: (u8, u8) = (11, 0);

/// The first `bytes` bytes of what a frame carries.
fn quote(frame: &Frame, bytes: usize) -> Vec<u8> {
    let whole = frame.bytes();
    whole[14..whole.len().min(14 + bytes)].to_vec()
}

/// An error that a router on the backends' side sends about `sent`.
fn from_hub(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    icmp(HUB_ROUTER, SNAT, kind, rest)
        .between(KAS_MAC, MGMT_NIC)
        .payload(body)
}

/// The same as the client must see it.
fn to_client(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    icmp(VIP, HOST, kind, rest)
        .between(TENANT_NIC, CLIENT)
        .ttl(63)
        .payload(body)
}

/// An error that a router on the clients' side sends.
fn from_tenant(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    icmp(TENANT_ROUTER, VIP, kind, rest)
        .between(CLIENT, TENANT_NIC)
        .payload(body)
}

/// The same as the backend must see it.
fn to_backend(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    icmp(SNAT, NODE, kind, rest)
        .between(MGMT_NIC, KAS_MAC)
        .ttl(63)
        .payload(body)
}

fn assert_becomes(lb: &mut DataPlane, port: Port, sent: &Frame, wanted: &Frame) {
    let network = if port == Port::Mgmt {
        "mgmt"
    } else {
        "tenant-a"
    };
    let wanted = Outcome {
        action: Action::Redirect,
        frame: wanted.bytes(),
        counted: ("nic", network.to_owned(), "forwarded"),
    };
    let found = lb.receive(port, &sent.bytes());
    assert_eq!(check(&found.frame), Ok(()), "{}", Decoded(&found.frame));
    assert_eq!(found, wanted);
}

/// Data of the client of [`establish`] as it sent it, and as we sent it on.
fn request_pair(sequence: u32) -> [Frame; 2] {
    [
        tcp(CLIENT_A, API, ACK_ONLY),
        tcp(&snat(1024), KAS, ACK_ONLY),
    ]
    .map(|frame| {
        let data = frame.numbers(sequence, BACKEND_ISN + 1);
        data.payload(b"GET /version and so on").ttl(63)
    })
}

/// Data of the backend of [`establish`] as it sent it, and as we sent it on.
fn reply_pair(sequence: u32) -> [Frame; 2] {
    [
        tcp(KAS, &snat(1024), ACK_ONLY),
        tcp(API, CLIENT_A, ACK_ONLY),
    ]
    .map(|frame| {
        let data = frame.numbers(sequence, CLIENT_ISN + 1);
        data.payload(&[0x5a; 1400]).ttl(63)
    })
}

#[privileged_test]
fn a_ping_of_a_vip_is_answered_by_the_vip() {
    let mut lb = DataPlane::new(CONFIG);
    for length in [0, 1, 2, 56, 1400, 1472] {
        let body: Vec<u8> = (0..=250).cycle().take(length).collect();
        for ttl in [1, 64, 255] {
            let ping = icmp(HOST, VIP, (8, 0), 0x1234_0007)
                .between(CLIENT, TENANT_NIC)
                .ttl(ttl)
                .payload(&body);
            let wanted = icmp(VIP, HOST, (0, 0), 0x1234_0007).between(TENANT_NIC, CLIENT);
            let wanted = Outcome {
                action: Action::Transmit,
                frame: wanted.payload(&body).bytes(),
                counted: ("nic", "tenant-a".to_owned(), "transmitted"),
            };
            assert_eq!(lb.receive(Port::Tenant, &ping.bytes()), wanted);
        }
    }
}

#[privileged_test]
fn a_ping_keeps_its_options_and_a_wrong_checksum_stays_wrong() {
    let mut lb = DataPlane::new(CONFIG);
    let ping = icmp(HOST, VIP, (8, 0), 7)
        .between(CLIENT, TENANT_NIC)
        .options(&[1, 1, 1, 0])
        .payload(b"abc");
    let wanted = icmp(VIP, HOST, (0, 0), 7)
        .between(TENANT_NIC, CLIENT)
        .options(&[1, 1, 1, 0])
        .payload(b"abc")
        .bytes();
    let outcome = lb.receive(Port::Tenant, &ping.bytes());
    assert_eq!((outcome.action, outcome.frame), (Action::Transmit, wanted));
    let mut broken = ping.bytes();
    *broken.last_mut().expect("a byte") ^= 0x10;
    let outcome = lb.receive(Port::Tenant, &broken);
    assert_eq!(outcome.action, Action::Transmit);
    assert!(check(&outcome.frame).is_err());
}

#[privileged_test]
fn a_ping_from_a_tagged_network_is_answered_with_its_tag() {
    let config = CONFIG.replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let mut lb = DataPlane::new(&config);
    let ping = icmp(HOST, VIP, (8, 0), 7).between(CLIENT, TENANT_NIC);
    let outcome = lb.receive(Port::Tenant, &tag(&ping.bytes(), 2003));
    assert_eq!(outcome.action, Action::Transmit);
    let (tci, answer) = untagged(&outcome.frame);
    let wanted = icmp(VIP, HOST, (0, 0), 7).between(TENANT_NIC, CLIENT);
    assert_eq!((tci, answer), (Some(2003), wanted.bytes()));
}

/// Whoever may open flows may ping, and nobody else; a service's own rules say nothing about the
/// address.
#[privileged_test]
fn a_ping_from_nowhere_is_not_answered() {
    let mut lb = DataPlane::new(CONFIG);
    let cases = [
        ("127.0.0.1", VIP, "bogon"),
        ("224.0.0.5", VIP, "bogon"),
        ("192.168.204.1", VIP, "spoofed"),
        (VIP, VIP, "spoofed"),
        (HOST, "192.168.203.111", "not_declared"),
    ];
    for (source, destination, reason) in cases {
        let ping = icmp(source, destination, (8, 0), 7).between(CLIENT, TENANT_NIC);
        assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), reason);
    }
    let group = Mac::new([3, 0, 0, 0, 0xc, 1]);
    let ping = icmp(HOST, VIP, (8, 0), 7).between(group, TENANT_NIC);
    assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), "group_source");
    let ping = icmp(NODE, SNAT, (8, 0), 7).between(KAS_MAC, MGMT_NIC);
    assert_dropped(&mut lb, Port::Mgmt, &ping.bytes(), "unsupported_protocol");
}

/// About a thousand at once for each CPU, and none of the refusals that others wait for.
#[privileged_test]
fn pings_have_a_rate_of_their_own() {
    let mut lb = DataPlane::new(CONFIG);
    let ping = icmp(HOST, VIP, (8, 0), 7).between(CLIENT, TENANT_NIC);
    let bytes = ping.bytes();
    let mut answered = 0;
    for _ in 0..20_000 {
        let ((action, _), _) = lb.run(Port::Tenant, &bytes, 1);
        answered += u32::from(action == Action::Transmit);
    }
    assert!((1000..20_000).contains(&answered), "{answered} of 20000");
    let counters = lb.counters();
    let count = |verdict| counters[&("nic", "tenant-a".to_owned(), verdict)];
    assert_eq!(count("transmitted"), u64::from(answered));
    assert_eq!(count("rate_limited") + count("transmitted"), 20_000);
    let stray = request(CLIENT_A, API, ACK_ONLY).numbers(1000, 5000).bytes();
    for _ in 0..100 {
        lb.run(Port::Tenant, &bytes, 1);
        lb.run(Port::Tenant, &bytes, 1);
        let ((action, _), _) = lb.run(Port::Tenant, &stray, 1);
        assert_eq!(action, Action::Transmit);
    }
}

/// The client of a flow is told by the VIP, whoever on the backends' side found the error; it sees
/// the packet that it had sent, as far as it is quoted.
#[privileged_test]
fn an_error_about_a_request_reaches_its_client() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [as_sent, as_forwarded] = request_pair(CLIENT_ISN + 1);
    // Eight bytes of TCP; up to the byte before its checksum; with it; all of it.
    for bytes in [28, 37, 38, 40, 62] {
        for (kind, rest) in [(TOO_BIG, 1280), (TIME_EXCEEDED, 0), ((12, 0), 0x0900_0000)] {
            let sent = from_hub(kind, rest, &quote(&as_forwarded, bytes));
            let mut body = quote(&as_sent, bytes);
            if bytes == 37 {
                // Half of the checksum is there: it stays as it was quoted.
                body[36] = quote(&as_forwarded, bytes)[36];
            }
            assert_becomes(&mut lb, Port::Mgmt, &sent, &to_client(kind, rest, &body));
        }
    }
}

#[privileged_test]
fn an_error_about_a_reply_reaches_its_backend() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [as_sent, as_forwarded] = reply_pair(BACKEND_ISN + 1);
    for bytes in [28, 38, 40, 62] {
        for (kind, rest) in [(TOO_BIG, 1280), (TIME_EXCEEDED, 0)] {
            let sent = from_tenant(kind, rest, &quote(&as_forwarded, bytes));
            let wanted = to_backend(kind, rest, &quote(&as_sent, bytes));
            assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
        }
    }
}

/// A backend keeps the MTU of a path by its destination, a SNAT address, which all clients share: so what a
/// client's side says of it is bounded, and no error is believed about what fits.
#[privileged_test]
fn no_mtu_below_the_floor_reaches_a_backend() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_B).payload(b"who?"));
    let segment = |bytes: usize| {
        [
            tcp(KAS, &snat(1024), ACK_ONLY),
            tcp(API, CLIENT_A, ACK_ONLY),
        ]
        .map(|frame| {
            let data = frame.numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
            data.payload(&vec![7; bytes - 40]).ttl(63)
        })
    };
    let datagram = |bytes: usize| {
        [udp(RESOLVER, &snat(1025)), udp(DNS, CLIENT_B)]
            .map(|frame| frame.payload(&vec![7; bytes - 28]).ttl(63))
    };
    // The MTU that is said, the length of what is quoted, and the MTU that the backend hears of.
    let cases: [(u32, usize, Option<u32>); 14] = [
        (0, 1500, Some(1280)),
        (1, 1281, Some(1280)),
        (68, 1500, Some(1280)),
        (552, 1281, Some(1280)),
        (1279, 1500, Some(1280)),
        (1280, 1281, Some(1280)),
        (1400, 1500, Some(1400)),
        (1499, 1500, Some(1499)),
        (1500, 1500, None),
        (1501, 1500, None),
        (65_535, 1500, None),
        (1280, 1280, None),
        (68, 1280, None),
        (0, 100, None),
    ];
    let mut raised = 0;
    for (said, bytes, heard) in cases {
        // What stands beside the MTU stays (RFC 4884 section 4.1).
        for beside in [0, 0x0020_0000] {
            let both = [
                (segment(bytes), to_backend as fn(_, _, &[u8]) -> _),
                (datagram(bytes), to_resolver),
            ];
            for ([as_sent, as_forwarded], wanted) in both {
                let sent = from_tenant(TOO_BIG, beside | said, &quote(&as_forwarded, 40));
                let Some(heard) = heard else {
                    assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "mtu_implausible");
                    continue;
                };
                let wanted = wanted(TOO_BIG, beside | heard, &quote(&as_sent, 40));
                let ((action, frame), _) = lb.run(Port::Tenant, &sent.bytes(), 1);
                assert_eq!(check(&frame), Ok(()), "{}", Decoded(&frame));
                assert_eq!(
                    (action, frame),
                    (Action::Redirect, wanted.bytes()),
                    "{said}"
                );
                raised += u64::from(heard != said);
                assert_eq!(noted(&lb, "tenant-a"), raised, "{said}");
            }
        }
    }
    assert!(raised > 0);
    // Other errors have other things there.
    let [as_sent, as_forwarded] = segment(1500);
    for (kind, rest) in [
        ((3, 1), 68),
        ((3, 0), 0),
        (TIME_EXCEEDED, 68),
        ((12, 0), 68),
    ] {
        let sent = from_tenant(kind, rest, &quote(&as_forwarded, 40));
        let wanted = to_backend(kind, rest, &quote(&as_sent, 40));
        assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    }
    // A client is alone with its flow: what the backends' side says stays as it is.
    let [as_sent, as_forwarded] = request_pair(CLIENT_ISN + 1);
    for said in [0, 68, 1500] {
        let sent = from_hub(TOO_BIG, said, &quote(&as_forwarded, 40));
        let wanted = to_client(TOO_BIG, said, &quote(&as_sent, 40));
        assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    }
    assert_eq!(noted(&lb, "tenant-a"), raised);
    assert_eq!(noted(&lb, "mgmt"), 0);
}

/// How many errors of a network had their MTU raised.
fn noted(lb: &DataPlane, network: &str) -> u64 {
    let noted = ("nic", network.to_owned(), "icmp_floor");
    lb.counters().get(&noted).copied().unwrap_or_default()
}

/// What the resolver must see of an error about its datagram.
fn to_resolver(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let wanted = icmp(SNAT, "10.32.96.106", kind, rest).between(MGMT_NIC, RESOLVER_MAC);
    wanted.ttl(63).payload(body)
}

#[privileged_test]
fn an_error_about_a_datagram_is_translated_with_and_without_checksum() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A).payload(b"who?"));
    let bare = |frame: Frame, checksum: bool| {
        let frame = frame.ttl(63).payload(b"who?");
        if checksum {
            frame
        } else {
            frame.without_checksum()
        }
    };
    for checksum in [true, false] {
        let as_sent = bare(udp(CLIENT_A, DNS), checksum);
        let as_forwarded = bare(udp(&snat(1024), RESOLVER), checksum);
        for bytes in [28, 32] {
            let sent = from_hub(PORT_UNREACHABLE, 0, &quote(&as_forwarded, bytes));
            let wanted = to_client(PORT_UNREACHABLE, 0, &quote(&as_sent, bytes));
            assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
        }
        let as_sent = bare(udp(RESOLVER, &snat(1024)), checksum);
        let as_forwarded = bare(udp(DNS, CLIENT_A), checksum);
        let sent = from_tenant(PORT_UNREACHABLE, 0, &quote(&as_forwarded, 28));
        let wanted = to_resolver(PORT_UNREACHABLE, 0, &quote(&as_sent, 28));
        assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    }
}

/// IP options in the quote and around the error, and an extension behind the quote (RFC 4884).
#[privileged_test]
fn options_and_extensions_are_carried() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for options in [&[1; 4][..], &[1; 40]] {
        let [as_sent, as_forwarded] =
            request_pair(CLIENT_ISN + 1).map(|frame| frame.options(options));
        for bytes in [28, 38] {
            let bytes = bytes + options.len();
            let sent = from_hub(TOO_BIG, 1400, &quote(&as_forwarded, bytes));
            let wanted = to_client(TOO_BIG, 1400, &quote(&as_sent, bytes));
            assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
            let (sent, wanted) = (sent.options(options), wanted.options(options));
            assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
        }
    }
    let [as_sent, as_forwarded] = request_pair(CLIENT_ISN + 1);
    let extended = |frame: &Frame| {
        let mut body = quote(frame, 128);
        body.resize(128, 0);
        // Version 2; an MPLS label stack of one entry.
        body.extend([0x20, 0, 0, 0, 0, 8, 1, 1, 0, 0x10, 0x11, 0xff]);
        body
    };
    let length = 32 << 16;
    let sent = from_hub(TIME_EXCEEDED, length, &extended(&as_forwarded));
    let wanted = to_client(TIME_EXCEEDED, length, &extended(&as_sent));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
}

/// RFC 5508: an error changes no flow. It goes where the flow's packets go.
#[privileged_test]
fn an_error_leaves_the_flow_as_it_is() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.last_seen = 5;
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    let [as_sent, as_forwarded] = request_pair(CLIENT_ISN + 1);
    let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, 28));
    let wanted = to_client(TOO_BIG, 1280, &quote(&as_sent, 28));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let [as_sent, as_forwarded] = reply_pair(BACKEND_ISN + 1);
    let router = Mac::new([2, 0, 0, 0, 0xc, 9]);
    let sent = from_tenant(TOO_BIG, 1280, &quote(&as_forwarded, 28)).between(router, TENANT_NIC);
    let wanted = to_backend(TOO_BIG, 1280, &quote(&as_sent, 28));
    assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
}

/// Sequence numbers of either direction: from one before what the other end has acknowledged on.
#[privileged_test]
fn only_a_number_that_may_be_in_flight_is_believed() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let window = 1 << 24;
    for (offset, believed) in [(-2, false), (-1, true), (0, true), (1_000_000, true)]
        .into_iter()
        .chain([(window - 2, true), (window - 1, false), (1 << 30, false)])
    {
        let [as_sent, as_forwarded] = request_pair((CLIENT_ISN + 1).wrapping_add_signed(offset));
        let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, 28));
        let wanted = to_client(TOO_BIG, 1280, &quote(&as_sent, 28));
        judge(&mut lb, Port::Mgmt, &sent, &wanted, believed);
        let [as_sent, as_forwarded] = reply_pair((BACKEND_ISN + 1).wrapping_add_signed(offset));
        let sent = from_tenant(TOO_BIG, 1280, &quote(&as_forwarded, 28));
        let wanted = to_backend(TOO_BIG, 1280, &quote(&as_sent, 28));
        judge(&mut lb, Port::Tenant, &sent, &wanted, believed);
    }
}

fn judge(lb: &mut DataPlane, port: Port, sent: &Frame, wanted: &Frame, believed: bool) {
    if believed {
        assert_becomes(lb, port, sent, wanted);
    } else {
        assert_dropped(lb, port, &sent.bytes(), "icmp_unrelated");
    }
}

/// A SYN, before anybody answered it, and the SYN-ACK: a client that cannot be served learns why.
#[privileged_test]
fn the_first_segments_of_a_flow_may_be_quoted() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let [as_sent, as_forwarded] = [
        tcp(CLIENT_A, API, SYN_ONLY),
        tcp(&snat(1024), KAS, SYN_ONLY),
    ]
    .map(|frame| frame.numbers(CLIENT_ISN, 0).ttl(63));
    let sent = from_hub((3, 1), 0, &quote(&as_forwarded, 28));
    let wanted = to_client((3, 1), 0, &quote(&as_sent, 28));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let numbers = (BACKEND_ISN, CLIENT_ISN + 1);
    let syn_ack = reply(1024, SYN_ACK).numbers(numbers.0, numbers.1);
    forwarded(&mut lb, Port::Mgmt, &syn_ack);
    let [as_sent, as_forwarded] = [tcp(KAS, &snat(1024), SYN_ACK), tcp(API, CLIENT_A, SYN_ACK)]
        .map(|frame| frame.numbers(numbers.0, numbers.1).ttl(63));
    let sent = from_tenant(TIME_EXCEEDED, 0, &quote(&as_forwarded, 28));
    let wanted = to_backend(TIME_EXCEEDED, 0, &quote(&as_sent, 28));
    assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
}

/// An error that quotes anything but a packet of ours of a flow that translates.
#[privileged_test]
fn an_error_about_no_flow_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let number = CLIENT_ISN + 1;
    let hub = [
        // Another backend, another port of it, another protocol, no flow, no port of flows.
        tcp(&snat(1024), "10.32.96.106:30918", ACK_ONLY),
        tcp(&snat(1024), "10.32.96.105:30919", ACK_ONLY),
        udp(&snat(1024), KAS),
        tcp(&snat(1025), KAS, ACK_ONLY),
        tcp(&snat(1023), KAS, ACK_ONLY),
        // Not sent by whom the error is for.
        tcp("10.32.96.51:1024", KAS, ACK_ONLY),
        // Not the first fragment: no ports.
        tcp(&snat(1024), KAS, ACK_ONLY).fragment(0x2001),
    ];
    for frame in hub {
        let sent = from_hub(TOO_BIG, 1280, &quote(&frame.numbers(number, 0), 40));
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
    }
    let tenant = [
        tcp(API, CLIENT_B, ACK_ONLY),
        tcp(API, "192.168.203.50:40001", ACK_ONLY),
        tcp("192.168.203.110:6444", CLIENT_A, ACK_ONLY),
        tcp("192.168.203.111:6443", CLIENT_A, ACK_ONLY),
        udp(API, CLIENT_A),
    ];
    for frame in tenant {
        let body = quote(&frame.numbers(BACKEND_ISN + 1, 0), 40);
        let sent = from_tenant(TOO_BIG, 1280, &body);
        assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "icmp_unrelated");
    }
    let mut other = quote(&request_pair(number)[1], 40);
    other[9] = 1;
    let sent = from_hub(TOO_BIG, 1280, &other);
    assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
    // The flow is there all the same, until userspace ends it.
    let [as_sent, as_forwarded] = request_pair(number);
    let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, 40));
    let wanted = to_client(TOO_BIG, 1280, &quote(&as_sent, 40));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = lb_common::conntrack::FlowState::from_raw(flow.word)
        .end()
        .raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
}

#[privileged_test]
fn what_nobody_acts_on_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let body = quote(&request_pair(CLIENT_ISN + 1)[1], 40);
    let cases = [
        ((5, 1), "icmp_unrelated"),
        ((4, 0), "icmp_unrelated"),
        ((0, 0), "unsupported_protocol"),
        ((13, 0), "unsupported_protocol"),
        ((8, 1), "unsupported_protocol"),
    ];
    for (kind, reason) in cases {
        let sent = from_hub(kind, 0, &body);
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), reason);
        let ping = icmp(HOST, VIP, kind, 0).between(CLIENT, TENANT_NIC);
        assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), reason);
    }
    let error = from_hub(TOO_BIG, 1280, &body);
    for ttl in [0, 1] {
        let bytes = error.clone().ttl(ttl).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "ttl_expired");
    }
    for field in [0x2000, 0x0001] {
        let bytes = error.clone().fragment(field).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "fragment");
        let ping = icmp(HOST, VIP, (8, 0), 7).between(CLIENT, TENANT_NIC);
        let bytes = ping.fragment(field).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "fragment");
    }
}

/// Every length below the least that an error must quote, and header lengths that lie.
#[privileged_test]
fn an_error_that_quotes_too_little_is_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [_, as_forwarded] = request_pair(CLIENT_ISN + 1);
    for bytes in 0..28 {
        let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, bytes));
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "malformed");
        // Padding is no quote.
        let padded = [sent.bytes(), vec![0; 40]].concat();
        assert_dropped(&mut lb, Port::Mgmt, &padded, "malformed");
    }
    for version_ihl in [0x44, 0x46, 0x65] {
        let mut body = quote(&as_forwarded, 28);
        body[0] = version_ihl;
        let sent = from_hub(TOO_BIG, 1280, &body);
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "malformed");
    }
    let whole = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, 28)).bytes();
    for length in 14..whole.len() {
        assert_dropped(&mut lb, Port::Mgmt, &whole[..length], "malformed");
    }
    let ping = icmp(HOST, VIP, (8, 0), 7)
        .between(CLIENT, TENANT_NIC)
        .bytes();
    for length in 14..ping.len() {
        assert_dropped(&mut lb, Port::Tenant, &ping[..length], "malformed");
    }
}
