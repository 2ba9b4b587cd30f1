//! The configuration that most tests of IPv6 share, and its addresses by name: the twin of the one of IPv4.

use std::net::Ipv6Addr;

use lb_common::addr::Mac;
use lb_tests::{
    frames::{
        packet::{Decoded, check},
        six::{Frame, tcp, udp},
    },
    product::program::node_mac6,
};

pub(crate) use super::super::given::{assert_dropped, assert_passed, assert_refused};
pub(crate) use lb_tests::{
    frames::packet::flags::*,
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Outcome, Port, TENANT_NIC},
};

/// One TCP and one UDP service with one backend each, and a service without backends.
pub(crate) const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: ["fd00:32::/64"], snat: ["fd00:32::50"] }
  tenant-a: { role: tenant, interface: eth0, prefixes: ["fd00:203::/64"] }
pools:
  kas-a:  { network: mgmt, backends: ["[fd00:32::105]:30918"] }
  dns-a:  { network: mgmt, backends: ["[fd00:32::106]:30053"] }
  none-a: { network: mgmt, backends: [] }
services:
  api-a:   { network: tenant-a, listen: ["[fd00:203::110]:6443/tcp"], pool: kas-a }
  dns-a:   { network: tenant-a, listen: ["[fd00:203::110]:53/udp"], pool: dns-a }
  empty-a: { network: tenant-a, listen: ["[fd00:203::110]:80/tcp", "[fd00:203::110]:54/udp"], pool: none-a }
"#;

pub(crate) const VIP: &str = "fd00:203::110";
pub(crate) const SNAT: &str = "fd00:32::50";
pub(crate) const HOST: &str = "fd00:203::50";
pub(crate) const NODE: &str = "fd00:32::105";
pub(crate) const CLIENT_A: &str = "[fd00:203::50]:40000";
pub(crate) const CLIENT_B: &str = "[fd00:203::51]:40000";
pub(crate) const API: &str = "[fd00:203::110]:6443";
pub(crate) const DNS: &str = "[fd00:203::110]:53";
pub(crate) const KAS: &str = "[fd00:32::105]:30918";
pub(crate) const RESOLVER: &str = "[fd00:32::106]:30053";
pub(crate) const KAS_MAC: Mac = node_mac6(Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x105));
pub(crate) const RESOLVER_MAC: Mac = node_mac6(Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x106));

/// The client's first sequence number in [`establish`]; the backend's is [`BACKEND_ISN`].
pub(crate) const CLIENT_ISN: u32 = 1000;
/// See [`CLIENT_ISN`].
pub(crate) const BACKEND_ISN: u32 = 5000;

/// The link-local address that the cell of a network has whose NIC has this MAC.
pub(crate) fn link_local(mac: Mac) -> String {
    let [a, b, c, d, e, f] = mac.bytes();
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..].copy_from_slice(&[a ^ 2, b, c, 0x6c, 0x62, d, e, f]);
    Ipv6Addr::from(octets).to_string()
}

/// `[fd00:32::50]:port`.
pub(crate) fn snat(port: u16) -> String {
    format!("[{SNAT}]:{port}")
}

/// A TCP frame of a client to a VIP, as it arrives at the tenant NIC.
pub(crate) fn request(client: &str, vip: &str, flags: u8) -> Frame {
    tcp(client, vip, flags).between(CLIENT, TENANT_NIC)
}

/// A TCP frame of the API backend to a SNAT port, as it arrives at the mgmt NIC.
pub(crate) fn reply(port: u16, flags: u8) -> Frame {
    tcp(KAS, &snat(port), flags).between(KAS_MAC, MGMT_NIC)
}

/// A UDP frame of a client to the DNS VIP.
pub(crate) fn query(client: &str) -> Frame {
    udp(client, DNS).between(CLIENT, TENANT_NIC)
}

/// A UDP frame of the DNS backend to a SNAT port.
pub(crate) fn answer(port: u16) -> Frame {
    udp(RESOLVER, &snat(port)).between(RESOLVER_MAC, MGMT_NIC)
}

/// Opens a TCP flow of `client` on SNAT `port` and completes its handshake.
pub(crate) fn establish(lb: &mut DataPlane, client: &str, port: u16) {
    let syn = request(client, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(lb, Port::Tenant, &syn);
    let syn_ack = reply(port, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(lb, Port::Mgmt, &syn_ack);
    let ack = request(client, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(lb, Port::Tenant, &ack);
}

/// Sends a frame that must be forwarded, and gives it as it left, checksums verified.
pub(crate) fn forwarded(lb: &mut DataPlane, port: Port, frame: &Frame) -> Vec<u8> {
    passed_on(lb, port, &frame.bytes())
}

/// The same of bytes.
pub(crate) fn passed_on(lb: &mut DataPlane, port: Port, bytes: &[u8]) -> Vec<u8> {
    let outcome = lb.receive(port, bytes);
    let network = match port {
        Port::Mgmt => "mgmt",
        _ => "tenant-a",
    };
    assert_eq!(
        (outcome.action, outcome.counted),
        (Action::Redirect, ("nic", network.to_owned(), "forwarded")),
        "{}",
        Decoded(bytes)
    );
    assert_eq!(check(&outcome.frame), Ok(()), "{}", Decoded(&outcome.frame));
    outcome.frame
}

/// Asserts that a frame has exactly the bytes of another one, and shows both in words where not.
pub(crate) fn assert_frame(found: &[u8], wanted: &Frame) {
    let wanted = wanted.bytes();
    assert!(
        found == wanted,
        "\n found {}\nwanted {}\n{found:02x?}\n{wanted:02x?}",
        Decoded(found),
        Decoded(&wanted)
    );
}

/// Says that the network with this name carries packets of `mtu` bytes.
pub(crate) fn set_mtu(lb: &mut DataPlane, name: &str, mtu: u16) {
    let id = lb.ids.get(lb_user::model::registry::Kind::Network, name);
    let id = id.expect("a network of the configuration");
    let mut network = lb.maps.networks.get(&id, 0).expect("the network");
    network.mtu = mtu;
    lb.maps.networks.set(id, &network, 0).expect("a write");
}
