//! What ICMP of IPv4 has of its own: options, extensions, fragments, and an MTU below the floor, which is raised.

use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, icmp, tcp},
    product::program::{Action, CLIENT, DataPlane, Port, TENANT_NIC},
};

use super::super::{given::*, icmp::*};

const IP: Family = Family::V4;
const HOST: &str = IP.host;
const VIP: &str = IP.vip;

#[privileged_test]
fn a_ping_keeps_its_options() {
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
}

/// A backend keeps the MTU of a path by its destination, a SNAT address, which all clients share: so what a
/// client's side says of it is bounded, and no error is believed about what fits.
#[privileged_test]
fn no_mtu_below_the_floor_reaches_a_backend() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_B).payload(b"who?"));
    let segment = |bytes| segment_pair(&IP, BACKEND_ISN + 1, bytes);
    let datagram = |bytes| datagram_pair(&IP, 1025, CLIENT_B, bytes);
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
                (segment(bytes), to_backend as fn(_, _, _, &[u8]) -> _),
                (datagram(bytes), to_resolver),
            ];
            for ([as_sent, as_forwarded], wanted) in both {
                let sent = from_tenant(&IP, IP.too_big, beside | said, &quote(&as_forwarded, 40));
                let Some(heard) = heard else {
                    assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "mtu_implausible");
                    continue;
                };
                let wanted = wanted(&IP, IP.too_big, beside | heard, &quote(&as_sent, 40));
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
        (IP.time_exceeded, 68),
        ((12, 0), 68),
    ] {
        let sent = from_tenant(&IP, kind, rest, &quote(&as_forwarded, 40));
        let wanted = to_backend(&IP, kind, rest, &quote(&as_sent, 40));
        assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    }
    // A client is alone with its flow: what the backends' side says stays as it is.
    let [as_sent, as_forwarded] = request_pair(&IP, CLIENT_ISN + 1);
    for said in [0, 68, 1500] {
        let sent = from_hub(&IP, IP.too_big, said, &quote(&as_forwarded, 40));
        let wanted = to_client(&IP, IP.too_big, said, &quote(&as_sent, 40));
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

/// IP options in the quote and around the error, and an extension behind the quote (RFC 4884).
#[privileged_test]
fn options_and_extensions_are_carried() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for options in [&[1; 4][..], &[1; 40]] {
        let [as_sent, as_forwarded] =
            request_pair(&IP, CLIENT_ISN + 1).map(|frame| frame.options(options));
        for bytes in [28, 38] {
            let bytes = bytes + options.len();
            let sent = from_hub(&IP, IP.too_big, 1400, &quote(&as_forwarded, bytes));
            let wanted = to_client(&IP, IP.too_big, 1400, &quote(&as_sent, bytes));
            assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
            let (sent, wanted) = (sent.options(options), wanted.options(options));
            assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
        }
    }
    let [as_sent, as_forwarded] = request_pair(&IP, CLIENT_ISN + 1);
    let extended = |frame: &Frame| {
        let mut body = quote(frame, 128);
        body.resize(128, 0);
        // Version 2; an MPLS label stack of one entry.
        body.extend([0x20, 0, 0, 0, 0, 8, 1, 1, 0, 0x10, 0x11, 0xff]);
        body
    };
    let length = 32 << 16;
    let sent = from_hub(&IP, IP.time_exceeded, length, &extended(&as_forwarded));
    let wanted = to_client(&IP, IP.time_exceeded, length, &extended(&as_sent));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
}

#[privileged_test]
fn what_nobody_acts_on_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let body = quote(&request_pair(&IP, CLIENT_ISN + 1)[1], 40);
    let cases = [
        ((5, 1), "icmp_unrelated"),
        ((4, 0), "icmp_unrelated"),
        ((0, 0), "unsupported_protocol"),
        ((13, 0), "unsupported_protocol"),
        ((8, 1), "unsupported_protocol"),
    ];
    for (kind, reason) in cases {
        let sent = from_hub(&IP, kind, 0, &body);
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), reason);
        let ping = icmp(HOST, VIP, kind, 0).between(CLIENT, TENANT_NIC);
        assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), reason);
    }
    let error = from_hub(&IP, IP.too_big, 1280, &body);
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

#[privileged_test]
fn an_error_about_a_datagram_without_checksum_is_translated() {
    assert_datagrams(&IP, Frame::without_checksum);
}

/// It has no ports.
#[privileged_test]
fn an_error_about_a_later_fragment_is_dropped() {
    let mut lb = IP.established();
    let later = tcp(&snat(1024), KAS, ACK_ONLY).fragment(0x2001);
    let body = quote(&later.numbers(CLIENT_ISN + 1, 0), 40);
    let sent = from_hub(&IP, IP.too_big, 1280, &body);
    assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
}
