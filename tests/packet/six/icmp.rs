//! What ICMPv6 has of its own: other kinds of messages, long quotes, and no MTU below the floor.

use lb_tests::frames::{packet::Decoded, six::Extension};

use super::{super::icmp::*, given::*};

const IP: Family = Family::V6;
/// Bytes of a quote: the IPv6 header and eight bytes of layer 4.
const LEAST: usize = 48;

/// As for IPv4, but an MTU below what every network carries is not made another one: no router says it.
#[privileged_test]
fn no_mtu_below_the_floor_reaches_a_backend() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_B).payload(b"who?"));
    let segment = |bytes| segment_pair(&IP, BACKEND_ISN + 1, bytes);
    let datagram = |bytes| datagram_pair(&IP, 1025, CLIENT_B, bytes);
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
            (segment(bytes), to_backend as fn(_, _, _, &[u8]) -> _),
            (datagram(bytes), to_resolver),
        ];
        for ([as_sent, as_forwarded], wanted) in both {
            let sent = from_tenant(&IP, IP.too_big, said, &quote(&as_forwarded, 60));
            if believed {
                let wanted = wanted(&IP, IP.too_big, said, &quote(&as_sent, 60));
                assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
            } else {
                assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "mtu_implausible");
            }
        }
    }
    // Other errors have other things there, and a client is alone with its flow.
    let [as_sent, as_forwarded] = segment(1500);
    for kind in [IP.no_route, IP.time_exceeded, IP.parameter] {
        let sent = from_tenant(&IP, kind, 68, &quote(&as_forwarded, 60));
        let wanted = to_backend(&IP, kind, 68, &quote(&as_sent, 60));
        assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    }
    let [as_sent, as_forwarded] = request_pair(&IP, CLIENT_ISN + 1);
    for said in [0, 68, 1500] {
        let sent = from_hub(&IP, IP.too_big, said, &quote(&as_forwarded, 60));
        let wanted = to_client(&IP, IP.too_big, said, &quote(&as_sent, 60));
        assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    }
}

#[privileged_test]
fn what_nobody_acts_on_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let body = quote(&request_pair(&IP, CLIENT_ISN + 1)[1], 60);
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
            (Port::Mgmt, from_hub(&IP, kind, 0, &body)),
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
    let error = from_hub(&IP, IP.too_big, 1280, &body);
    for hops in [0, 1] {
        let bytes = error.clone().ttl(hops).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "ttl_expired");
    }
    // What a later one is a piece of only the first one says.
    for (field, reason) in [(1, "fragment"), (8, "fragment_early")] {
        let piece = Extension::Fragment { field, id: 7 };
        let bytes = error.clone().extension(piece.clone()).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, reason);
        let ping = icmp(HOST, VIP, IP.ping, 7).between(CLIENT, TENANT_NIC);
        let bytes = ping.extension(piece).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
    }
}

/// As much as an error may be long: 1280 bytes.
#[privileged_test]
fn a_long_quote_is_carried() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [as_sent, as_forwarded] =
        request_pair(&IP, CLIENT_ISN + 1).map(|frame| frame.payload(&[0xa5; 1440]));
    let body = quote(&as_forwarded, 1280 - 48);
    let wanted = quote(&as_sent, 1280 - 48);
    let (sent, wanted) = (
        from_hub(&IP, IP.too_big, 1400, &body),
        to_client(&IP, IP.too_big, 1400, &wanted),
    );
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
}

/// The address beside the flow is compared as well: an error about the flow of another client with the
/// same hash is about no flow.
#[privileged_test]
fn an_error_about_a_client_with_the_same_hash_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    lb.set_client6(id, "fd00:203::99");
    let [as_sent, as_forwarded] = reply_pair(&IP, BACKEND_ISN + 1);
    let sent = from_tenant(&IP, IP.too_big, 1280, &quote(&as_forwarded, LEAST));
    assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "icmp_unrelated");
    lb.set_client6(id, HOST);
    let wanted = to_backend(&IP, IP.too_big, 1280, &quote(&as_sent, LEAST));
    assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
}

/// "Too big" for less than every link carries is no MTU that a host would believe (RFC 8200 section 5); it is
/// carried, and does nothing to us.
#[privileged_test]
fn an_mtu_that_is_too_small_changes_nothing_here() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let [_, as_forwarded] = request_pair(&IP, CLIENT_ISN + 1);
    let sent = from_hub(&IP, IP.too_big, 68, &quote(&as_forwarded, LEAST));
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

/// The flow label of an answer is its sender's to choose.
#[privileged_test]
fn a_ping_with_a_flow_label_is_answered() {
    let mut lb = DataPlane::new(CONFIG);
    let ping = icmp(HOST, VIP, IP.ping, 7).between(CLIENT, TENANT_NIC);
    let ping = ping.class_and_label(0, 0x54321).payload(b"abc");
    let outcome = lb.receive(Port::Tenant, &ping.bytes());
    assert_eq!(outcome.action, Action::Transmit);
    let mut answer = outcome.frame;
    answer[15] &= 0xf0;
    answer[16..18].fill(0);
    let wanted = icmp(VIP, HOST, IP.pong, 7).payload(b"abc");
    assert_frame(&answer, &wanted.between(TENANT_NIC, CLIENT));
}
