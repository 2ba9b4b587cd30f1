//! ICMPv6: pings of a VIP, and errors about packets of a flow, to the end that had sent them.

use lb_common::addr::Mac;
use lb_tests::frames::{
    packet::Decoded,
    six::{Extension, check},
};

use super::given::*;

/// A router on the way to a backend, and one on the way to a client.
const HUB_ROUTER: &str = "fd00:40::1";
const TENANT_ROUTER: &str = "fd00:99::9";

const PING: (u8, u8) = (128, 0);
const PONG: (u8, u8) = (129, 0);
const NO_ROUTE: (u8, u8) = (1, 0);
const PORT_UNREACHABLE: (u8, u8) = (1, 4);
const TOO_BIG: (u8, u8) = (2, 0);
const TIME_EXCEEDED: (u8, u8) = (3, 0);
const PARAMETER: (u8, u8) = (4, 1);

/// Bytes of a quote: the IPv6 header and eight bytes of layer 4.
const LEAST: usize = 48;

/// The first `bytes` bytes of what a frame carries.
fn quote(frame: &Frame, bytes: usize) -> Vec<u8> {
    let mut packet = frame.packet();
    packet.truncate(bytes);
    packet
}

/// An error that a router on the backends' side sends.
fn from_hub(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(HUB_ROUTER, SNAT, kind, rest).payload(body);
    error.between(KAS_MAC, MGMT_NIC)
}

/// The same as the client must see it.
fn to_client(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(VIP, HOST, kind, rest).payload(body).ttl(63);
    error.between(TENANT_NIC, CLIENT)
}

/// An error that a router on the clients' side sends.
fn from_tenant(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(TENANT_ROUTER, VIP, kind, rest).payload(body);
    error.between(CLIENT, TENANT_NIC)
}

/// The same as the backend must see it.
fn to_backend(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(SNAT, NODE, kind, rest).payload(body).ttl(63);
    error.between(MGMT_NIC, KAS_MAC)
}

fn assert_becomes(lb: &mut DataPlane, port: Port, sent: &Frame, wanted: &Frame) {
    let found = forwarded(lb, port, sent);
    assert_frame(&found, wanted);
}

/// Data of the client of [`establish`] as it sent it, and as we sent it on.
fn request_pair(sequence: u32) -> [Frame; 2] {
    let ends = [(CLIENT_A.to_owned(), API), (snat(1024), KAS)];
    ends.map(|(from, to)| {
        let data = tcp(&from, to, ACK_ONLY).numbers(sequence, BACKEND_ISN + 1);
        data.payload(b"GET /version and so on").ttl(63)
    })
}

/// Data of the backend of [`establish`] as it sent it, and as we sent it on.
fn reply_pair(sequence: u32) -> [Frame; 2] {
    let ends = [(KAS, snat(1024)), (API, CLIENT_A.to_owned())];
    ends.map(|(from, to)| {
        let data = tcp(from, &to, ACK_ONLY).numbers(sequence, CLIENT_ISN + 1);
        data.payload(&[0x5a; 1400]).ttl(63)
    })
}

#[privileged_test]
fn a_ping_of_a_vip_is_answered_by_the_vip() {
    let mut lb = DataPlane::new(CONFIG);
    for length in [0, 1, 2, 56, 1400, 1452] {
        let body: Vec<u8> = (0..=250).cycle().take(length).collect();
        for hops in [1, 64, 255] {
            let ping = icmp(HOST, VIP, PING, 0x1234_0007)
                .between(CLIENT, TENANT_NIC)
                .class_and_label(0, 0x54321)
                .ttl(hops)
                .payload(&body);
            let outcome = lb.receive(Port::Tenant, &ping.bytes());
            assert_eq!(
                (outcome.action, outcome.counted),
                (
                    Action::Transmit,
                    ("nic", "tenant-a".to_owned(), "transmitted")
                )
            );
            // The flow label of an answer is its sender's to choose.
            let mut answer = outcome.frame;
            answer[15] &= 0xf0;
            answer[16..18].fill(0);
            let wanted = icmp(VIP, HOST, PONG, 0x1234_0007).payload(&body);
            assert_frame(&answer, &wanted.between(TENANT_NIC, CLIENT));
        }
    }
}

