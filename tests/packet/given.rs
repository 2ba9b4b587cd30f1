//! The configuration that most packet tests share, and its addresses by name.

use std::net::Ipv4Addr;

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, tcp, udp},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Outcome, Port, TENANT_NIC, node_mac},
};

/// One TCP and one UDP service with one backend each, and a service without backends.
pub(crate) const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas-a:  { network: mgmt, backends: ["10.32.96.105:30918"] }
  dns-a:  { network: mgmt, backends: ["10.32.96.106:30053"] }
  none-a: { network: mgmt, backends: [] }
services:
  api-a:   { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a }
  dns-a:   { network: tenant-a, listen: ["192.168.203.110:53/udp"], pool: dns-a }
  empty-a: { network: tenant-a, listen: ["192.168.203.110:80/tcp"], pool: none-a }
"#;

pub(crate) const CLIENT_A: &str = "192.168.203.50:40000";
pub(crate) const CLIENT_B: &str = "192.168.203.51:40000";
pub(crate) const API: &str = "192.168.203.110:6443";
pub(crate) const DNS: &str = "192.168.203.110:53";
pub(crate) const KAS: &str = "10.32.96.105:30918";
pub(crate) const RESOLVER: &str = "10.32.96.106:30053";
pub(crate) const KAS_MAC: Mac = node_mac(Ipv4Addr::new(10, 32, 96, 105));
pub(crate) const RESOLVER_MAC: Mac = node_mac(Ipv4Addr::new(10, 32, 96, 106));

/// The client's first sequence number in [`establish`]; the backend's is [`BACKEND_ISN`].
pub(crate) const CLIENT_ISN: u32 = 1000;
/// See [`CLIENT_ISN`].
pub(crate) const BACKEND_ISN: u32 = 5000;

/// `10.32.96.50:port`.
pub(crate) fn snat(port: u16) -> String {
    format!("10.32.96.50:{port}")
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

/// Opens a TCP flow of `client` on SNAT `port` and completes its handshake.
pub(crate) fn establish(lb: &mut DataPlane, client: &str, port: u16) {
    forwarded(
        lb,
        Port::Tenant,
        &request(client, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let syn_ack = reply(port, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(lb, Port::Mgmt, &syn_ack);
    let ack = request(client, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(lb, Port::Tenant, &ack);
}

/// Sends a frame that must be forwarded, and gives it as it left, checksums verified.
pub(crate) fn forwarded(lb: &mut DataPlane, port: Port, frame: &Frame) -> Vec<u8> {
    let bytes = frame.bytes();
    let outcome = lb.receive(port, &bytes);
    let network = if port == Port::Mgmt {
        "mgmt"
    } else {
        "tenant-a"
    };
    assert_eq!(
        (outcome.action, outcome.counted),
        (Action::Redirect, ("nic", network.to_owned(), "forwarded")),
        "{}",
        Decoded(&bytes)
    );
    assert_eq!(check(&outcome.frame), Ok(()), "{}", Decoded(&outcome.frame));
    outcome.frame
}

/// Asserts that two frames are equal, and shows both in words where not.
pub(crate) fn assert_frame(found: &[u8], wanted: &Frame) {
    let wanted = wanted.bytes();
    assert!(
        found == wanted,
        "\n found {}\nwanted {}\n{found:02x?}\n{wanted:02x?}",
        Decoded(found),
        Decoded(&wanted)
    );
}

/// Asserts that a frame is dropped untouched, for `reason`.
pub(crate) fn assert_dropped(lb: &mut DataPlane, port: Port, bytes: &[u8], reason: &'static str) {
    let (hook, network) = place(port);
    assert_eq!(
        lb.receive(port, bytes),
        Outcome {
            action: Action::Drop,
            frame: bytes.to_vec(),
            counted: (hook, network.to_owned(), reason)
        },
        "{}",
        Decoded(bytes)
    );
}

/// Asserts that a frame passes to the host untouched.
pub(crate) fn assert_passed(lb: &mut DataPlane, port: Port, bytes: &[u8]) {
    let (hook, network) = place(port);
    assert_eq!(
        lb.receive(port, bytes),
        Outcome {
            action: Action::Pass,
            frame: bytes.to_vec(),
            counted: (hook, network.to_owned(), "passed")
        },
        "{}",
        Decoded(bytes)
    );
}

/// Asserts that a frame is answered instead of served, with right checksums; gives the answer.
pub(crate) fn assert_refused(
    lb: &mut DataPlane,
    port: Port,
    bytes: &[u8],
    reason: &str,
) -> Vec<u8> {
    let outcome = lb.receive(port, bytes);
    let (_, network) = place(port);
    assert_eq!(
        (
            outcome.action,
            outcome.counted.1.as_str(),
            outcome.counted.2
        ),
        (Action::Transmit, network, &*format!("refused: {reason}")),
        "{}",
        Decoded(bytes)
    );
    assert_eq!(outcome.counted.0, "nic");
    assert_eq!(check(&outcome.frame), Ok(()), "{}", Decoded(&outcome.frame));
    outcome.frame
}

/// Asserts the action and the counter of a frame that is dropped after its tag was taken off.
pub(crate) fn assert_dropped_on(
    lb: &mut DataPlane,
    port: Port,
    bytes: &[u8],
    network: &str,
    reason: &'static str,
) {
    let outcome = lb.receive(port, bytes);
    assert_eq!(
        (outcome.action, outcome.counted),
        (Action::Drop, ("nic", network.to_owned(), reason)),
        "{}",
        Decoded(bytes)
    );
}

const fn place(port: Port) -> (&'static str, &'static str) {
    match port {
        Port::Tenant => ("nic", "tenant-a"),
        Port::Mgmt | Port::SecondMgmt => ("nic", "mgmt"),
        Port::Cell(network) => ("cell", network),
        Port::Foreign => ("nic", "-"),
    }
}
