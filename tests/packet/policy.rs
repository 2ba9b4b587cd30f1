//! Which clients may open a flow, and what mgmt may reach: every refusal before any state is made.

use std::net::IpAddr;

use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC, node_mac, node_mac6},
};

use super::given::*;

/// Of its own prefix, and of one behind a router; the API is for some of them only.
fn rules(ip: &Family) -> &'static str {
    ip.pick(RULES_V4, RULES_V6)
}

pub(crate) const RULES_V4: &str = r#"
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

pub(crate) const RULES_V6: &str = r#"
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

fn opens(ip: &Family, lb: &mut DataPlane, client: &str) {
    forwarded(
        lb,
        Port::Tenant,
        &request(&ip.end(client, 40_000), ip.api, SYN_ONLY),
    );
}

pub(crate) fn refused(ip: &Family, lb: &mut DataPlane, client: &str, reason: &'static str) {
    let bytes = request(&ip.end(client, 40_000), ip.api, SYN_ONLY).bytes();
    assert_dropped(lb, Port::Tenant, &bytes, reason);
}

#[privileged_test(families)]
fn the_longest_rule_decides(ip: &Family) {
    let mut lb = DataPlane::new(rules(ip));
    let let_in: &[&str] = ip.pick(
        &[
            "192.168.203.50",
            "192.168.203.63",
            "192.168.203.128",
            "172.20.7.1",
        ],
        &[
            "fd00:203::50",
            "fd00:203::7",
            "fd00:203::10",
            "fd00:203::65:0",
            "fd00:203::63:ffff",
            "fd00:203::1:0:64:0",
            "fd00:172:0:7::1",
        ],
    );
    for client in let_in {
        opens(ip, &mut lb, client);
    }
    let denied: &[&str] = ip.pick(
        &[
            "192.168.203.64",
            "192.168.203.127",
            "192.168.203.1",
            "172.20.8.1",
        ],
        &[
            "fd00:203::64:0",
            "fd00:203::64:ffff",
            "fd00:203::8",
            "fd00:203::f",
            "fd00:172:0:8::1",
            "fd00:172:0:6:ffff:ffff:ffff:ffff",
        ],
    );
    for client in denied {
        refused(ip, &mut lb, client, "denied");
    }
    // The other service has no rules: all clients that the network lets in.
    let query = udp(
        ip.pick("172.20.8.1:40000", "[fd00:172:0:8::1]:40000"),
        ip.dns,
    )
    .between(CLIENT, TENANT_NIC);
    forwarded(&mut lb, Port::Tenant, &query);
}

/// Nothing is learned of a service by a client that is not let in: a denied segment is denied, SYN or not.
#[privileged_test(families)]
fn a_denied_source_is_denied_whatever_it_sends(ip: &Family) {
    let mut lb = DataPlane::new(rules(ip));
    let denied = ip.pick("192.168.203.64:40000", "[fd00:203::64:1]:40000");
    for flags in [SYN_ONLY, ACK_ONLY, RST_ONLY, FIN_ACK] {
        let bytes = request(denied, ip.api, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "denied");
    }
    let closed = request(denied, &ip.end(ip.vip, 6444), SYN_ONLY);
    assert_dropped(&mut lb, Port::Tenant, &closed.bytes(), "no_service");
}

/// RELIABILITY 44: a host on mgmt that takes us for a router gets nowhere near a tenant; what is the host's passes.
#[privileged_test(families)]
fn mgmt_reaches_no_tenant(ip: &Family) {
    let mut lb = DataPlane::new(rules(ip));
    let from_node = |to: &str| {
        let frame = tcp(&ip.end(ip.node, 40_000), to, SYN_ONLY);
        frame.between(ip.kas_mac, MGMT_NIC).bytes()
    };
    let routed = ip.pick("172.20.9.1:22", "[fd00:172:0:9::1]:22");
    for to in [&ip.end(ip.host, 22), ip.api, routed] {
        assert_dropped(&mut lb, Port::Mgmt, &from_node(to), "to_tenant");
    }
    let others = ip.pick(
        ["10.32.96.10:22", "8.8.8.8:443"],
        ["[fd00:32::10]:22", "[2001:db8::1]:443"],
    );
    for to in others {
        assert_passed(&mut lb, Port::Mgmt, &from_node(to));
    }
}

/// A backend behind a router gets its frames by the router's MAC, and may answer from there.
#[privileged_test(families)]
fn a_backend_behind_a_gateway_is_reached_by_the_gateways_mac(ip: &Family) {
    let [snat, prefix, router, far] = ip.pick(
        [
            "snat: [10.32.96.50]",
            "10.40.0.0/16",
            "10.32.96.1",
            "10.40.1.5",
        ],
        [
            r#"snat: ["fd00:32::50"]"#,
            "fd00:40::/48",
            "fd00:32::1",
            "fd00:40:0:1::5",
        ],
    );
    let route = format!(r#"{snat}, routes: [{{ to: "{prefix}", via: "{router}" }}]"#);
    let backend = &ip.end(far, 30918);
    let config = rules(ip).replace(snat, &route).replace(ip.kas, backend);
    let gateway = match router.parse().expect("an address") {
        IpAddr::V4(router) => node_mac(router),
        IpAddr::V6(router) => node_mac6(router),
    };
    let mut lb = DataPlane::new(&config);
    let sent = forwarded(
        &mut lb,
        Port::Tenant,
        &request(ip.client_a, ip.api, SYN_ONLY),
    );
    let wanted = tcp(&ip.snat(1024), backend, SYN_ONLY).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, gateway));
    let reply = tcp(backend, &ip.snat(1024), SYN_ACK).numbers(5000, 1);
    let sent = forwarded(&mut lb, Port::Mgmt, &reply.between(gateway, MGMT_NIC));
    let wanted = tcp(ip.api, ip.client_a, SYN_ACK).numbers(5000, 1).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}
