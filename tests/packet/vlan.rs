//! Two tenants on one trunk with the same addresses, and what else comes with a tag.

use std::net::Ipv4Addr;

use lb_common::{
    addr::Mac,
    verdict::{DropReason, Hook},
};
use lb_tests::{
    frames::packet::{Frame, arp, check, flags::*, tag, tcp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Outcome, Port, TENANT_NIC, node_mac},
};
use lb_user::model::registry::Kind;

use super::given::{API, CLIENT_A, assert_dropped_on, assert_frame, snat};

/// Tenant networks a and b are tagged; the hub's own network is tagged on the other NIC, beside an
/// untagged one.
const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, vlan: 100, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  oob:      { role: mgmt,   interface: eth1, prefixes: [10.99.0.0/24] }
  tenant-a: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24] }
  tenant-b: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24] }
pools:
  kas-a: { network: mgmt, backends: ["10.32.96.105:30918"] }
  kas-b: { network: mgmt, backends: ["10.32.96.105:30919"] }
services:
  api-a: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a }
  api-b: { network: tenant-b, listen: ["192.168.203.110:6443/tcp"], pool: kas-b }
"#;

const KAS_A: &str = "10.32.96.105:30918";
const KAS_B: &str = "10.32.96.105:30919";
const KAS_MAC: Mac = node_mac(Ipv4Addr::new(10, 32, 96, 105));

fn syn(vlan: u16) -> Frame {
    tcp(CLIENT_A, API, SYN_ONLY)
        .between(CLIENT, TENANT_NIC)
        .tagged(0x8100, vlan)
}

/// Sends a frame that must be forwarded; its tag, and the frame without it.
fn forwarded(
    lb: &mut DataPlane,
    port: Port,
    bytes: &[u8],
    network: &str,
) -> (Option<u16>, Vec<u8>) {
    let outcome = lb.receive(port, bytes);
    assert_eq!(
        (outcome.action, outcome.counted),
        (Action::Redirect, ("nic", network.to_owned(), "forwarded"))
    );
    let (tci, frame) = untagged(&outcome.frame);
    assert_eq!(check(&frame), Ok(()));
    (tci, frame)
}