#[privileged_test]
fn a_pings_wrong_checksum_stays_wrong() {
    let mut lb = DataPlane::new(CONFIG);
    let ping = icmp(HOST, VIP, PING, 7).between(CLIENT, TENANT_NIC);
    let mut broken = ping.payload(b"abc").bytes();
    *broken.last_mut().expect("a byte") ^= 0x10;
    let outcome = lb.receive(Port::Tenant, &broken);
    assert_eq!(outcome.action, Action::Transmit);
    assert!(check(&outcome.frame).is_err());
}

/// Whoever may open flows may ping, and nobody else.
#[privileged_test]
fn a_ping_from_nowhere_is_not_answered() {
    let mut lb = DataPlane::new(CONFIG);
    let cases = [
        ("::1", VIP, "bogon"),
        ("::", VIP, "bogon"),
        ("ff02::5", VIP, "bogon"),
        ("::ffff:192.0.2.9", VIP, "bogon"),
        ("fd00:204::1", VIP, "spoofed"),
        (VIP, VIP, "spoofed"),
        (HOST, "fd00:203::111", "not_declared"),
    ];
    for (source, destination, reason) in cases {
        let ping = icmp(source, destination, PING, 7).between(CLIENT, TENANT_NIC);
        assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), reason);
    }
    let group = Mac::new([0x33, 0x33, 0, 0, 0, 1]);
    let ping = icmp(HOST, VIP, PING, 7).between(group, TENANT_NIC);
    assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), "group_source");
    let ping = icmp(NODE, SNAT, PING, 7).between(KAS_MAC, MGMT_NIC);
    assert_dropped(&mut lb, Port::Mgmt, &ping.bytes(), "unsupported_protocol");
}

/// The client of a flow is told by the VIP, whoever on the backends' side found the error; it sees
/// the packet that it had sent, as far as it is quoted.
#[privileged_test]
fn reliability_17_an_error_about_a_request_reaches_its_client() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [as_sent, as_forwarded] = request_pair(CLIENT_ISN + 1);
    // Eight bytes of TCP; up to the byte before its checksum; with it; all of it.
    for bytes in [LEAST, 57, 58, 60, 82] {
        for (kind, rest) in [
            (TOO_BIG, 1280),
            (TIME_EXCEEDED, 0),
            (NO_ROUTE, 0),
            (PARAMETER, 6),
        ] {
            let sent = from_hub(kind, rest, &quote(&as_forwarded, bytes));
            let mut body = quote(&as_sent, bytes);
            if bytes == 57 {
                // Half of the checksum is there: it stays as it was quoted.
                body[56] = quote(&as_forwarded, bytes)[56];
            }
            assert_becomes(&mut lb, Port::Mgmt, &sent, &to_client(kind, rest, &body));
        }
    }
}

#[privileged_test]
fn reliability_17_an_error_about_a_reply_reaches_its_backend() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [as_sent, as_forwarded] = reply_pair(BACKEND_ISN + 1);
    for bytes in [LEAST, 58, 60, 82] {
        for (kind, rest) in [(TOO_BIG, 1280), (TIME_EXCEEDED, 0), (NO_ROUTE, 0)] {
            let sent = from_tenant(kind, rest, &quote(&as_forwarded, bytes));
            let wanted = to_backend(kind, rest, &quote(&as_sent, bytes));
            assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
        }
    }
}

