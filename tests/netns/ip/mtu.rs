//! Narrow links on the way: FEATURES A14, RELIABILITY 16.

use std::{
    net::{Ipv4Addr, UdpSocket},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::wire::header::ACK;
use lb_tests::{
    frames::{
        icmp_message::{Message, TOO_BIG},
        packet::{self, Frame},
        raw::RawPort,
        segment,
    },
    netns::Netns,
    oracle::{observe, wire::Wire},
    poll,
    product::lb::Lb,
    servers::{
        identity::Identity,
        peers::{Peers, Serves},
    },
    topology::{
        DNS, ECHO, ECHO_NODE_PORT, Host, MGMT_NIC, Routed, SNAT, TENANT_NIC, Topology, VIP, mac_of,
    },
    traffic::client,
};

use crate::{
    flows::life::{LIMIT, config, config_of, line, udp_client, udp_server},
    ip::forged::last,
};

/// Bytes of the bulk transfers.
const BULK: u64 = 5_000_000;
/// The narrow link, in bytes of an IP packet.
const NARROW: u32 = 1280;
/// The flags of a packet that may be cut.
const MAY_BE_CUT: u16 = 0;

/// A14: a client behind a wide network sends to a node behind a narrow link. Only the error of the
/// router in front of that link tells it.
#[privileged_test]
fn a14_the_path_mtu_behind_the_backend_is_found() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_node()?;
    narrow(&far)?;
    let _peers = echo_on(&topology, &far.host)?;
    let config = config_of(&[far.host.address]).network("mgmt", |mgmt| mgmt.route(&far));
    let _lb = Lb::start(&topology, &config)?;
    let client = &topology.client().netns;
    let at_client = Wire::received(client, "eth0", "icmp", topology.dir())?;
    assert_eq!(observe::path_mtu(client, VIP)?, None);

    bulk(client)?;

    assert_eq!(observe::path_mtu(client, VIP)?, Some(NARROW));
    ensure_told(&at_client.stop()?, [VIP, VIP], NARROW)
}

/// A14: a node behind a wide network sends to a client behind a narrow link.
#[privileged_test]
fn a14_the_path_mtu_before_the_client_is_found() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_client()?;
    narrow(&far)?;
    let node = &topology.nodes[0];
    let _peers = echo_on(&topology, node)?;
    let config = config().network("tenant-a", |tenant| tenant.route(&far));
    let _lb = Lb::start(&topology, &config)?;
    let at_node = Wire::received(&node.netns, "eth0", "icmp", topology.dir())?;
    assert_eq!(observe::path_mtu(&node.netns, SNAT)?, None);

    bulk(&far.host.netns)?;

    assert_eq!(observe::path_mtu(&node.netns, SNAT)?, Some(NARROW));
    ensure_told(&at_node.stop()?, [SNAT, SNAT], NARROW)
}

/// RELIABILITY 16: the nodes' network is narrower than the clients'. Segments are kept small from the
/// start; the senders of datagrams and of segments that are larger all the same get ICMP errors.
#[privileged_test]
fn reliability_16_a_narrow_mgmt_network_is_told_to_clients() -> Result<()> {
    const MTU: u32 = 1400;
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    mgmt_mtu(&topology, node, MTU)?;
    let lb = Lb::start(&topology, &config())?;
    let [syn_ack, syn] = [syns(&topology, topology.client())?, syns(&topology, node)?];
    let sent = Wire::received(&topology.tenant_lan, "p-c1", "tcp", topology.dir())?;

    let pair = line(&topology)?.open()?;

    assert_eq!(maxima(&syn.stop()?), [Some(1360)]);
    assert_eq!(maxima(&syn_ack.stop()?), [Some(1360)]);

    let told = Wire::received(&topology.client().netns, "eth0", "icmp", topology.dir())?;
    let last = last(&sent)?;
    let stubborn = packet::tcp(&last.from.to_string(), &last.to.to_string(), ACK)
        .numbers(last.next(), last.acknowledgment)
        .payload(&[7; 1460]);
    let stubborn = send(&topology, stubborn)?;
    told.wait_for("too big, to a segment", 1, LIMIT, |frame| {
        is_about(frame, &stubborn, MTU)
    })?;
    pair.talk()?;

    let server = udp_server(&topology)?;
    let datagrams = udp_client(topology.client())?;
    // The client's kernel has learned of it, and cuts what is too big itself.
    let datagram = [9; 1450];
    let path = || observe::path_mtu(&topology.client().netns, VIP);
    poll::until("a path MTU", LIMIT, || {
        Ok((path()? == Some(MTU)).then_some(()))
    })?;
    assert_eq!(lb.refused("too_big")?, 1, "{:?}", lb.drops()?);
    assert_eq!(lb.dropped("too_big")?, 0, "{:?}", lb.drops()?);
    datagrams.send(&datagram).context("send")?;
    assert_eq!(received(&server)?, datagram);

    // A sender that allows fragments gets no error (RFC 1191).
    let count = told.frames()?.len();
    let from = datagrams.local_addr().context("its address")?.to_string();
    let may = packet::udp(&from, &DNS.to_string())
        .fragment(MAY_BE_CUT)
        .payload(&[9; 1450]);
    send(&topology, may)?;
    poll::until("to be dropped", LIMIT, || {
        Ok((lb.dropped("too_big")? == 1).then_some(()))
    })?;
    ping_pong(&datagrams, &server)?;
    let told = told.stop()?;
    assert_eq!(told.len(), count, "{told:02x?}");
    ensure_told(&told, [VIP, VIP], MTU)
}

