//! Networks whose addresses are the host's own: only what is declared is ours.

use std::net::Ipv4Addr;

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{arp, flags::*, icmp, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Outcome, Port, TENANT_NIC, node_mac},
};

use super::given::{assert_dropped_on, assert_frame, assert_passed, assert_refused};

/// One public address, backends behind a bridge of the host; both SNAT ranges have a hundred ports.
pub(crate) const CONFIG: &str = r#"
version: 1
networks:
  tenant-a: { role: uplink, interface: eth0, address: host, prefixes: [203.0.113.0/24], sources: any }
  mgmt:
    role: mgmt
    interface: virbr0
    address: host
    prefixes: [192.168.126.0/24]
    snat: [{ address: 192.168.126.1, ports: 20000-20099 }]
pools:
  kas: { network: mgmt, backends: ["192.168.126.11:6443"] }
services:
  api: { network: tenant-a, listen: ["203.0.113.10:6443/tcp"], pool: kas }
  # On the bridge itself, at the address that is the SNAT address as well.
  api-inside: { network: mgmt, listen: ["192.168.126.1:6443/tcp"], pool: kas }
"#;

const VIP: &str = "203.0.113.10:6443";
const CLIENT_X: &str = "198.51.100.7:40000";
const KAS: &str = "192.168.126.11:6443";
const KAS_MAC: Mac = node_mac(Ipv4Addr::new(192, 168, 126, 11));
const SNAT: &str = "192.168.126.1:20000";

fn forwarded(lb: &mut DataPlane, port: Port, bytes: &[u8]) -> Vec<u8> {
    let Outcome { frame, counted, .. } = lb.receive(port, bytes);
    assert_eq!(counted.2, "forwarded");
    frame
}

#[privileged_test]
fn a_declared_port_of_the_host_is_a_vip() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = tcp(CLIENT_X, VIP, SYN_ONLY).between(CLIENT, TENANT_NIC);
    let sent = forwarded(&mut lb, Port::Tenant, &syn.bytes());
    let wanted = tcp(SNAT, KAS, SYN_ONLY).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
    let reply = tcp(KAS, SNAT, SYN_ACK)
        .numbers(5000, 1)
        .between(KAS_MAC, MGMT_NIC);
    let sent = forwarded(&mut lb, Port::Mgmt, &reply.bytes());
    let wanted = tcp(VIP, CLIENT_X, SYN_ACK).numbers(5000, 1).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

/// One address, two subjects: a service on a port, and the range of SNAT ports.
#[privileged_test]
fn an_address_may_be_a_vip_and_a_snat_address() {
    let mut lb = DataPlane::new(CONFIG);
    let inside = "192.168.126.12:40000";
    let syn = tcp(inside, "192.168.126.1:6443", SYN_ONLY).between(CLIENT, MGMT_NIC);
    let outcome = lb.receive(Port::Mgmt, &syn.bytes());
    assert_eq!(outcome.counted.2, "transmitted");
    let wanted = tcp(SNAT, KAS, SYN_ONLY).ttl(63);
    assert_frame(&outcome.frame, &wanted.between(MGMT_NIC, KAS_MAC));
}

#[privileged_test]
fn everything_else_to_the_host_passes_untouched() {
    let mut lb = DataPlane::new(CONFIG);
    let to_host = |l4: lb_tests::frames::packet::Frame| l4.between(CLIENT, TENANT_NIC).bytes();
    assert_passed(
        &mut lb,
        Port::Tenant,
        &to_host(tcp(CLIENT_X, "203.0.113.10:22", SYN_ONLY)),
    );
    assert_passed(
        &mut lb,
        Port::Tenant,
        &to_host(tcp(CLIENT_X, "203.0.113.10:22", ACK_ONLY).ttl(1)),
    );
    assert_passed(&mut lb, Port::Tenant, &to_host(udp(CLIENT_X, VIP)));
    let mut ping = to_host(tcp(CLIENT_X, VIP, SYN_ONLY));
    ping[23] = 1;
    assert_passed(&mut lb, Port::Tenant, &ping);
    let fragment = to_host(tcp(CLIENT_X, VIP, SYN_ONLY).fragment(0x2000));
    assert_passed(&mut lb, Port::Tenant, &fragment);
    let asks = arp(1, CLIENT, "203.0.113.1", Mac::default(), "203.0.113.10");
    assert_passed(&mut lb, Port::Tenant, &asks);
    for port in [19_999, 20_100] {
        let other = tcp(KAS, &format!("192.168.126.1:{port}"), SYN_ACK);
        assert_passed(
            &mut lb,
            Port::Mgmt,
            &other.between(KAS_MAC, MGMT_NIC).bytes(),
        );
    }
}