/// As for IPv4, but an MTU below what every network carries is not made another one: no router says it.
#[privileged_test]
fn no_mtu_below_the_floor_reaches_a_backend() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_B).payload(b"who?"));
    let segment = |bytes: usize| {
        [(KAS, snat(1024)), (API, CLIENT_A.to_owned())].map(|(from, to)| {
            let data = tcp(from, &to, ACK_ONLY).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
            data.payload(&vec![7; bytes - 60]).ttl(63)
        })
    };
    let datagram = |bytes: usize| {
        [(RESOLVER, snat(1025)), (DNS, CLIENT_B.to_owned())]
            .map(|(from, to)| udp(from, &to).payload(&vec![7; bytes - 48]).ttl(63))
    };
    let cases: [(u32, usize, bool); 12] = [
        (1280, 1281, true),
        (1400, 1500, true),
        (1499, 1500, true),
        (0, 1500, false),
        (68, 1500, false),
        (1279, 1500, false),
        (1500, 1500, false),
        (1501, 1500, false),
        (65_536 + 1400, 1500, false),
        (u32::MAX, 1500, false),
        (1280, 1280, false),
        (1280, 100, false),
    ];
    for (said, bytes, believed) in cases {
        let both = [
            (segment(bytes), to_backend as fn(_, _, &[u8]) -> _),
            (datagram(bytes), to_resolver),
        ];
        for ([as_sent, as_forwarded], wanted) in both {
            let sent = from_tenant(TOO_BIG, said, &quote(&as_forwarded, 60));
            if believed {
                let wanted = wanted(TOO_BIG, said, &quote(&as_sent, 60));
                assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
            } else {
                assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "mtu_implausible");
            }
        }
    }
    // Other errors have other things there, and a client is alone with its flow.
    let [as_sent, as_forwarded] = segment(1500);
    for kind in [NO_ROUTE, TIME_EXCEEDED, PARAMETER] {
        let sent = from_tenant(kind, 68, &quote(&as_forwarded, 60));
        let wanted = to_backend(kind, 68, &quote(&as_sent, 60));
        assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    }
    let [as_sent, as_forwarded] = request_pair(CLIENT_ISN + 1);
    for said in [0, 68, 1500] {
        let sent = from_hub(TOO_BIG, said, &quote(&as_forwarded, 60));
        let wanted = to_client(TOO_BIG, said, &quote(&as_sent, 60));
        assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    }
}

/// What the resolver must see of an error about its datagram.
fn to_resolver(kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(SNAT, "fd00:32::106", kind, rest).payload(body).ttl(63);
    error.between(MGMT_NIC, RESOLVER_MAC)
}

#[privileged_test]
fn reliability_17_an_error_about_a_datagram_is_translated() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A).payload(b"who?"));
    let datagram = |from: &str, to: &str| udp(from, to).ttl(63).payload(b"who?");
    for bytes in [LEAST, 52] {
        let as_sent = quote(&datagram(CLIENT_A, DNS), bytes);
        let as_forwarded = quote(&datagram(&snat(1024), RESOLVER), bytes);
        let sent = from_hub(PORT_UNREACHABLE, 0, &as_forwarded);
        let wanted = to_client(PORT_UNREACHABLE, 0, &as_sent);
        assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);

        let as_sent = quote(&datagram(RESOLVER, &snat(1024)), bytes);
        let as_forwarded = quote(&datagram(DNS, CLIENT_A), bytes);
        let sent = from_tenant(PORT_UNREACHABLE, 0, &as_forwarded);
        let wanted = to_resolver(PORT_UNREACHABLE, 0, &as_sent);
        assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    }
}

