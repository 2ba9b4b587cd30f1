//! Only what is declared answers: FEATURES C4.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::Duration,
};

use anyhow::Result;
use lb_common::{addr::Mac, wire::header::SYN};
use lb_tests::{
    frames::{packet, raw::RawPort},
    oracle::wire::{self, Wire},
    product::lb::Lb,
    servers::peers::{DNS_NAME, Peers},
    topology::{API, CONFIG, DNS, ECHO, Host, MGMT_NIC, SNAT, TENANT_NIC, Topology, VIP, mac_of},
    traffic::programs,
};

/// Frames between two pauses: the switch's queues are short.
const BURST: usize = 128;
const PAUSE: Duration = Duration::from_millis(2);
const LIMIT: Duration = Duration::from_secs(20);
/// How long a late answer may take.
const LATE: Duration = Duration::from_millis(500);
/// Where the source port stands in a frame without tag and options.
const FROM: std::ops::Range<usize> = 34..36;

/// A SYN to every port of a VIP: the declared ones answer with a SYN-ACK, all others with nothing.
#[privileged_test]
fn exactly_the_declared_ports_of_a_vip_answer() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();
    let before = lb.dropped("no_service")?;

    let answers = scan(&topology, client, topology.mac(TENANT_NIC)?, VIP)?;

    let declared = BTreeSet::from([API.port(), ECHO.port()]);
    assert_eq!(answers, declared);
    let silent = 65_535 - u64::try_from(declared.len())?;
    assert_eq!(lb.dropped("no_service")? - before, silent);
    Ok(())
}

/// UDP to ports that only TCP has, to those beside the declared one, and to well-known ones.
#[privileged_test]
fn only_the_declared_udp_port_of_a_vip_answers() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();
    let answers = Wire::received(&client.netns, "eth0", &answers_of(VIP), topology.dir())?;
    let hops = [mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    let port = RawPort::open(&client.netns, "eth0")?;

    for to in [
        1, 52, 54, 67, 69, 123, 161, 500, 1024, 6443, 7000, 33434, 51820, 65535,
    ] {
        let from = format!("{}:20000", client.address);
        let probe = packet::udp(&from, &format!("{VIP}:{to}")).between(hops[0], hops[1]);
        port.send(&probe.payload(b"probe").bytes())?;
    }
    programs::dig(client, DNS, DNS_NAME, "TXT")?;

    answers.wait_for("the answer of DNS", 1, LIMIT, |_| true)?;
    thread::sleep(LATE);
    let answers = answers.stop()?;
    assert_eq!(answers.len(), 1, "{answers:02x?}");
    Ok(())
}

/// The address that backends see offers them nothing.
#[privileged_test]
fn no_port_of_a_snat_address_answers() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let node = &topology.nodes[0];

    let answers = scan(&topology, node, topology.mac(MGMT_NIC)?, SNAT)?;

    assert_eq!(answers, BTreeSet::new());
    assert_eq!(lb.status()?.flows.live, 0);
    Ok(())
}

/// Sends a SYN to each TCP port of `to`; the ports from which anything came back.
fn scan(topology: &Topology, from: &Host, nic: Mac, to: Ipv4Addr) -> Result<BTreeSet<u16>> {
    let answers = Wire::received(&from.netns, "eth0", &answers_of(to), topology.dir())?;
    let mac = mac_of(&from.netns, "eth0")?;
    let port = RawPort::open(&from.netns, "eth0")?;
    let source = SocketAddrV4::new(from.address, 20_000).to_string();
    for (number, to_port) in (1..=u16::MAX).enumerate() {
        let syn = packet::tcp(&source, &format!("{to}:{to_port}"), SYN);
        port.send(&syn.between(mac, nic).bytes())?;
        if number % BURST == 0 {
            thread::sleep(PAUSE);
        }
    }
    thread::sleep(LATE);
    let ports = answers.stop()?.into_iter().map(|frame| {
        let port = frame.get(FROM).and_then(|bytes| bytes.try_into().ok());
        assert!(wire::ipv4(&frame).is_some(), "{frame:02x?}");
        port.map(u16::from_be_bytes).expect("a whole frame")
    });
    Ok(ports.collect())
}

fn answers_of(address: Ipv4Addr) -> String {
    format!("ip src host {address}")
}