#[privileged_test]
fn declared_ports_and_the_snat_range_are_not_the_hosts() {
    let mut lb = DataPlane::new(CONFIG);
    let stray = tcp(CLIENT_X, VIP, ACK_ONLY)
        .between(CLIENT, TENANT_NIC)
        .bytes();
    assert_refused(&mut lb, Port::Tenant, &stray, "no_flow");
    let bogon = tcp("127.0.0.1:40000", VIP, SYN_ONLY)
        .between(CLIENT, TENANT_NIC)
        .bytes();
    assert_dropped_on(&mut lb, Port::Tenant, &bogon, "tenant-a", "bogon");
    for port in [20_000, 20_099] {
        let snat = format!("192.168.126.1:{port}");
        let bytes = tcp(KAS, &snat, SYN_ACK).between(KAS_MAC, MGMT_NIC).bytes();
        assert_dropped_on(&mut lb, Port::Mgmt, &bytes, "mgmt", "reply_mismatch");
    }
    let spent = tcp(CLIENT_X, VIP, SYN_ONLY)
        .ttl(1)
        .between(CLIENT, TENANT_NIC)
        .bytes();
    let answer = assert_refused(&mut lb, Port::Tenant, &spent, "ttl_expired");
    assert_eq!(answer[26..30], [203, 0, 113, 10]);
}

/// Pings are the host's, and so are errors, but for those about a flow of ours.
#[privileged_test]
fn icmp_is_the_hosts_but_for_errors_about_a_flow() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = tcp(CLIENT_X, VIP, SYN_ONLY).between(CLIENT, TENANT_NIC);
    forwarded(&mut lb, Port::Tenant, &syn.bytes());
    let from_hub = |kind, body: &[u8]| {
        let sent = icmp("192.168.126.11", "192.168.126.1", kind, 1280);
        sent.between(KAS_MAC, MGMT_NIC).payload(body)
    };
    let quote = |frame: lb_tests::frames::packet::Frame| frame.bytes()[14..42].to_vec();
    let ours = quote(tcp(SNAT, KAS, SYN_ONLY));
    for (kind, body) in [
        ((8, 0), &b"ping"[..]),
        ((0, 0), b"pong"),
        ((5, 1), &ours),
        ((3, 4), &ours[..27]),
        ((3, 4), &quote(tcp("192.168.126.1:20001", KAS, SYN_ONLY))),
        ((3, 4), &quote(tcp("192.168.126.1:50000", KAS, SYN_ONLY))),
        ((3, 3), &quote(udp("192.168.126.1:123", KAS))),
    ] {
        assert_passed(&mut lb, Port::Mgmt, &from_hub(kind, body).bytes());
    }
    let fragment = from_hub((3, 4), &ours).fragment(0x2000);
    assert_passed(&mut lb, Port::Mgmt, &fragment.bytes());
    let sent = forwarded(&mut lb, Port::Mgmt, &from_hub((3, 4), &ours).bytes());
    let wanted = icmp("203.0.113.10", "198.51.100.7", (3, 4), 1280)
        .between(TENANT_NIC, CLIENT)
        .ttl(63)
        .payload(&quote(tcp(CLIENT_X, VIP, SYN_ONLY)));
    assert_eq!(sent, wanted.bytes());
    // A guess at the flow's sequence numbers belongs to no flow.
    let guess = quote(tcp(SNAT, KAS, ACK_ONLY).numbers(1 << 31, 0));
    let bytes = from_hub((3, 4), &guess).bytes();
    assert_dropped_on(&mut lb, Port::Mgmt, &bytes, "mgmt", "icmp_unrelated");
}

/// A range of a hundred ports holds a hundred flows, each on a port of its own. Of two networks neither has
/// so many places for half-open ones by default.
#[privileged_test]
fn a_range_of_ports_holds_as_many_flows() {
    let places = CONFIG.replace("sources: any }", "sources: any, half_open: 8192 }");
    let mut lb = DataPlane::new(&places);
    let syn = |client: u16| {
        let client = format!("198.51.100.7:{client}");
        tcp(&client, VIP, SYN_ONLY)
            .between(CLIENT, TENANT_NIC)
            .bytes()
    };
    for client in 0..100u16 {
        let sent = forwarded(&mut lb, Port::Tenant, &syn(40_000 + client));
        let port = u16::from_be_bytes([sent[34], sent[35]]);
        assert_eq!(port, 20_000 + client);
    }
    assert_refused(&mut lb, Port::Tenant, &syn(50_000), "snat_exhausted");
}

/// An address of the host that is only a SNAT address keeps all its other ports.
#[privileged_test]
fn the_ports_around_a_snat_range_are_the_hosts() {
    let mut lb = DataPlane::new(
        CONFIG
            .split("  # On the bridge")
            .next()
            .expect("the first part"),
    );
    for port in [22, 19_999, 20_100, 65_535] {
        let ssh = tcp(
            "192.168.126.11:50000",
            &format!("192.168.126.1:{port}"),
            SYN_ONLY,
        );
        assert_passed(&mut lb, Port::Mgmt, &ssh.between(KAS_MAC, MGMT_NIC).bytes());
    }
}