/// As much as an error may be long: 1280 bytes.
#[privileged_test]
fn a_long_quote_is_carried() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [as_sent, as_forwarded] =
        request_pair(CLIENT_ISN + 1).map(|frame| frame.payload(&[0xa5; 1440]));
    let body = quote(&as_forwarded, 1280 - 48);
    let wanted = quote(&as_sent, 1280 - 48);
    let (sent, wanted) = (
        from_hub(TOO_BIG, 1400, &body),
        to_client(TOO_BIG, 1400, &wanted),
    );
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
    let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, LEAST));
    let wanted = to_client(TOO_BIG, 1280, &quote(&as_sent, LEAST));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let [as_sent, as_forwarded] = reply_pair(BACKEND_ISN + 1);
    let router = Mac::new([2, 0, 0, 0, 0xc, 9]);
    let sent = from_tenant(TOO_BIG, 1280, &quote(&as_forwarded, LEAST));
    let wanted = to_backend(TOO_BIG, 1280, &quote(&as_sent, LEAST));
    assert_becomes(
        &mut lb,
        Port::Tenant,
        &sent.between(router, TENANT_NIC),
        &wanted,
    );
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
}

/// Sequence numbers of either direction: from one before what the other end has acknowledged on.
#[privileged_test]
fn reliability_16_only_a_number_that_may_be_in_flight_is_believed() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let window = 1 << 24;
    for (offset, believed) in [
        (-2, false),
        (-1, true),
        (0, true),
        (1_000_000, true),
        (window - 2, true),
        (window - 1, false),
        (1 << 30, false),
    ] {
        let [as_sent, as_forwarded] = request_pair((CLIENT_ISN + 1).wrapping_add_signed(offset));
        let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, LEAST));
        let wanted = to_client(TOO_BIG, 1280, &quote(&as_sent, LEAST));
        judge(&mut lb, Port::Mgmt, &sent, &wanted, believed);
        let [as_sent, as_forwarded] = reply_pair((BACKEND_ISN + 1).wrapping_add_signed(offset));
        let sent = from_tenant(TOO_BIG, 1280, &quote(&as_forwarded, LEAST));
        let wanted = to_backend(TOO_BIG, 1280, &quote(&as_sent, LEAST));
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

/// An error that quotes anything but a packet of ours of a flow that translates.
#[privileged_test]
fn an_error_about_no_flow_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let number = CLIENT_ISN + 1;
    let hub = [
        // Another backend, another port of it, another protocol, no flow, no port of flows.
        tcp(&snat(1024), "[fd00:32::106]:30918", ACK_ONLY),
        tcp(&snat(1024), "[fd00:32::107]:30918", ACK_ONLY),
        tcp(&snat(1024), "[fd00:32::105]:30919", ACK_ONLY),
        udp(&snat(1024), KAS),
        tcp(&snat(1025), KAS, ACK_ONLY),
        tcp(&snat(1023), KAS, ACK_ONLY),
        // Not sent by whom the error is for.
        tcp("[fd00:32::51]:1024", KAS, ACK_ONLY),
    ];
    for frame in hub {
        let sent = from_hub(TOO_BIG, 1280, &quote(&frame.numbers(number, 0), 60));
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
    }
    let tenant = [
        tcp(API, CLIENT_B, ACK_ONLY),
        tcp(API, "[fd00:203::50]:40001", ACK_ONLY),
        tcp("[fd00:203::110]:6444", CLIENT_A, ACK_ONLY),
        tcp("[fd00:203::111]:6443", CLIENT_A, ACK_ONLY),
        udp(API, CLIENT_A),
    ];
    for frame in tenant {
        let body = quote(&frame.numbers(BACKEND_ISN + 1, 0), 60);
        let sent = from_tenant(TOO_BIG, 1280, &body);
        assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "icmp_unrelated");
    }
    for protocol in [1, 58, 59] {
        let mut other = quote(&request_pair(number)[1], 60);
        other[6] = protocol;
        let sent = from_hub(TOO_BIG, 1280, &other);
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
    }
    // The flow is there all the same, until userspace ends it.
    let [as_sent, as_forwarded] = request_pair(number);
    let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, 60));
    let wanted = to_client(TOO_BIG, 1280, &quote(&as_sent, 60));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = lb_common::conntrack::FlowState::from_raw(flow.word)
        .end()
        .raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
}

