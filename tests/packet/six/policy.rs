//! Sources that an IPv6 network cannot have, and what a tenant reaches.

use lb_tests::frames::{packet::arp, six::discovery::group_mac};

use super::{
    super::policy::{RULES_V6, refused},
    given::*,
};

#[privileged_test]
fn a_source_that_its_network_cannot_have_is_spoofed() {
    let mut lb = DataPlane::new(RULES_V6);
    let spoofed = [
        "fd00:204::50",    // another tenant's
        "fd00:32::105",    // a node's
        "fd00:32::50",     // our SNAT address
        "fd00:203::110",   // our VIP
        "fd00:203:0:1::1", // the next /64
        "fd00:173::1",
        "2001:db8::1",
    ];
    for client in spoofed {
        refused(&Family::V6, &mut lb, client, "spoofed");
    }
    assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no state was made");
}

/// RELIABILITY 40: an address that stands for one of IPv4 has no rules of its own to be let in by, also
/// where every client is.
#[privileged_test]
fn reliability_40_sources_that_no_host_has_are_bogons() {
    let any_source = RULES_V6.replace("    routes:", "    sources: any\n    routes:");
    for config in [RULES_V6, &any_source] {
        let mut lb = DataPlane::new(config);
        for client in [
            "::",
            "::1",
            "::192.0.2.9",
            "::ffff:192.0.2.9",
            "::ffff:192.168.203.50",
            "64:ff9b::192.0.2.9",
            "2002:c000:209::1",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "ff0e::1",
        ] {
            refused(&Family::V6, &mut lb, client, "bogon");
        }
        assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no state was made");
    }
}

#[privileged_test]
fn a_tenant_reaches_nothing_but_declared_services() {
    let mut lb = DataPlane::new(CONFIG);
    let group = group_mac("ff02::1".parse().expect("an address"));
    let cases = [
        (
            "no_service",
            request(CLIENT_A, "[fd00:203::110]:22", SYN_ONLY),
        ),
        (
            "no_service",
            request(CLIENT_A, "[fd00:203::110]:53", SYN_ONLY),
        ),
        ("no_service", udp(CLIENT_A, API).between(CLIENT, TENANT_NIC)),
        (
            "not_declared",
            request(CLIENT_A, "[fd00:203::111]:6443", SYN_ONLY),
        ),
        ("not_declared", request(CLIENT_A, KAS, SYN_ONLY)),
        ("not_declared", request(CLIENT_A, &snat(1024), SYN_ONLY)),
        (
            "not_declared",
            request(CLIENT_A, "[::ffff:192.168.203.110]:6443", SYN_ONLY),
        ),
        (
            "group_address",
            udp(CLIENT_A, "[ff02::1]:5353").between(CLIENT, group),
        ),
    ];
    for (reason, frame) in cases {
        assert_dropped(&mut lb, Port::Tenant, &frame.bytes(), reason);
    }
    assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no state was made");
    let other = arp(1, CLIENT, "192.168.203.50", CLIENT, "192.168.203.110");
    assert_dropped(&mut lb, Port::Tenant, &other, "arp_not_ours");
}
