//! Who may open a flow: every refusal before any state is made.

use lb_tests::frames::{
    packet::arp,
    six::{tcp, udp},
};

use super::given::*;

/// Of its /64, and of a /48 behind a router; the API is for some of them only.
const RULES: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt, interface: eth1, prefixes: ["fd00:32::/64"], snat: ["fd00:32::50"] }
  tenant-a:
    role: tenant
    interface: eth0
    prefixes: ["fd00:203::/64"]
    routes: [{ to: "fd00:172::/48", via: "fd00:203::1" }]
pools:
  kas-a: { network: mgmt, backends: ["[fd00:32::105]:30918"] }
  dns-a: { network: mgmt, backends: ["[fd00:32::106]:30053"] }
services:
  api-a:
    network: tenant-a
    listen: ["[fd00:203::110]:6443/tcp"]
    pool: kas-a
    allow: ["fd00:203::/64", "fd00:172:0:7::/64"]
    deny: ["fd00:203::64:0/112", "fd00:203::8/125"]
  dns-a: { network: tenant-a, listen: ["[fd00:203::110]:53/udp"], pool: dns-a }
"#;

fn opens(lb: &mut DataPlane, client: &str) {
    let syn = request(&format!("[{client}]:40000"), API, SYN_ONLY);
    forwarded(lb, Port::Tenant, &syn);
}

fn refused(lb: &mut DataPlane, client: &str, reason: &'static str) {
    let bytes = request(&format!("[{client}]:40000"), API, SYN_ONLY).bytes();
    assert_dropped(lb, Port::Tenant, &bytes, reason);
}

#[privileged_test]
fn the_longest_rule_decides() {
    let mut lb = DataPlane::new(RULES);
    for client in [
        "fd00:203::50",
        "fd00:203::7",
        "fd00:203::10",
        "fd00:203::65:0",
        "fd00:203::63:ffff",
        "fd00:203::1:0:64:0",
        "fd00:172:0:7::1",
    ] {
        opens(&mut lb, client);
    }
    for client in [
        "fd00:203::64:0",
        "fd00:203::64:ffff",
        "fd00:203::8",
        "fd00:203::f",
        "fd00:172:0:8::1",
        "fd00:172:0:6:ffff:ffff:ffff:ffff",
    ] {
        refused(&mut lb, client, "denied");
    }
    // The other service has no rules: whoever the network lets in.
    let query = udp("[fd00:172:0:8::1]:40000", DNS).between(CLIENT, TENANT_NIC);
    forwarded(&mut lb, Port::Tenant, &query);
}

#[privileged_test]
fn a_source_that_its_network_cannot_have_is_spoofed() {
    let mut lb = DataPlane::new(RULES);
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
        refused(&mut lb, client, "spoofed");
    }
    assert_eq!(lb.maps.flow_index.keys().count(), 0, "no state was made");
}

/// RELIABILITY 40: an address that stands for one of IPv4 has no rules of its own to be let in by, also
/// where everybody is.
#[privileged_test]
fn reliability_40_sources_that_no_host_has_are_bogons() {
    let everybody = RULES.replace("    routes:", "    sources: any\n    routes:");
    for config in [RULES, &everybody] {
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
            refused(&mut lb, client, "bogon");
        }
        assert_eq!(lb.maps.flow_index.keys().count(), 0, "no state was made");
    }
}

/// Nothing is learned of a service by who is not let in: a denied segment is denied, SYN or not.
#[privileged_test]
fn a_denied_source_is_denied_whatever_it_sends() {
    let mut lb = DataPlane::new(RULES);
    for flags in [SYN_ONLY, ACK_ONLY, RST_ONLY, FIN_ACK] {
        let bytes = request("[fd00:203::64:1]:40000", API, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "denied");
    }
    let closed = request("[fd00:203::64:1]:40000", "[fd00:203::110]:6444", SYN_ONLY);
    assert_dropped(&mut lb, Port::Tenant, &closed.bytes(), "no_service");
}

#[privileged_test]
fn a_tenant_reaches_nothing_but_declared_services() {
    let mut lb = DataPlane::new(CONFIG);
    let group = lb_tests::frames::six::discovery::group_mac("ff02::1".parse().expect("an address"));
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
    assert_eq!(lb.maps.flow_index.keys().count(), 0, "no state was made");
    let other = arp(1, CLIENT, "192.168.203.50", CLIENT, "192.168.203.110");
    assert_dropped(&mut lb, Port::Tenant, &other, "arp_not_ours");
}

/// A host on mgmt that takes us for a router gets nowhere near a tenant; what is the host's passes.
#[privileged_test]
fn reliability_44_mgmt_reaches_no_tenant() {
    let mut lb = DataPlane::new(RULES);
    let from_node = |to: &str| {
        let frame = tcp("[fd00:32::105]:40000", to, SYN_ONLY);
        frame.between(KAS_MAC, MGMT_NIC).bytes()
    };
    for to in ["[fd00:203::50]:22", API, "[fd00:172:0:9::1]:22"] {
        assert_dropped(&mut lb, Port::Mgmt, &from_node(to), "to_tenant");
    }
    for to in ["[fd00:32::10]:22", "[2001:db8::1]:443"] {
        assert_passed(&mut lb, Port::Mgmt, &from_node(to));
    }
}

/// A backend behind a router gets its frames by the router's MAC, and may answer from there.
#[privileged_test]
fn a_backend_behind_a_gateway_is_reached_by_the_gateways_mac() {
    let route = r#"snat: ["fd00:32::50"], routes: [{ to: "fd00:40::/48", via: "fd00:32::1" }] }"#;
    let config = CONFIG
        .replace(r#"snat: ["fd00:32::50"] }"#, route)
        .replace("[fd00:32::105]:30918", "[fd00:40:0:1::5]:30918");
    let gateway: std::net::Ipv6Addr = "fd00:32::1".parse().expect("an address");
    let gateway = lb_tests::product::program::node_mac6(gateway);
    let mut lb = DataPlane::new(&config);
    let sent = forwarded(&mut lb, Port::Tenant, &request(CLIENT_A, API, SYN_ONLY));
    let wanted = tcp(&snat(1024), "[fd00:40:0:1::5]:30918", SYN_ONLY).hops(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, gateway));
    let reply = tcp("[fd00:40:0:1::5]:30918", &snat(1024), SYN_ACK).numbers(5000, 1);
    let sent = forwarded(&mut lb, Port::Mgmt, &reply.between(gateway, MGMT_NIC));
    let wanted = tcp(API, CLIENT_A, SYN_ACK).numbers(5000, 1).hops(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}
