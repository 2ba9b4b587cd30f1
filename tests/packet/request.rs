//! Client to VIP.

use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// SYN: destination becomes the NodePort, source the first SNAT port; one hop less; the frame goes
/// from the mgmt NIC to the node.
#[privileged_test]
fn syn_to_vip_is_dnated_and_snated() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&snat(1024), KAS, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));
}

#[privileged_test]
fn every_segment_of_a_flow_takes_the_same_way() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for payload in [&b"GET /version"[..], b"x", &[0xff; 1440]] {
        let data = request(CLIENT_A, API, ACK_ONLY)
            .numbers(1001, 5001)
            .payload(payload);
        let sent = forwarded(&mut lb, Port::Tenant, &data);
        let wanted = tcp(&snat(1024), KAS, ACK_ONLY)
            .numbers(1001, 5001)
            .payload(payload);
        assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));
    }
}

#[privileged_test]
fn a_udp_query_is_translated_with_and_without_checksum() {
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
fn each_flow_has_a_snat_port_of_its_own() {
    let mut lb = DataPlane::new(CONFIG);
    let clients = [
        "192.168.203.50:40000",
        "192.168.203.50:40001",
        "192.168.203.51:40000",
    ];
    for (port, client) in (1024..).zip(clients) {
        let sent = forwarded(&mut lb, Port::Tenant, &request(client, API, SYN_ONLY));
        let wanted = tcp(&snat(port), KAS, SYN_ONLY)
            .ttl(63)
            .between(MGMT_NIC, KAS_MAC);
        assert_frame(&sent, &wanted);
    }
}

#[privileged_test]
fn a_repeated_syn_stays_in_its_flow() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let first = forwarded(&mut lb, Port::Tenant, &syn);
    assert_eq!(forwarded(&mut lb, Port::Tenant, &syn), first);
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

/// The client's next hop is the station that its last frame came from.
#[privileged_test]
fn the_clients_mac_is_learned_from_its_frames() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let router = lb_common::addr::Mac::new([2, 0, 0, 0, 0xc, 9]);
    for station in [CLIENT, router] {
        let data = request(CLIENT_A, API, ACK_ONLY).numbers(1001, 5001);
        forwarded(&mut lb, Port::Tenant, &data.between(station, TENANT_NIC));
        let sent = forwarded(
            &mut lb,
            Port::Mgmt,
            &reply(1024, ACK_ONLY).numbers(5001, 1001),
        );
        let wanted = tcp(API, CLIENT_A, ACK_ONLY).numbers(5001, 1001).ttl(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, station));
    }
}
