//! Headers behind the IP header: IPv4 options and IPv6 extension headers, FEATURES A15, RELIABILITY
//! 22 and 23.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    addr::Mac,
    wire::header::{ACK, SYN},
};
use lb_tests::{
    frames::{
        packet,
        raw::{self, RawPort},
        segment::Segment,
    },
    oracle::{observe, wire::Wire},
    poll,
    product::lb::Lb,
    servers::peers::Peers,
    topology::{
        CONFIG, DNS_NODE_PORT, ECHO, ECHO_NODE_PORT, Host, MGMT_NIC, SNAT, TENANT_NIC, Topology,
        VIP, mac_of,
    },
    traffic::conn_pair::Line,
};

use crate::{
    flows::life::{LIMIT, config},
    oracle::Oracle,
};

/// Numbers of IPv6 headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
const TCP: u8 = 6;

/// RELIABILITY 22: where no address of ours is of IPv6, it is not served, whatever its headers are, and a
/// tenant's packet reaches no host.
#[privileged_test]
fn reliability_22_ipv6_extension_headers_are_dropped_and_counted() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let client = topology.client();
    let hops = hops(&topology, client)?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let chains: [(&str, &[(u8, u8)]); 8] = [
        ("none", &[]),
        ("hop-by-hop", &[(HOP_BY_HOP, 1)]),
        ("routing type 0", &[(ROUTING, 0)]),
        ("routing type 4", &[(ROUTING, 4)]),
        ("destination options, eight times", &[(DESTINATION, 1); 8]),
        ("an atomic fragment", &[(FRAGMENT, 0)]),
        (
            "all of them",
            &[
                (HOP_BY_HOP, 1),
                (DESTINATION, 1),
                (ROUTING, 0),
                (FRAGMENT, 0),
            ],
        ),
        (
            "hop-by-hop in the wrong place",
            &[(DESTINATION, 1), (HOP_BY_HOP, 1)],
        ),
    ];
    let [from, to] = [client.address, VIP].map(|address| address.to_ipv6_mapped());
    let local = [1, 2].map(|last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last));
    let frames: Vec<(&str, Vec<u8>)> = chains
        .iter()
        .flat_map(|&(what, chain)| [[from, to], local].map(|ends| (what, ipv6(hops, ends, chain))))
        .collect();
    // The host's stack counts what comes to it, as long as no program stands before it.
    let received = || observe::ip6_in_receives(&topology.lb);
    let before = received()?;
    port.send(&frames[0].1)?;
    poll::until("a frame at the host", LIMIT, || {
        Ok((received()? > before).then_some(()))
    })?;

    let lb = Lb::start(&topology, CONFIG)?;
    let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), client, DNS_NODE_PORT)?;
    let [before, dropped] = [received()?, lb.dropped("not_declared")?];
    for (what, frame) in &frames {
        let count = lb.dropped("not_declared")?;
        port.send(frame)?;
        poll::until(what, LIMIT, || {
            Ok((lb.dropped("not_declared")? == count + 1).then_some(()))
        })
        .with_context(|| format!("{:?}", lb.drops()))?;
    }
    oracle.saw_nothing_else()?;
    assert_eq!(received()?, before);
    assert_eq!(
        lb.dropped("not_declared")? - dropped,
        u64::try_from(frames.len())?
    );
    Ok(())
}

/// RELIABILITY 23: no sender decides which way a packet goes.
#[privileged_test]
fn reliability_23_source_routes_are_dropped_and_counted() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    let hops = hops(&topology, client)?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), client, DNS_NODE_PORT)?;
    let [a, b, c, d] = node.address.octets();
    let routes: [&[u8]; 6] = [
        &[131, 7, 4, a, b, c, d, 0],
        &[137, 7, 4, a, b, c, d, 0],
        // Used up, and behind another option.
        &[131, 7, 8, a, b, c, d, 0],
        &[1, 1, 1, 131, 7, 4, a, b, c, d, 0, 0],
        &[7, 7, 4, 0, 0, 0, 0, 137, 7, 4, a, b, c, d, 0, 0],
        &[131, 3, 4, 0],
    ];
    for (number, options) in (20_000_u16..).zip(routes) {
        for flags in [SYN, ACK] {
            let from = SocketAddrV4::new(client.address, number).to_string();
            let frame = packet::tcp(&from, &ECHO.to_string(), flags).options(options);
            let count = lb.dropped("source_route")?;
            port.send(&frame.between(hops[0], hops[1]).bytes())?;
            poll::until("a source route to be dropped", LIMIT, || {
                Ok((lb.dropped("source_route")? == count + 1).then_some(()))
            })
            .with_context(|| format!("{options:?}: {:?}", lb.drops()))?;
        }
    }
    oracle.saw_nothing_else()?;

    // Neither does a node reach a client by one.
    let to_lan = Wire::received(&topology.tenant_lan, "p-lb", "ip", topology.dir())?;
    let count = lb.dropped("source_route")?;
    let frame = packet::tcp(
        &format!("{}:{ECHO_NODE_PORT}", node.address),
        &format!("{SNAT}:1024"),
        ACK,
    );
    let [a, b, c, d] = client.address.octets();
    let frame = frame.options(&[131, 7, 4, a, b, c, d, 0]);
    let hops = [mac_of(&node.netns, "eth0")?, topology.mac(MGMT_NIC)?];
    RawPort::open(&node.netns, "eth0")?.send(&frame.between(hops[0], hops[1]).bytes())?;
    poll::until("a source route to be dropped", LIMIT, || {
        Ok((lb.dropped("source_route")? == count + 1).then_some(()))
    })?;
    assert_eq!(to_lan.stop()?, Vec::<Vec<u8>>::new());
    Ok(())
}

