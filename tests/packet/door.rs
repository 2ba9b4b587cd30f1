//! Doors: network and address of a packet in one look-up, and without it.

use std::{
    collections::{HashMap, HashSet},
    net::Ipv4Addr,
};

use lb_common::{
    addr::Mac,
    maps::{
        door::{Door, DoorKey},
        network::AddressKey,
    },
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tag, tcp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC, node_mac},
};
use lb_user::model::registry::Kind;

use super::given::{API, CLIENT_A, CLIENT_B, snat};

const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, vlan: 100, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24, fd00:203::/64] }
  tenant-b: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas-a: { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api-a: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a }
  api-b: { network: tenant-b, listen: ["192.168.203.110:6443/tcp"], pool: kas-a }
"#;
const KAS: &str = "10.32.96.105:30918";
const KAS_MAC: Mac = node_mac(Ipv4Addr::new(10, 32, 96, 105));

/// The key of an address at the NIC of `port`.
fn key(lb: &mut DataPlane, port: Port, vlan: u16, address: [u8; 4]) -> DoorKey {
    let (_, ifindex) = lb.at(port).expect("a program");
    DoorKey {
        ifindex,
        vlan,
        destination: Ipv4Addr::from(address).into(),
    }
}

fn network(lb: &DataPlane, name: &str) -> u16 {
    let id = lb.ids.get(Kind::Network, name).expect("a network");
    u16::try_from(id).expect("a short id")
}

fn request(client: &str, vlan: u16) -> Frame {
    let frame = tcp(client, API, SYN_ONLY).between(CLIENT, TENANT_NIC);
    if vlan == 0 {
        frame
    } else {
        frame.tagged(0x8100, vlan)
    }
}

/// The network that a forwarded frame is counted for, and the frame.
fn forwarded(lb: &mut DataPlane, port: Port, bytes: &[u8]) -> (String, Vec<u8>) {
    let outcome = lb.receive(port, bytes);
    let (hook, network, verdict) = outcome.counted;
    assert_eq!(
        (outcome.action, hook, verdict),
        (Action::Redirect, "nic", "forwarded")
    );
    (network, untagged(&outcome.frame).1)
}

fn doors(lb: &DataPlane) -> HashSet<(DoorKey, u16)> {
    lb.maps.doors.keys().collect()
}

#[privileged_test]
fn there_is_a_door_to_each_address_of_ipv4_and_none_is_left_over() {
    const VIP: [u8; 4] = [192, 168, 203, 110];
    let mut lb = DataPlane::new(CONFIG);
    let [mgmt, a, b] = ["mgmt", "tenant-a", "tenant-b"].map(|name| network(&lb, name));
    let snat = key(&mut lb, Port::Mgmt, 100, [10, 32, 96, 50]);
    let [of_a, of_b] = [2003, 0].map(|vlan| key(&mut lb, Port::Tenant, vlan, VIP));
    assert_eq!(
        doors(&lb),
        HashSet::from([(snat, mgmt), (of_a, a), (of_b, b)])
    );

    let moved = CONFIG.replace(
        "tenant-b, listen: [\"192.168.203.110",
        "tenant-b, listen: [\"192.168.203.111",
    );
    let mut lb = lb.again(&moved);
    let of_b = key(&mut lb, Port::Tenant, 0, [192, 168, 203, 111]);
    assert_eq!(
        doors(&lb),
        HashSet::from([(snat, mgmt), (of_a, a), (of_b, b)])
    );
}

/// What comes of requests and replies, tagged and not, with doors or without.
fn ends(is_open: bool) -> Vec<(String, Vec<u8>)> {
    let mut lb = DataPlane::new(CONFIG);
    if !is_open {
        lb.maps.doors.close(|_, _| true);
    }
    let mut seen = Vec::new();
    for (vlan, client, port) in [(2003, CLIENT_A, 1024), (0, CLIENT_B, 1025)] {
        let syn = request(client, vlan).bytes();
        seen.push(forwarded(&mut lb, Port::Tenant, &syn));
        seen.push(forwarded(&mut lb, Port::Tenant, &syn));
        let reply = tcp(KAS, &snat(port), SYN_ACK).numbers(5000, 1);
        let reply = tag(&reply.between(KAS_MAC, MGMT_NIC).bytes(), 100);
        seen.push(forwarded(&mut lb, Port::Mgmt, &reply));
    }
    assert_eq!(doors(&lb).is_empty(), !is_open);
    seen
}

#[privileged_test]
fn a_packet_without_a_door_goes_the_same_way() {
    assert_eq!(ends(true), ends(false));
}

/// The door is what a packet goes by, and its key is all of it.
#[privileged_test]
fn what_a_door_says_is_taken() {
    let mut lb = DataPlane::new(CONFIG);
    let (a, b) = (network(&lb, "tenant-a"), network(&lb, "tenant-b"));
    let key = key(&mut lb, Port::Tenant, 2003, [192, 168, 203, 110]);
    let vip = lb.desired.addresses[&AddressKey::new(key.destination, a)];
    let door = Door {
        network: b,
        address: vip,
    };
    lb.maps.doors.set(&HashMap::from([(key, door)]));
    let of =
        |lb: &mut DataPlane, vlan| forwarded(lb, Port::Tenant, &request(CLIENT_A, vlan).bytes()).0;
    assert_eq!(
        of(&mut lb, 2003),
        "tenant-b",
        "the door, not the network of the VLAN"
    );
    assert_eq!(
        of(&mut lb, 0),
        "tenant-b",
        "no door: the network of what has no tag"
    );
    lb.maps.doors.close(|found, _| *found == key);
    assert_eq!(of(&mut lb, 2003), "tenant-a");
    let other = DoorKey { vlan: 2004, ..key };
    lb.maps.doors.set(&HashMap::from([(other, door)]));
    assert_eq!(of(&mut lb, 2003), "tenant-a");
}
