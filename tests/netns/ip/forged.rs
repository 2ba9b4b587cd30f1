//! Errors about what was never sent: RELIABILITY 16.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use lb_common::wire::header::ACK;
use lb_tests::{
    frames::{icmp_message::Message, packet, raw::RawPort, segment::Segment},
    oracle::{observe, wire::Wire},
    poll,
    product::lb::Lb,
    topology::{ECHO, ECHO_NODE_PORT, Host, MGMT_NIC, SNAT, TENANT_NIC, Topology, VIP, mac_of},
};

use crate::flows::life::{LIMIT, config, line};

/// RELIABILITY 16: "too big" moves no end that did not send what it is about.
#[privileged_test]
fn reliability_16_forged_errors_change_nothing() -> Result<()> {
    const STEP: u32 = 1 << 25;
    const MTU: u16 = 1300;
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    let dir = topology.dir();
    let from_client = Wire::received(&topology.tenant_lan, "p-c1", "tcp", dir)?;
    let from_node = Wire::received(&topology.mgmt_lan, "p-n1", "tcp", dir)?;
    let pair = line(&topology)?.open()?;
    let [request, reply] = [last(&from_client)?, last(&from_node)?];
    assert_eq!((request.to, reply.to), (ECHO, pair.snat));
    let out = [
        Wire::received(&topology.tenant_lan, "p-lb", "icmp", dir)?,
        Wire::received(&topology.mgmt_lan, "p-lb", "icmp", dir)?,
    ];

    // What each side would have to have sent: VIP to client, SNAT address to node.
    let tcp =
        |from: &str, to: &str, number: u32| packet::tcp(from, to, ACK).numbers(number, 1).bytes();
    let [vip, away] = [ECHO.to_string(), request.from.to_string()];
    let [snat, backend] = [pair.snat.to_string(), reply.from.to_string()];
    let stranger = format!("{}:{}", client.address, request.from.port() ^ 1);
    let to_vip = [
        tcp(&vip, &stranger, request.acknowledgment),
        tcp(&vip, &away, request.acknowledgment.wrapping_add(STEP)),
        tcp(&vip, &away, request.acknowledgment.wrapping_sub(STEP)),
        tcp(&format!("{VIP}:7001"), &away, request.acknowledgment),
        packet::udp(&vip, &away).bytes(),
        tcp(&away, &vip, request.sequence),
    ];
    let to_snat = [
        tcp(
            &snat,
            &format!("{}:{ECHO_NODE_PORT}", topology.nodes[1].address),
            reply.acknowledgment,
        ),
        tcp(
            &snat,
            &format!("{}:{}", node.address, ECHO_NODE_PORT + 1),
            reply.acknowledgment,
        ),
        tcp(&snat, &backend, reply.acknowledgment.wrapping_add(STEP)),
        tcp(&snat, &backend, reply.acknowledgment.wrapping_sub(STEP)),
        tcp(
            &format!("{SNAT}:{}", pair.snat.port() ^ 1),
            &backend,
            reply.acknowledgment,
        ),
        packet::udp(&snat, &backend).bytes(),
    ];
    let [near, hub] = [&topology.clients[1], &topology.nodes[1]];
    let tell = |host: &Host, to, about: &[u8], mtu| tell(&topology, host, to, about, mtu);
    let before = lb.dropped("icmp_unrelated")?;
    let count = u64::try_from(to_vip.len() + to_snat.len())?;
    to_vip
        .iter()
        .try_for_each(|about| tell(near, VIP, about, MTU))?;
    to_snat
        .iter()
        .try_for_each(|about| tell(hub, SNAT, about, MTU))?;
    poll::until("all of them to be dropped", LIMIT, || {
        Ok((lb.dropped("icmp_unrelated")? == before + count).then_some(()))
    })
    .with_context(|| format!("{:?}", lb.drops()))?;
    assert_eq!(observe::path_mtu(&client.netns, VIP)?, None);
    assert_eq!(observe::path_mtu(&node.netns, SNAT)?, None);
    pair.talk()?;
    for wire in out {
        assert_eq!(wire.stop()?, Vec::<Vec<u8>>::new());
    }

    // The same with the number of what was really sent: the way to the client is the node's.
    let [request, reply] = [last(&from_client)?, last(&from_node)?];
    let large = packet::tcp(&vip, &away, ACK)
        .numbers(request.acknowledgment, 1)
        .payload(&[7; 1460]);
    tell(near, VIP, &large.bytes(), MTU)?;
    tell(
        hub,
        SNAT,
        &tcp(&snat, &backend, reply.acknowledgment),
        MTU + 20,
    )?;
    for (netns, to, mtu) in [(&node.netns, SNAT, MTU), (&client.netns, VIP, MTU + 20)] {
        poll::until("a path MTU", LIMIT, || {
            Ok((observe::path_mtu(netns, to)? == Some(mtu.into())).then_some(()))
        })
        .with_context(|| format!("{:?}", lb.drops()))?;
    }
    pair.talk()
}

