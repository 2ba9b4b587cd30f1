//! Client to VIP.

use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// A17: of a SYN the destination becomes the NodePort, the source the first SNAT port; one hop less; the frame goes
/// from the mgmt NIC to the node.
#[privileged_test(families)]
fn syn_to_vip_is_dnated_and_snated(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&ip.snat(1024), ip.kas, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, ip.kas_mac));
}

#[privileged_test(families)]
fn every_segment_of_a_flow_takes_the_same_way(ip: &Family) {
    let mut lb = ip.established();
    for payload in [&b"GET /version"[..], b"x", &[0xff; 1440]] {
        let data = request(ip.client_a, ip.api, ACK_ONLY)
            .numbers(1001, 5001)
            .payload(payload);
        let sent = forwarded(&mut lb, Port::Tenant, &data);
        let wanted = tcp(&ip.snat(1024), ip.kas, ACK_ONLY)
            .numbers(1001, 5001)
            .payload(payload);
        assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, ip.kas_mac));
    }
}

#[privileged_test(families)]
fn a_udp_query_is_translated(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    for (port, client) in (1024..).zip([ip.client_a, ip.client_b]) {
        for payload in [&b""[..], b"who", b"who?", &[7; 1452]] {
            let sent = forwarded(&mut lb, Port::Tenant, &ip.query(client).payload(payload));
            let wanted = udp(&ip.snat(port), ip.resolver).payload(payload).ttl(63);
            assert_frame(&sent, &wanted.between(MGMT_NIC, ip.resolver_mac));
        }
    }
}

#[privileged_test(families)]
fn each_flow_has_a_snat_port_of_its_own(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let other = ip.end(ip.host, 40_001);
    let last = ip.pick("192.168.203.52:40000", "[fd00:203::1:0:0:51]:40000");
    for (port, client) in (1024..).zip([ip.client_a, &other, ip.client_b, last]) {
        let sent = forwarded(&mut lb, Port::Tenant, &request(client, ip.api, SYN_ONLY));
        let wanted = tcp(&ip.snat(port), ip.kas, SYN_ONLY)
            .ttl(63)
            .between(MGMT_NIC, ip.kas_mac);
        assert_frame(&sent, &wanted);
    }
}

#[privileged_test(families)]
fn a_repeated_syn_stays_in_its_flow(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let first = forwarded(&mut lb, Port::Tenant, &syn);
    assert_eq!(forwarded(&mut lb, Port::Tenant, &syn), first);
}

/// The client's next hop is the station that its last frame came from.
#[privileged_test(families)]
fn the_clients_mac_is_learned_from_its_frames(ip: &Family) {
    let mut lb = ip.established();
    let router = lb_common::addr::Mac::new([2, 0, 0, 0, 0xc, 9]);
    for station in [CLIENT, router] {
        let data = request(ip.client_a, ip.api, ACK_ONLY).numbers(1001, 5001);
        forwarded(&mut lb, Port::Tenant, &data.between(station, TENANT_NIC));
        let sent = forwarded(
            &mut lb,
            Port::Mgmt,
            &ip.reply(1024, ACK_ONLY).numbers(5001, 1001),
        );
        let wanted = tcp(ip.api, ip.client_a, ACK_ONLY)
            .numbers(5001, 1001)
            .ttl(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, station));
    }
}
