//! What only requests of IPv6 have: labels of their addresses, a flow label, and lengths of their own.

use lb_common::{addr::Be128, maps::addr6};

use super::given::*;

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
        .ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
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
    assert_eq!(lb.maps.flow_lines.ids().count(), 0);
}
