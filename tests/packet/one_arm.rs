//! One-arm: clients, VIP and backends on one network; every frame leaves where it came in.

use std::net::Ipv4Addr;

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Frame, flags::*, tag, tcp, untagged},
    product::program::{Action, CLIENT, DataPlane, Outcome, Port, TENANT_NIC, node_mac},
};

use super::given::{assert_dropped, assert_frame};

const APPS: &str = "192.168.203.112:443";
const WORKER: &str = "192.168.203.101:30190";
const WORKER_MAC: Mac = node_mac(Ipv4Addr::new(192, 168, 203, 101));
const SNAT: &str = "192.168.203.9:1024";
const CLIENT_A: &str = "192.168.203.50:40000";

/// `vlan` is empty, or a `vlan:` key.
fn config(vlan: &str) -> String {
    format!(
        r#"
version: 1
networks:
  tenant-a: {{ role: tenant, interface: eth0, {vlan} prefixes: [192.168.203.0/24], snat: [192.168.203.9] }}
pools:
  apps-a: {{ network: tenant-a, backends: ["{WORKER}"] }}
services:
  apps-a: {{ network: tenant-a, listen: ["{APPS}/tcp"], pool: apps-a }}
"#
    )
}

fn transmitted(lb: &mut DataPlane, frame: &Frame) -> Vec<u8> {
    let Outcome {
        action,
        frame,
        counted,
    } = lb.receive(Port::Tenant, &frame.bytes());
    assert_eq!(
        (action, counted),
        (
            Action::Transmit,
            ("nic", "tenant-a".to_owned(), "transmitted")
        )
    );
    frame
}

#[privileged_test]
fn request_and_reply_hairpin_with_snat() {
    let mut lb = DataPlane::new(&config(""));
    let syn = tcp(CLIENT_A, APPS, SYN_ONLY).between(CLIENT, TENANT_NIC);
    let sent = transmitted(&mut lb, &syn.numbers(1000, 0));
    let wanted = tcp(SNAT, WORKER, SYN_ONLY).numbers(1000, 0).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, WORKER_MAC));

    let syn_ack = tcp(WORKER, SNAT, SYN_ACK).between(WORKER_MAC, TENANT_NIC);
    let sent = transmitted(&mut lb, &syn_ack.numbers(5000, 1001));
    let wanted = tcp(APPS, CLIENT_A, SYN_ACK).numbers(5000, 1001).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

/// A worker that is its own backend sees itself only behind the SNAT address.
#[privileged_test]
fn a_worker_reaches_itself_through_the_vip() {
    let mut lb = DataPlane::new(&config(""));
    let own = "192.168.203.101:40000";
    let syn = tcp(own, APPS, SYN_ONLY).between(WORKER_MAC, TENANT_NIC);
    let sent = transmitted(&mut lb, &syn.numbers(1000, 0));
    let wanted = tcp(SNAT, WORKER, SYN_ONLY).numbers(1000, 0).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, WORKER_MAC));
    let syn_ack = tcp(WORKER, SNAT, SYN_ACK).between(WORKER_MAC, TENANT_NIC);
    let sent = transmitted(&mut lb, &syn_ack.numbers(5000, 1001));
    let wanted = tcp(APPS, own, SYN_ACK).numbers(5000, 1001).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, WORKER_MAC));
}

/// Clients and backends are neighbours, so a client can send to the SNAT address itself.
#[privileged_test]
fn a_stranger_cannot_speak_for_a_backend() {
    let mut lb = DataPlane::new(&config(""));
    transmitted(
        &mut lb,
        &tcp(CLIENT_A, APPS, SYN_ONLY).between(CLIENT, TENANT_NIC),
    );
    for source in ["192.168.203.51:30190", "192.168.203.101:30191", APPS] {
        let forged = tcp(source, SNAT, SYN_ACK).between(CLIENT, TENANT_NIC);
        let bytes = forged.numbers(5000, 1).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "reply_mismatch");
    }
}

#[privileged_test]
fn on_a_tagged_network_the_tag_comes_off_and_on_again() {
    let mut lb = DataPlane::new(&config("vlan: 2003,"));
    let syn = tcp(CLIENT_A, APPS, SYN_ONLY)
        .between(CLIENT, TENANT_NIC)
        .tagged(0x8100, 0x6000 | 2003);
    let sent = transmitted(&mut lb, &syn);
    let wanted = tcp(SNAT, WORKER, SYN_ONLY)
        .ttl(63)
        .between(TENANT_NIC, WORKER_MAC);
    assert_eq!(
        sent,
        tag(&wanted.bytes(), 2003),
        "the sender's priority is not carried on"
    );
    assert_eq!(untagged(&sent).0, Some(2003));
}
