//! Frames of local stacks that leave their checksum to the interface: DATA-PLANE-RULES 21.

use lb_tests::frames::six::{tcp, udp};
use lb_user::dataplane::attach::Mode;

use super::given::*;

#[privileged_test]
fn reliability_19_an_open_checksum_is_made_whole() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    for length in [0, 1, 2, 3, 100, 101, 1440] {
        let payload: Vec<u8> = (0..=250).cycle().take(length).collect();
        let syn = request(CLIENT_A, API, SYN_ONLY).payload(&payload);
        let sent = passed_on(&mut lb, Port::Tenant, &syn.open_checksum());
        let wanted = tcp(&snat(1024), KAS, SYN_ONLY).payload(&payload).hops(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
        let query = query(CLIENT_A).payload(&payload);
        let sent = passed_on(&mut lb, Port::Tenant, &query.open_checksum());
        let wanted = udp(&snat(1025), RESOLVER).payload(&payload).hops(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, RESOLVER_MAC));
        let answer = answer(1025).payload(&payload);
        let sent = passed_on(&mut lb, Port::Mgmt, &answer.open_checksum());
        let wanted = udp(DNS, CLIENT_A).payload(&payload).hops(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    }
}

/// Those that are whole already stay so.
#[privileged_test]
fn a_whole_checksum_stays_right() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    let syn = request(CLIENT_A, API, SYN_ONLY).payload(b"odd");
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&snat(1024), KAS, SYN_ONLY).payload(b"odd").hops(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
}

/// In generic mode a reset is open where the segment was, as for IPv4.
#[privileged_test]
fn reliability_19_a_reset_of_an_open_segment_is_open_in_generic_mode() {
    const EMPTY: &str = "[fd00:203::110]:80";
    let syn = request(CLIENT_A, EMPTY, SYN_ONLY)
        .numbers(1000, 0)
        .payload(b"odd");
    let wanted = tcp(EMPTY, CLIENT_A, RST_ACK).numbers(0, 1004).window(0);
    let wanted = wanted.between(TENANT_NIC, CLIENT);
    for (mode, sent, left) in [
        (Mode::Generic, syn.open_checksum(), wanted.open_checksum()),
        (Mode::Generic, syn.bytes(), wanted.bytes()),
        (Mode::Native, syn.open_checksum(), wanted.bytes()),
    ] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        let ((action, frame), _) = lb.run(Port::Tenant, &sent, 1);
        assert_eq!((action, frame), (Action::Transmit, left));
    }
}
