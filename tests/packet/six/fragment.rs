//! What fragments of IPv6 have of their own: only the first one has the headers.

use lb_tests::frames::{cut::pieces, six::Extension};

use super::{super::fragment::*, given::*};

const IP: Family = Family::V6;

/// Behind the fragment header of a later piece is no header that could be read.
#[privileged_test]
fn a_later_fragment_is_judged_by_what_the_first_one_was() {
    let mut lb = DataPlane::new(CONFIG);
    // Its bytes look like extension headers and like TCP to another port.
    let mut bytes = vec![0; 100];
    bytes[40..60].copy_from_slice(&tcp(CLIENT_A, API, SYN_ONLY).packet()[40..60]);
    let whole = query(CLIENT_A).payload(&bytes).bytes();
    let sent = pieces(&whole, ID, &[48]);
    let first = passed(&mut lb, Port::Tenant, &sent[0]);
    let last = passed(&mut lb, Port::Tenant, &sent[1]);
    let wanted = udp(&snat(1024), RESOLVER).payload(&bytes).ttl(63);
    let wanted = wanted.between(MGMT_NIC, RESOLVER_MAC).bytes();
    let wanted = pieces(&wanted, identification(&first), &[48]);
    assert_eq!([first, last], *wanted);
}

/// The first fragment has all headers, or says nothing of what it is (RFC 7112).
#[privileged_test]
fn reliability_39_headers_in_pieces_are_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let frame = request(CLIENT_A, API, SYN_ONLY)
        .extension(Extension::Destination(vec![]))
        .extension(Extension::Destination(vec![0; 40]))
        .payload(&[7; 40]);
    let whole = frame.bytes();
    for end in [8, 16, 48, 56, 64] {
        let outcome = lb.receive(Port::Tenant, &part(&whole, 0, end, true));
        assert_eq!(outcome.action, Action::Drop, "{end}: {outcome:?}");
        assert!(
            matches!(outcome.counted.2, "fragment_tiny" | "malformed"),
            "{end}: {outcome:?}"
        );
    }
    assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no state was made");
    assert_eq!(lb.fragmented().len(), 0);
}

/// A first fragment whose checksum is zero is of a datagram without one.
#[privileged_test]
fn reliability_18_a_first_fragment_without_checksum_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram(&IP).without_checksum().bytes());
    assert_dropped(&mut lb, Port::Tenant, &sent[0], "malformed");
    assert_dropped(&mut lb, Port::Tenant, &sent[1], "fragment_early");
}

#[privileged_test]
fn hops_and_size_are_judged_before_anything_is_noted() {
    let mut lb = DataPlane::new(CONFIG);
    let large = query(CLIENT_A).payload(&payload(4000));
    let sent = pieces(&large.bytes(), ID, &[1448, 2896]);
    passed_on(&mut lb, Port::Tenant, &sent[0]);
    let mut spent = sent[1].clone();
    spent[21] = 1;
    assert_dropped(&mut lb, Port::Tenant, &spent, "ttl_expired");
    set_mtu(&mut lb, "mgmt", 1495);
    let outcome = lb.receive(Port::Tenant, &sent[1]);
    assert!(
        matches!(outcome.counted.2, "too_big" | "refused: too_big"),
        "{outcome:?}"
    );
    set_mtu(&mut lb, "mgmt", 1496);
    passed_on(&mut lb, Port::Tenant, &sent[1]);
}