/// The same client tuple to the same VIP on both VLANs: two flows, to each tenant's own backend, and
/// each reply goes back to its own VLAN.
#[privileged_test]
fn tenants_with_the_same_addresses_never_meet() {
    let mut lb = DataPlane::new(CONFIG);
    let tenants = [
        (2003, "tenant-a", KAS_A, snat(1024)),
        (2004, "tenant-b", KAS_B, snat(1025)),
    ];
    for (vlan, network, backend, snat) in &tenants {
        let (tci, sent) = forwarded(&mut lb, Port::Tenant, &syn(*vlan).bytes(), network);
        assert_eq!(tci, Some(100), "the hub's VLAN");
        let wanted = tcp(snat, backend, SYN_ONLY).ttl(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
    }
    for (vlan, _, backend, snat) in &tenants {
        let reply = tcp(backend, snat, SYN_ACK)
            .numbers(5000, 1)
            .between(KAS_MAC, MGMT_NIC);
        let (tci, sent) = forwarded(&mut lb, Port::Mgmt, &tag(&reply.bytes(), 100), "mgmt");
        assert_eq!(tci, Some(*vlan));
        let wanted = tcp(API, CLIENT_A, SYN_ACK).numbers(5000, 1).ttl(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    }
    let crossed = tcp(KAS_B, &snat(1024), SYN_ACK)
        .numbers(5000, 1)
        .between(KAS_MAC, MGMT_NIC);
    let bytes = tag(&crossed.bytes(), 100);
    assert_dropped_on(&mut lb, Port::Mgmt, &bytes, "mgmt", "reply_mismatch");
}

fn passes(lb: &mut DataPlane, port: Port, bytes: &[u8], network: &str) {
    let wanted = Outcome {
        action: Action::Pass,
        frame: bytes.to_vec(),
        counted: ("nic", network.to_owned(), "passed"),
    };
    assert_eq!(lb.receive(port, bytes), wanted);
}

#[privileged_test]
fn undeclared_vlans_and_service_tags_pass_untouched() {
    let mut lb = DataPlane::new(CONFIG);
    let plain = tcp(CLIENT_A, API, SYN_ONLY).between(CLIENT, TENANT_NIC);
    passes(&mut lb, Port::Tenant, &plain.bytes(), "-");
    passes(&mut lb, Port::Tenant, &syn(2005).bytes(), "-");
    passes(
        &mut lb,
        Port::Tenant,
        &syn(2005).tagged(0x8100, 2003).bytes(),
        "-",
    );
    for inner in [0x8100, 0x88a8] {
        let service = plain.clone().tagged(0x88a8, 2003).tagged(inner, 2003);
        passes(&mut lb, Port::Tenant, &service.bytes(), "-");
    }
    passes(
        &mut lb,
        Port::Tenant,
        &plain.tagged(0x88a8, 2003).bytes(),
        "-",
    );
}

#[privileged_test]
fn what_is_for_the_host_passes_with_its_tag() {
    let mut lb = DataPlane::new(CONFIG);
    let ssh = tcp("10.32.96.7:50000", "10.32.96.10:22", SYN_ONLY).between(KAS_MAC, MGMT_NIC);
    passes(
        &mut lb,
        Port::Mgmt,
        &tag(&ssh.bytes(), 0x6000 | 100),
        "mgmt",
    );
    let stacked = ssh.clone().tagged(0x8100, 100).tagged(0x8100, 7);
    passes(&mut lb, Port::Mgmt, &stacked.bytes(), "mgmt");
    let oob = tcp("10.99.0.7:50000", "10.99.0.10:22", SYN_ONLY).between(KAS_MAC, MGMT_NIC);
    for priority in [0, 0xe000] {
        passes(&mut lb, Port::Mgmt, &tag(&oob.bytes(), priority), "oob");
        let service = oob.clone().tagged(0x88a8, priority);
        passes(&mut lb, Port::Mgmt, &service.bytes(), "oob");
    }
    let other = ssh.between(KAS_MAC, Mac::new([2, 9, 9, 9, 9, 9]));
    passes(&mut lb, Port::Mgmt, &tag(&other.bytes(), 100), "mgmt");
}

/// A tag behind a tenant's tag, or behind one that the host's kernel takes off by itself, is a way
/// into another VLAN.
#[privileged_test]
fn no_second_tag_hides_behind_a_tenants_tag_or_a_priority() {
    let mut lb = DataPlane::new(CONFIG);
    let plain = tcp(CLIENT_A, API, SYN_ONLY).between(CLIENT, TENANT_NIC);
    for inner in [0x8100, 0x88a8] {
        for vlan in [0, 100, 2004] {
            let bytes = syn(2003).tagged(inner, vlan).bytes();
            assert_dropped_on(&mut lb, Port::Tenant, &bytes, "tenant-a", "stacked_tag");
            for outer in [0x8100, 0x88a8] {
                let bytes = plain.clone().tagged(outer, 0).tagged(inner, vlan).bytes();
                assert_dropped_on(&mut lb, Port::Tenant, &bytes, "-", "stacked_tag");
            }
        }
    }
}

/// With VLAN id 0 a frame is judged like an untagged one, by the kernel and by us.
#[privileged_test]
fn a_priority_tag_is_looked_through() {
    let untagged_tenant = CONFIG.replace("interface: eth0, vlan: 2003,", "interface: eth0,");
    let mut lb = DataPlane::new(&untagged_tenant);
    let plain = tcp(CLIENT_A, API, SYN_ONLY).between(CLIENT, TENANT_NIC);
    for (protocol, priority) in [(0x8100, 0), (0x8100, 0xe000), (0x8100, 0x1000), (0x88a8, 0)] {
        let bytes = plain.clone().tagged(protocol, priority).bytes();
        let (tci, _) = forwarded(&mut lb, Port::Tenant, &bytes, "tenant-a");
        assert_eq!(tci, Some(100));
        let host = tcp(CLIENT_A, "192.168.203.1:22", SYN_ONLY).between(CLIENT, TENANT_NIC);
        let bytes = host.tagged(protocol, priority).bytes();
        assert_dropped_on(&mut lb, Port::Tenant, &bytes, "tenant-a", "not_declared");
    }
}

#[privileged_test]
fn arp_is_answered_with_its_own_tenants_tag_and_leaves_its_cell_tagged() {
    let mut lb = DataPlane::new(CONFIG);
    let asks = arp(
        1,
        CLIENT,
        "192.168.203.50",
        Mac::default(),
        "192.168.203.110",
    );
    for (vlan, network) in [(2003, "tenant-a"), (2004, "tenant-b")] {
        let answer = arp(2, TENANT_NIC, "192.168.203.110", CLIENT, "192.168.203.50");
        let outcome = lb.receive(Port::Tenant, &tag(&asks, vlan));
        let wanted = Outcome {
            action: Action::Transmit,
            frame: tag(&answer, vlan),
            counted: ("nic", network.to_owned(), "transmitted"),
        };
        assert_eq!(outcome, wanted);
        let wanted = Outcome {
            action: Action::Redirect,
            frame: tag(&answer, vlan),
            counted: ("cell", network.to_owned(), "forwarded"),
        };
        assert_eq!(lb.receive(Port::Cell(network), &answer), wanted);
        // What the cell has asked for enters it untagged.
        let reply = arp(2, CLIENT, "192.168.203.50", TENANT_NIC, "192.168.203.110");
        let wanted = Outcome {
            action: Action::Redirect,
            frame: reply.clone(),
            counted: ("nic", network.to_owned(), "delivered"),
        };
        assert_eq!(lb.receive(Port::Tenant, &tag(&reply, vlan)), wanted);
    }
    let gateway = arp(1, CLIENT, "192.168.203.50", Mac::default(), "192.168.203.1");
    let bytes = tag(&gateway, 2003);
    assert_dropped_on(&mut lb, Port::Tenant, &bytes, "tenant-a", "arp_not_ours");
}

/// Lengths are checked behind the tag as without one.
#[privileged_test]
fn every_truncation_of_a_tagged_frame_is_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    let whole = syn(2003).bytes();
    for length in 14..whole.len() {
        let network = if length < 18 { "-" } else { "tenant-a" };
        assert_dropped_on(
            &mut lb,
            Port::Tenant,
            &whole[..length],
            network,
            "malformed",
        );
    }
}

/// What a tenant sends does not take the place of what another one has sent, also where both are the same but for the
/// tag; the first drop of each network is there beside that of the other.
#[privileged_test]
fn each_network_has_its_own_latest_packet_of_a_reason() {
    let mut lb = DataPlane::new(CONFIG);
    let reason = DropReason::NoService;
    let cases = [("tenant-a", 2003, 22), ("tenant-b", 2004, 23)];
    let id = |lb: &DataPlane, network| {
        let id = lb.ids.get(Kind::Network, network).expect("a network");
        u16::try_from(id).expect("16 bits")
    };
    for (network, vlan, port) in cases {
        let to = format!("192.168.203.110:{port}");
        let syn = tcp(CLIENT_A, &to, SYN_ONLY).between(CLIENT, TENANT_NIC);
        let bytes = syn.tagged(0x8100, vlan).bytes();
        assert_dropped_on(&mut lb, Port::Tenant, &bytes, network, reason.label());
    }
    for (network, _, port) in cases {
        let id = id(&lb, network);
        let sample = lb.maps.sample(id, reason as u32).expect("the map");
        let sample = sample.expect(network);
        assert_eq!((sample.network, sample.hook), (id, Hook::Nic as u16));
        let bytes: Vec<u8> = sample
            .words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        // VIP, the client's port, the VIP's port.
        let found = bytes
            .windows(8)
            .find(|found| found.starts_with(&[192, 168, 203, 110]));
        let [_, _, _, _, _, _, high, low] = found.expect("the VIP")[..] else {
            panic!("eight bytes");
        };
        assert_eq!(u16::from_be_bytes([high, low]), port, "{network}");
    }
    let mgmt = lb.maps.sample(id(&lb, "mgmt"), reason as u32);
    assert_eq!(mgmt.expect("the map"), None);
}