/// The address beside the flow is compared as well: an error about the flow of another client with the
/// same hash is about no flow.
#[privileged_test]
fn an_error_about_a_client_with_the_same_hash_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    lb.set_client6(id, "fd00:203::99");
    let [as_sent, as_forwarded] = reply_pair(BACKEND_ISN + 1);
    let sent = from_tenant(TOO_BIG, 1280, &quote(&as_forwarded, LEAST));
    assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "icmp_unrelated");
    lb.set_client6(id, HOST);
    let wanted = to_backend(TOO_BIG, 1280, &quote(&as_sent, LEAST));
    assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
}

#[privileged_test]
fn what_nobody_acts_on_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let body = quote(&request_pair(CLIENT_ISN + 1)[1], 60);
    // Pongs, listener reports, experiments, what IPv4 would ask with.
    for kind in [
        (129, 0),
        (8, 0),
        (0, 0),
        (130, 0),
        (131, 0),
        (143, 0),
        (200, 0),
        (127, 0),
    ] {
        for (port, sent) in [
            (Port::Mgmt, from_hub(kind, 0, &body)),
            (
                Port::Tenant,
                icmp(HOST, VIP, kind, 0)
                    .between(CLIENT, TENANT_NIC)
                    .payload(&[0; 40]),
            ),
        ] {
            let outcome = lb.receive(port, &sent.bytes());
            assert_eq!(outcome.action, Action::Drop, "{}", Decoded(&sent.bytes()));
        }
    }
    let error = from_hub(TOO_BIG, 1280, &body);
    for hops in [0, 1] {
        let bytes = error.clone().ttl(hops).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "ttl_expired");
    }
    // What a later one is a piece of only the first one says.
    for (field, reason) in [(1, "fragment"), (8, "fragment_early")] {
        let piece = Extension::Fragment { field, id: 7 };
        let bytes = error.clone().extension(piece.clone()).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, reason);
        let ping = icmp(HOST, VIP, PING, 7).between(CLIENT, TENANT_NIC);
        let bytes = ping.extension(piece).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
    }
}

/// Every length below the least that an error must quote, and a header that lies.
#[privileged_test]
fn an_error_that_quotes_too_little_is_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [_, as_forwarded] = request_pair(CLIENT_ISN + 1);
    for bytes in 0..LEAST {
        let sent = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, bytes));
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "malformed");
        // Padding is no quote.
        let padded = [sent.bytes(), vec![0; 40]].concat();
        assert_dropped(&mut lb, Port::Mgmt, &padded, "malformed");
    }
    for version in [0x40, 0x50] {
        let mut body = quote(&as_forwarded, LEAST);
        body[0] = version;
        let sent = from_hub(TOO_BIG, 1280, &body);
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "malformed");
    }
    let whole = from_hub(TOO_BIG, 1280, &quote(&as_forwarded, LEAST)).bytes();
    for length in 14..whole.len() {
        assert_dropped(&mut lb, Port::Mgmt, &whole[..length], "malformed");
    }
    let ping = icmp(HOST, VIP, PING, 7).between(CLIENT, TENANT_NIC).bytes();
    for length in 14..ping.len() {
        assert_dropped(&mut lb, Port::Tenant, &ping[..length], "malformed");
    }
}

/// "Too big" for less than everybody carries is no MTU that a host would believe (RFC 8200 section 5); it is
/// carried, and does nothing to us.
#[privileged_test]
fn an_mtu_that_is_too_small_changes_nothing_here() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [_, as_forwarded] = request_pair(CLIENT_ISN + 1);
    let sent = from_hub(TOO_BIG, 68, &quote(&as_forwarded, LEAST));
    let outcome = lb.receive(Port::Mgmt, &sent.bytes());
    assert!(
        matches!(
            outcome.counted.2,
            "forwarded" | "icmp_unrelated" | "malformed"
        ),
        "{outcome:?}"
    );
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &data.payload(&[7; 1440]));
}
