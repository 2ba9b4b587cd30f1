//! What only requests of IPv4 have: IP options, and datagrams without a checksum.

use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{DataPlane, MGMT_NIC, Port},
};

use super::super::given::*;

#[privileged_test]
fn a_udp_query_without_checksum_stays_without() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = forwarded(&mut lb, Port::Tenant, &query(CLIENT_A).payload(b"who?"));
    let wanted = udp(&snat(1024), RESOLVER).payload(b"who?").ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, RESOLVER_MAC));

    let bare = query(CLIENT_B).payload(b"who?").without_checksum();
    let sent = forwarded(&mut lb, Port::Tenant, &bare);
    let wanted = udp(&snat(1025), RESOLVER)
        .payload(b"who?")
        .without_checksum()
        .ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, RESOLVER_MAC));
}

#[privileged_test]
fn ip_options_and_padding_are_carried() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY)
        .options(&[1, 1, 1, 1])
        .padding(2);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&snat(1024), KAS, SYN_ONLY)
        .options(&[1, 1, 1, 1])
        .padding(2)
        .ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
}