/// A client that says "too big" of its own flow, for less than any network has, makes the packets of no other
/// client small: the way to all of them is one to the node, by the SNAT address.
#[privileged_test]
fn reliability_16_a_client_lowers_no_mtu_below_the_floor() -> Result<()> {
    const FLOOR: u32 = 1280;
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    let dir = topology.dir();
    let from_client = Wire::received(&topology.tenant_lan, "p-c1", "tcp", dir)?;
    let at_node = Wire::received(&node.netns, "eth0", "icmp", dir)?;
    let pair = line(&topology)?.open()?;
    let request = last(&from_client)?;
    let path = || observe::path_mtu(&node.netns, SNAT);
    let about = |bytes: usize| {
        let sent = packet::tcp(&ECHO.to_string(), &request.from.to_string(), ACK);
        let sent = sent.numbers(request.acknowledgment, 1);
        sent.payload(&vec![7; bytes - 40]).bytes()
    };

    for mtu in [68, 0, 552, 1279] {
        tell(&topology, client, VIP, &about(1500), mtu)?;
    }
    let is_floor = |frame: &[u8]| {
        Message::read(frame).is_ok_and(|read| read.is_some_and(|read| read.rest == FLOOR))
    };
    poll::until("a path MTU", LIMIT, || Ok(path()?.map(drop)))?;
    assert_eq!(path()?, Some(FLOOR));
    at_node.wait_for("errors", 4, LIMIT, is_floor)?;

    // Of what fits the node hears nothing.
    for (mtu, bytes) in [(1500, 1500), (FLOOR, FLOOR), (68, FLOOR)] {
        let about = about(usize::try_from(bytes)?);
        tell(&topology, client, VIP, &about, u16::try_from(mtu)?)?;
    }
    poll::until("all of them to be dropped", LIMIT, || {
        Ok((lb.dropped("mtu_implausible")? == 3).then_some(()))
    })
    .with_context(|| format!("{:?}", lb.drops()))?;
    assert_eq!((path()?, at_node.stop()?.len()), (Some(FLOOR), 4));
    let raised = |name: &str| -> Result<u64> {
        let networks = lb.status()?.networks;
        let mut named = networks.iter().filter(|network| network.name == name);
        Ok(named.next().context("the network")?.icmp_floor)
    };
    assert_eq!((raised("tenant-a")?, raised("mgmt")?), (4, 0));
    pair.talk()
}

/// A host says to the VIP, or to the SNAT address, that what it quotes is too big for this MTU.
fn tell(topology: &Topology, host: &Host, to: Ipv4Addr, about: &[u8], mtu: u16) -> Result<()> {
    let nic = if to == VIP { TENANT_NIC } else { MGMT_NIC };
    let hops = [mac_of(&host.netns, "eth0")?, topology.mac(nic)?];
    let frame = Message::too_big(host.address, to, mtu, about).frame(hops, 64);
    RawPort::open(&host.netns, "eth0")?.send(&frame)
}

/// The segment that ends last of those captured, when no more of them come.
pub(crate) fn last(wire: &Wire) -> Result<Segment> {
    let mut before = 0;
    poll::until("a segment", LIMIT, || {
        let frames = wire.frames()?;
        let is_all = frames.len() == before;
        before = frames.len();
        let segments = frames.iter().filter_map(|frame| Segment::read(frame));
        Ok(segments.max_by_key(Segment::next).filter(|_| is_all))
    })
}
