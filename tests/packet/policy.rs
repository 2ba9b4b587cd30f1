//! Who may open a flow, and what mgmt may reach: every refusal before any state is made.

use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// Of its /24, and of a /16 behind a router; the API is for some of them only.
const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a:
    role: tenant
    interface: eth0
    prefixes: [192.168.203.0/24]
    routes: [{ to: 172.20.0.0/16, via: 192.168.203.1 }]
pools:
  kas-a: { network: mgmt, backends: ["10.32.96.105:30918"] }
  dns-a: { network: mgmt, backends: ["10.32.96.106:30053"] }
services:
  api-a:
    network: tenant-a
    listen: ["192.168.203.110:6443/tcp"]
    pool: kas-a
    allow: [192.168.203.0/24, 172.20.7.0/24]
    deny: [192.168.203.64/26, 192.168.203.0/28]
  dns-a: { network: tenant-a, listen: ["192.168.203.110:53/udp"], pool: dns-a }
"#;

fn opens(lb: &mut DataPlane, client: &str) {
    forwarded(
        lb,
        Port::Tenant,
        &request(&format!("{client}:40000"), API, SYN_ONLY),
    );
}

fn refused(lb: &mut DataPlane, client: &str, reason: &'static str) {
    let bytes = request(&format!("{client}:40000"), API, SYN_ONLY).bytes();
    assert_dropped(lb, Port::Tenant, &bytes, reason);
}

#[privileged_test]
fn the_longest_rule_decides() {
    let mut lb = DataPlane::new(CONFIG);
    for client in [
        "192.168.203.50",
        "192.168.203.63",
        "192.168.203.128",
        "172.20.7.1",
    ] {
        opens(&mut lb, client);
    }
    for client in [
        "192.168.203.64",
        "192.168.203.127",
        "192.168.203.1",
        "172.20.8.1",
    ] {
        refused(&mut lb, client, "denied");
    }
    // The other service has no rules: whoever the network lets in.
    let query = udp("172.20.8.1:40000", DNS).between(CLIENT, TENANT_NIC);
    forwarded(&mut lb, Port::Tenant, &query);
}

#[privileged_test]
fn a_source_that_its_network_cannot_have_is_spoofed() {
    let mut lb = DataPlane::new(CONFIG);
    let spoofed = [
        "192.168.204.50",  // another tenant's
        "10.32.96.105",    // a node's
        "10.32.96.50",     // our SNAT address
        "192.168.203.110", // our VIP
        "192.168.203.0",   // the network
        "192.168.203.255", // its broadcast address
        "172.21.0.1",
        "8.8.8.8",
    ];
    for client in spoofed {
        refused(&mut lb, client, "spoofed");
    }
    for client in [
        "0.0.0.0",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        refused(&mut lb, client, "bogon");
    }
    assert_eq!(lb.drain_free_ids().len(), IDS, "no state was made");
}

/// Nothing is learned of a service by who is not let in: a denied segment is denied, SYN or not.
#[privileged_test]
fn a_denied_source_is_denied_whatever_it_sends() {
    let mut lb = DataPlane::new(CONFIG);
    for flags in [SYN_ONLY, ACK_ONLY, RST_ONLY, FIN_ACK] {
        let bytes = request("192.168.203.64:40000", API, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "denied");
    }
    let closed = request("192.168.203.64:40000", "192.168.203.110:6444", SYN_ONLY);
    assert_dropped(&mut lb, Port::Tenant, &closed.bytes(), "no_service");
}

/// The first fragment is judged as a packet, and the others have nobody to follow.
#[privileged_test]
fn options_and_fragments_do_not_bypass_the_rules() {
    let mut lb = DataPlane::new(CONFIG);
    let denied = request("192.168.203.64:40000", API, SYN_ONLY);
    for options in [[1, 1, 1, 0], [7, 4, 4, 0], [148, 4, 0, 0]] {
        let bytes = denied.clone().options(&options).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "denied");
    }
    for (field, reason) in [
        (0x2000, "denied"),
        (0x2001, "fragment_early"),
        (0x0001, "fragment_early"),
    ] {
        let bytes = denied.clone().payload(&[7; 4]).fragment(field).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
    }
}

/// A host on mgmt that takes us for a router gets nowhere near a tenant.
#[privileged_test]
fn mgmt_reaches_no_tenant() {
    let mut lb = DataPlane::new(CONFIG);
    for to in ["192.168.203.50:22", "192.168.203.110:6443"] {
        let frame = tcp("10.32.96.105:40000", to, SYN_ONLY).between(KAS_MAC, MGMT_NIC);
        assert_dropped(&mut lb, Port::Mgmt, &frame.bytes(), "to_tenant");
    }
    let host = tcp("10.32.96.105:40000", "10.32.96.10:22", SYN_ONLY).between(KAS_MAC, MGMT_NIC);
    assert_passed(&mut lb, Port::Mgmt, &host.bytes());
    let elsewhere = tcp("10.32.96.105:40000", "8.8.8.8:443", SYN_ONLY).between(KAS_MAC, MGMT_NIC);
    assert_passed(&mut lb, Port::Mgmt, &elsewhere.bytes());
}

/// A backend behind a router gets its frames by the router's MAC, and may answer from there.
#[privileged_test]
fn a_backend_behind_a_gateway_is_reached_by_the_gateways_mac() {
    let config = CONFIG
        .replace(
            "snat: [10.32.96.50] }",
            "snat: [10.32.96.50], routes: [{ to: 10.40.0.0/16, via: 10.32.96.1 }] }",
        )
        .replace("10.32.96.105:30918", "10.40.1.5:30918");
    let gateway = lb_tests::product::program::node_mac(std::net::Ipv4Addr::new(10, 32, 96, 1));
    let mut lb = DataPlane::new(&config);
    let sent = forwarded(&mut lb, Port::Tenant, &request(CLIENT_A, API, SYN_ONLY));
    let wanted = tcp(&snat(1024), "10.40.1.5:30918", SYN_ONLY).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, gateway));
    let reply = tcp("10.40.1.5:30918", &snat(1024), SYN_ACK).numbers(5000, 1);
    let sent = forwarded(&mut lb, Port::Mgmt, &reply.between(gateway, MGMT_NIC));
    let wanted = tcp(API, CLIENT_A, SYN_ACK).numbers(5000, 1).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}