/// RELIABILITY 16: the nodes' network has jumbo frames. What does not fit into the clients' network is
/// answered with an ICMP error to the node.
#[privileged_test]
fn reliability_16_a_narrow_tenant_network_is_told_to_nodes() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    mgmt_mtu(&topology, node, 9000)?;
    let _peers = echo_on(&topology, node)?;
    let _lb = Lb::start(&topology, &config())?;
    let client = topology.client();
    let syn_ack = syns(&topology, client)?;
    let told = Wire::received(&node.netns, "eth0", "icmp", topology.dir())?;

    bulk(&client.netns)?;
    for maximum in maxima(&syn_ack.stop()?) {
        assert_eq!(maximum, Some(1460));
    }
    assert_eq!(
        told.frames()?,
        Vec::<Vec<u8>>::new(),
        "no segment was too big"
    );

    let server = udp_server(&topology)?;
    let datagrams = udp_client(client)?;
    datagrams.send(b"much, please").context("send")?;
    let mut word = [0; 12];
    let (_, snat) = server.recv_from(&mut word).context("the request")?;
    let much = vec![5; 3000];
    server.send_to(&much, snat).context("reply")?;
    let path = || observe::path_mtu(&node.netns, SNAT);
    poll::until("a path MTU", LIMIT, || {
        Ok((path()? == Some(1500)).then_some(()))
    })?;
    server.send_to(&much, snat).context("reply again")?;
    assert_eq!(received(&datagrams)?, much);
    ensure_told(&told.stop()?, [SNAT, SNAT], 1500)
}

/// The NIC of the nodes' network gets another MTU while everything runs: both programs, the cell and new
/// connections go by it at once, and those that are there get ICMP errors.
#[privileged_test]
fn an_mtu_that_changes_is_followed() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let lb = Lb::start(&topology, &config())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    let sent = Wire::received(&topology.tenant_lan, "p-c1", "tcp", topology.dir())?;
    pair.talk()?;
    let last = last(&sent)?;
    for (mtu, mss) in [(1400, 1360), (3000, 1460), (1500, 1460), (1400, 1360)] {
        mgmt_mtu(&topology, node, mtu.into())?;
        poll::until("the MTU in the maps", Duration::from_secs(1), || {
            let network = lb.status()?.networks.into_iter().next();
            let network = network.context("the nodes' network")?;
            Ok(((network.mtu, network.mss) == (mtu, mtu - 40)).then_some(()))
        })?;
        let cell = format!("--net=/run/netns/lb.{}.mgmt", topology.run());
        let inner = Command::new("nsenter")
            .args([&cell, "ip", "link", "show", "dev", "cell"])
            .output()?;
        let inner = String::from_utf8(inner.stdout)?;
        ensure!(inner.contains(&format!(" mtu {mtu} ")), "{inner}");
        let [at_client, at_node] = [syns(&topology, topology.client())?, syns(&topology, node)?];
        line.open()?.talk()?;
        assert_eq!(maxima(&at_node.stop()?), [Some(mss)]);
        assert_eq!(maxima(&at_client.stop()?), [Some(mss)]);
        pair.talk()?;
    }
    let told = Wire::received(&topology.client().netns, "eth0", "icmp", topology.dir())?;
    let stubborn = packet::tcp(&last.from.to_string(), &last.to.to_string(), ACK)
        .numbers(last.next(), last.acknowledgment)
        .payload(&[7; 1460]);
    let stubborn = send(&topology, stubborn)?;
    told.wait_for("too big, to a segment", 1, LIMIT, |frame| {
        is_about(frame, &stubborn, 1400)
    })?;
    pair.talk()
}

/// What `mss` says goes into both SYNs, and only down.
#[privileged_test]
fn reliability_16_both_syns_carry_the_smaller_mss() -> Result<()> {
    for (network, mgmt, expected) in [
        ("mss: 1200", "", 1200),
        ("", "mss: 1100", 1100),
        ("mss: 1300", "mss: 1000", 1000),
    ] {
        let topology = Topology::poc()?;
        let config = config()
            .network("tenant-a", |tenant| tenant.with(network))
            .network("mgmt", |network| network.with(mgmt));
        let _lb = Lb::start(&topology, &config)?;
        let node = &topology.nodes[0];
        let [at_client, at_node] = [syns(&topology, topology.client())?, syns(&topology, node)?];
        let line = line(&topology)?;
        let _pair = line.open()?;
        assert_eq!(maxima(&at_node.stop()?), [Some(expected)]);
        assert_eq!(maxima(&at_client.stop()?), [Some(expected)]);
        // A sender that wants less gets what it wants.
        let client = &topology.client().netns;
        client.run("ip route replace 192.168.203.0/24 dev eth0 advmss 900")?;
        let at_node = syns(&topology, node)?;
        let _pair = line.open()?;
        assert_eq!(maxima(&at_node.stop()?), [Some(900)]);
    }
    Ok(())
}

