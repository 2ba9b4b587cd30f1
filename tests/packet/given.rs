//! The configuration that most packet tests share, and its addresses by name.

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Decoded, Frame, check, tcp},
    product::program::{Action, CLIENT, DataPlane, Outcome, Port, TENANT_NIC},
};

pub(crate) use super::family::{BACKEND_ISN, CLIENT_ISN, Family};

/// The configuration of [`Family::V4`].
pub(crate) const CONFIG: &str = Family::V4.config;

/// The addresses of IPv4 by themselves, for tests of that family alone.
pub(crate) const CLIENT_A: &str = Family::V4.client_a;
pub(crate) const CLIENT_B: &str = Family::V4.client_b;
pub(crate) const API: &str = Family::V4.api;
pub(crate) const DNS: &str = Family::V4.dns;
pub(crate) const KAS: &str = Family::V4.kas;
pub(crate) const RESOLVER: &str = Family::V4.resolver;
pub(crate) const KAS_MAC: Mac = Family::V4.kas_mac;
pub(crate) const RESOLVER_MAC: Mac = Family::V4.resolver_mac;

/// A configuration whose SYNs open flows also in a flood.
pub(crate) fn without_cookies(config: &str) -> String {
    let version = "version: 1\n";
    assert!(config.contains(version));
    config.replacen(
        version,
        &format!("{version}defaults: {{ service: {{ syn_cookies: never }} }}\n"),
        1,
    )
}

/// `10.32.96.50:port`.
pub(crate) fn snat(port: u16) -> String {
    Family::V4.snat(port)
}

/// A TCP frame of a client to a VIP, as it arrives at the tenant NIC.
pub(crate) fn request(client: &str, vip: &str, flags: u8) -> Frame {
    tcp(client, vip, flags).between(CLIENT, TENANT_NIC)
}

/// See [`Family::reply`].
pub(crate) fn reply(port: u16, flags: u8) -> Frame {
    Family::V4.reply(port, flags)
}

/// See [`Family::query`].
pub(crate) fn query(client: &str) -> Frame {
    Family::V4.query(client)
}

/// See [`Family::establish`].
pub(crate) fn establish(lb: &mut DataPlane, client: &str, port: u16) {
    Family::V4.establish(lb, client, port);
}

/// Sends a frame that must be forwarded, and gives it as it left, checksums verified.
pub(crate) fn forwarded(lb: &mut DataPlane, port: Port, frame: &Frame) -> Vec<u8> {
    passed_on(lb, port, &frame.bytes())
}

/// The same of bytes.
pub(crate) fn passed_on(lb: &mut DataPlane, port: Port, bytes: &[u8]) -> Vec<u8> {
    let outcome = lb.receive(port, bytes);
    let network = if port == Port::Mgmt {
        "mgmt"
    } else {
        "tenant-a"
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

/// Says that the network with this name carries packets of `mtu` bytes; 0 says that nothing is known.
pub(crate) fn set_mtu(lb: &mut DataPlane, name: &str, mtu: u16) {
    let id = lb.ids.get(lb_user::model::registry::Kind::Network, name);
    let id = id.expect("a network of the configuration");
    let mut network = lb.maps.networks.get(&id, 0).expect("the network");
    network.mtu = mtu;
    lb.maps.networks.set(id, &network, 0).expect("a write");
}