/// A15, RELIABILITY 23: other options go with the packet, and a SYN that has one is answered.
#[privileged_test]
fn a15_a_syn_with_an_ip_option_is_answered() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    let _listener = Line::new(client, ECHO, node, ECHO_NODE_PORT)?;
    let hops = hops(&topology, client)?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let at_node = Wire::received(&node.netns, "eth0", "tcp", topology.dir())?;
    let at_client = Wire::received(&client.netns, "eth0", "tcp", topology.dir())?;
    let cases: [(&str, &[u8]); 5] = [
        ("nothing, four times", &[1, 1, 1, 1]),
        ("router alert", &[148, 4, 0, 0]),
        ("time stamp", &[68, 8, 5, 0, 0, 0, 0, 0]),
        ("record route", &[7, 7, 4, 0, 0, 0, 0, 0]),
        ("as many as there can be", &[1; 40]),
    ];
    for (number, (what, options)) in (20_000_u16..).zip(cases) {
        let from = SocketAddrV4::new(client.address, number);
        let syn = packet::tcp(&from.to_string(), &ECHO.to_string(), SYN).numbers(7, 0);
        let syn = syn.options(options).between(hops[0], hops[1]);
        port.send(&syn.bytes())?;
        at_client
            .wait_for(what, 1, LIMIT, |frame| {
                Segment::read(frame).is_some_and(|answer| {
                    (answer.from, answer.to, answer.acknowledgment) == (ECHO, from, 8)
                        && answer.flags == SYN | ACK
                })
            })
            .with_context(|| format!("{what}: {:?}", lb.drops()))?;
        let carried = |frame: &[u8]| {
            Segment::read(frame).is_some_and(|syn| syn.flags == SYN)
                && frame.get(34..34 + options.len()) == Some(options)
        };
        at_node.wait_for(what, 1, LIMIT, carried)?;
    }
    for frame in at_client.stop()? {
        for address in [node.address, SNAT] {
            let shows = frame.windows(4).any(|bytes| bytes == address.octets());
            ensure!(!shows, "{address} is in {frame:02x?}");
        }
    }
    Ok(())
}

/// A SYN to the echo service behind a chain of extension headers, each a number and its own first
/// byte: the type of a routing header.
fn ipv6(hops: [Mac; 2], [from, to]: [Ipv6Addr; 2], chain: &[(u8, u8)]) -> Vec<u8> {
    let next = |at: usize| chain.get(at).map_or(TCP, |&(number, _)| number);
    let mut payload = Vec::new();
    for (at, &(number, kind)) in chain.iter().enumerate() {
        payload.push(next(at + 1));
        match number {
            // One address that is still to be visited.
            ROUTING => {
                payload.extend([2, kind, 1, 0, 0, 0, 0]);
                payload.extend(Ipv4Addr::new(10, 32, 96, 105).to_ipv6_mapped().octets());
            }
            FRAGMENT => payload.extend([0, 0, 0, 0, 0, 0, 7]),
            // Padding of six bytes.
            _ => payload.extend([0, 1, 4, 0, 0, 0, 0]),
        }
    }
    payload.extend(20_000_u16.to_be_bytes());
    payload.extend(ECHO.port().to_be_bytes());
    payload.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, SYN, 0xff, 0xff, 0, 0, 0, 0]);
    let length = u16::try_from(payload.len())
        .expect("a short packet")
        .to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, length[0], length[1], next(0), 64];
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(payload);
    raw::ethernet(hops[0], hops[1], 0x86dd, &packet)
}

fn hops(topology: &Topology, from: &Host) -> Result<[Mac; 2]> {
    Ok([mac_of(&from.netns, "eth0")?, topology.mac(TENANT_NIC)?])
}
