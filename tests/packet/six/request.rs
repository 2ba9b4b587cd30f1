//! Client to VIP.

use lb_common::{addr::Be128, maps::addr6};
use lb_tests::frames::six::{tcp, udp};

use super::given::*;

/// SYN: destination becomes the NodePort, source the first SNAT port; one hop less; the frame goes
/// from the mgmt NIC to the node.
#[privileged_test]
fn a17_syn_to_vip_is_dnated_and_snated() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&snat(1024), KAS, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_frame(&sent, &wanted.hops(63).between(MGMT_NIC, KAS_MAC));
}

/// What the flow's records say: labels of ours, and the hash of the client beside its address.
#[privileged_test]
fn a_flow_has_labels_for_addresses_of_ours_and_its_clients_hash() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    assert_eq!((flow.vip, flow.backend), (lb.label(VIP), lb.label(NODE)));
    let client: std::net::Ipv6Addr = HOST.parse().expect("an address");
    assert_eq!(flow.client, lb.hash_key().client(Be128::from(client)));
    assert_eq!(lb.client6(id), client);
    for address in [VIP, NODE, SNAT] {
        let index = addr6::index(lb.label(address)).expect("a label");
        assert_eq!(lb.labelled(index).to_string(), address);
    }
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
        assert_frame(&sent, &wanted.hops(63).between(MGMT_NIC, KAS_MAC));
    }
}

#[privileged_test]
fn a17_a_udp_query_is_translated() {
    let mut lb = DataPlane::new(CONFIG);
    for (port, client) in (1024..).zip([CLIENT_A, CLIENT_B]) {
        for payload in [&b""[..], b"who", b"who?", &[7; 1452]] {
            let sent = forwarded(&mut lb, Port::Tenant, &query(client).payload(payload));
            let wanted = udp(&snat(port), RESOLVER).payload(payload).hops(63);
            assert_frame(&sent, &wanted.between(MGMT_NIC, RESOLVER_MAC));
        }
    }
}

#[privileged_test]
fn each_flow_has_a_snat_port_of_its_own() {
    let mut lb = DataPlane::new(CONFIG);
    let clients = [
        "[fd00:203::50]:40000",
        "[fd00:203::50]:40001",
        "[fd00:203::51]:40000",
        "[fd00:203::1:0:0:51]:40000",
    ];
    for (port, client) in (1024..).zip(clients) {
        let sent = forwarded(&mut lb, Port::Tenant, &request(client, API, SYN_ONLY));
        let wanted = tcp(&snat(port), KAS, SYN_ONLY)
            .hops(63)
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

/// Traffic class, flow label, TCP options and Ethernet padding are none of our business.
#[privileged_test]
fn what_is_no_address_port_or_hop_is_carried() {
    let mut lb = DataPlane::new(CONFIG);
    let options = [4, 2, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    let syn = request(CLIENT_A, API, SYN_ONLY)
        .class_and_label(0xb9, 0xabcde)
        .tcp_options(&options)
        .window(1234)
        .padding(2);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&snat(1024), KAS, SYN_ONLY)
        .class_and_label(0xb9, 0xabcde)
        .tcp_options(&options)
        .window(1234)
        .padding(2)
        .hops(63);
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
        let back = reply(1024, ACK_ONLY).numbers(5001, 1001);
        let sent = forwarded(&mut lb, Port::Mgmt, &back);
        let wanted = tcp(API, CLIENT_A, ACK_ONLY).numbers(5001, 1001).hops(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, station));
    }
}

/// Every place at which the frame may break off, and lengths that lie.
#[privileged_test]
fn truncated_and_lying_packets_are_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    for frame in [request(CLIENT_A, API, SYN_ONLY), query(CLIENT_A)] {
        let whole = frame.bytes();
        for length in 14..whole.len() {
            assert_dropped(&mut lb, Port::Tenant, &whole[..length], "malformed");
        }
        for (at, value) in [(14, 0x50), (14, 0x40), (19, whole[19] + 1)] {
            let mut lying = whole.clone();
            lying[at] = value;
            assert_dropped(&mut lb, Port::Tenant, &lying, "malformed");
        }
    }
    assert_eq!(lb.maps.flow_index.keys().count(), 0);
}