/// Makes the link between a router and the host behind it narrow so that only the router's errors
/// tell others: the host itself keeps to it, but wants segments that are larger.
fn narrow(far: &Routed) -> Result<()> {
    far.router
        .run(&format!("ip link set dev eth1 mtu {NARROW}"))?;
    let [a, b, c, _] = far.host.address.octets();
    let via = Ipv4Addr::new(a, b, c, 1);
    let route = format!("ip route replace default via {via} mtu {NARROW} advmss 1460");
    far.host.netns.run(&route).map(drop)
}

/// Sets the MTU of the management LAN, as far as the load balancer and `node` are concerned.
fn mgmt_mtu(topology: &Topology, node: &Host, mtu: u32) -> Result<()> {
    topology
        .lb
        .run(&format!("ip link set dev {MGMT_NIC} mtu {mtu}"))?;
    for port in ["p-lb", &format!("p-{}", node.name)] {
        topology
            .mgmt_lan
            .run(&format!("ip link set dev {port} mtu {mtu}"))?;
    }
    node.netns
        .run(&format!("ip link set dev eth0 mtu {mtu}"))
        .map(drop)
}

fn echo_on<'t>(topology: &'t Topology, node: &'t Host) -> Result<Peers<'t>> {
    let identity = Identity::create(topology, "echo", &[])?;
    let serves = Serves {
        name: node.name.to_owned(),
        echo: Some(ECHO_NODE_PORT),
        ..Serves::default()
    };
    Peers::start_on(topology, identity, [(node, serves)])
}

/// Much data each way, compared by its digests.
fn bulk(client: &Netns) -> Result<()> {
    let up = client.inside(|| client::upload(ECHO, BULK, 1))??;
    assert_eq!(up.sent, up.received);
    let down = client.inside(|| client::download(ECHO, BULK, 2))??;
    assert_eq!(down.sent, down.received);
    Ok(())
}

/// At least one message was received, and all of them say "too big" for `mtu`, about what was sent
/// to `about`, in the name of `from`.
fn ensure_told(frames: &[Vec<u8>], [from, about]: [Ipv4Addr; 2], mtu: u32) -> Result<()> {
    ensure!(!frames.is_empty(), "no message");
    for frame in frames {
        let message = Message::read(frame)?.context("an ICMP message")?;
        ensure!(
            (message.from, message.kind, message.rest) == (from, TOO_BIG, mtu),
            "{message:02x?}"
        );
        let quote = message.quote()?;
        ensure!(
            *quote.to.ip() == about && *quote.from.ip() == message.to,
            "{quote:02x?}"
        );
    }
    Ok(())
}

/// Whether a frame says "too big" for `mtu` and quotes `sent` as it was sent.
fn is_about(frame: &[u8], sent: &[u8], mtu: u32) -> bool {
    let Ok(Some(message)) = Message::read(frame) else {
        return false;
    };
    let quoted = sent.get(14..14 + 28);
    (message.from, message.kind, message.rest) == (VIP, TOO_BIG, mtu)
        && message.body.get(..28) == quoted
}

/// Sends a frame of the first client to the load balancer, and returns its bytes.
fn send(topology: &Topology, frame: Frame) -> Result<Vec<u8>> {
    let client = &topology.client().netns;
    let hops = [mac_of(client, "eth0")?, topology.mac(TENANT_NIC)?];
    let bytes = frame.between(hops[0], hops[1]).bytes();
    RawPort::open(client, "eth0")?.send(&bytes)?;
    Ok(bytes)
}

/// Captures the SYNs that a host receives.
fn syns(topology: &Topology, host: &Host) -> Result<Wire> {
    let filter = "tcp[tcpflags] & tcp-syn != 0";
    Wire::received(&host.netns, "eth0", filter, topology.dir())
}

/// The largest segments that captured SYNs ask for.
fn maxima(syns: &[Vec<u8>]) -> Vec<Option<u16>> {
    syns.iter().map(|frame| segment::maximum(frame)).collect()
}

fn received(socket: &UdpSocket) -> Result<Vec<u8>> {
    let mut datagram = vec![0; 1 << 16];
    let length = socket.recv(&mut datagram).context("a datagram")?;
    datagram.truncate(length);
    Ok(datagram)
}

/// A word each way.
fn ping_pong(client: &UdpSocket, server: &UdpSocket) -> Result<()> {
    client.send(b"ping").context("send")?;
    let mut word = [0; 4];
    let (_, from) = server.recv_from(&mut word).context("a word")?;
    server.send_to(b"pong", from).context("answer")?;
    assert_eq!(received(client)?, b"pong");
    Ok(())
}
