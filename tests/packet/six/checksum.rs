//! Checksums at the edges of their numbers: RELIABILITY 18.

use lb_tests::frames::six::{L4, check};

use super::given::*;

/// Where a datagram's checksum is.
const CHECKSUM: usize = L4 + 6;

/// The payload with which the checksum of this datagram is all ones, because the sum is zero.
fn payload_of_zero(datagram: &Frame) -> [u8; 2] {
    let bytes = datagram.clone().payload(&[0, 0]).bytes();
    [bytes[CHECKSUM], bytes[CHECKSUM + 1]]
}

/// Over IPv6 no datagram may do without (RFC 8200 section 8.1).
#[privileged_test]
fn reliability_18_a_datagram_without_checksum_is_dropped_and_counted() {
    let mut lb = DataPlane::new(CONFIG);
    let bare = query(CLIENT_A).payload(b"who?").without_checksum().bytes();
    assert_dropped(&mut lb, Port::Tenant, &bare, "malformed");
    assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no flow was made");
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A).payload(b"who?"));
    assert_dropped(&mut lb, Port::Tenant, &bare, "malformed");
    let bare = answer(1024).payload(b"me").without_checksum().bytes();
    assert_dropped(&mut lb, Port::Mgmt, &bare, "malformed");
}

#[privileged_test]
fn reliability_18_a_computed_zero_becomes_all_ones() {
    let mut lb = DataPlane::new(CONFIG);
    let to_resolver = udp(&snat(1024), RESOLVER)
        .ttl(63)
        .between(MGMT_NIC, RESOLVER_MAC);
    let payload = payload_of_zero(&to_resolver);
    let sent = forwarded(&mut lb, Port::Tenant, &query(CLIENT_A).payload(&payload));
    assert_eq!(sent[CHECKSUM..CHECKSUM + 2], [0xff, 0xff]);
    assert_frame(&sent, &to_resolver.payload(&payload));

    let to_client = udp(DNS, CLIENT_A).ttl(63).between(TENANT_NIC, CLIENT);
    let payload = payload_of_zero(&to_client);
    let sent = forwarded(&mut lb, Port::Mgmt, &answer(1024).payload(&payload));
    assert_eq!(sent[CHECKSUM..CHECKSUM + 2], [0xff, 0xff]);
    assert_frame(&sent, &to_client.payload(&payload));

    // All ones on the way in are the zero that they stand for.
    let payload = payload_of_zero(&query(CLIENT_A));
    let frame = query(CLIENT_A).payload(&payload);
    assert_eq!(frame.bytes()[CHECKSUM..CHECKSUM + 2], [0xff, 0xff]);
    let sent = forwarded(&mut lb, Port::Tenant, &frame);
    let wanted = udp(&snat(1024), RESOLVER).payload(&payload).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, RESOLVER_MAC));
}

/// A wrong checksum is not ours to make right.
#[privileged_test]
fn a_wrong_checksum_stays_wrong() {
    let mut lb = DataPlane::new(CONFIG);
    for mut bytes in [
        query(CLIENT_A).payload(b"who?").bytes(),
        request(CLIENT_A, API, SYN_ONLY).payload(b"what").bytes(),
    ] {
        *bytes.last_mut().expect("a byte") ^= 0x10;
        let outcome = lb.receive(Port::Tenant, &bytes);
        assert_eq!(outcome.action, Action::Redirect);
        assert!(check(&outcome.frame).is_err());
    }
}
