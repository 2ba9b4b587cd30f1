//! Narrow networks behind an IPv6 VIP: FEATURES A14, RELIABILITY 16.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    frames::six::{number, read},
    oracle::{observe, wire::Wire},
    poll,
    product::lb::Lb,
    servers::echo::EchoServer,
    topology::{ECHO_NODE_PORT, ECHO6, Host, MGMT_NIC, Topology, VIP6},
    traffic::client,
};

use super::given::{at, config, receive, topology, udp_client, udp_server};
use crate::flows::life::LIMIT;

/// The nodes' network, in bytes of an IP packet.
const MTU: u32 = 1400;
/// Bytes of the transfers.
const MUCH: u64 = 1 << 20;

/// Segments are kept small from the start; datagrams get ICMP errors, and are cut by their sender then.
#[privileged_test]
fn reliability_16_a_narrow_mgmt_network_is_told_to_clients_of_ipv6() -> Result<()> {
    let topology = topology()?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    narrow(&topology, node)?;
    let echo = EchoServer::start(&node.netns, at(node, ECHO_NODE_PORT), node.name)?;
    let lb = Lb::start(&topology, &config())?;
    // SYNs alone: there is no room for all of a transfer.
    let filter = "ip6 and ip6[6] = 6 and ip6[53] & 2 != 0";
    let syns = |host: &Host| Wire::received(&host.netns, "eth0", filter, topology.dir());
    let [at_client, at_node] = [syns(client)?, syns(node)?];
    let up = client.netns.inside(|| client::upload(ECHO6, MUCH, 1))??;
    assert_eq!(up.sent, up.received);
    let down = client.netns.inside(|| client::download(ECHO6, MUCH, 2))??;
    assert_eq!(down.sent, down.received);
    drop(echo);
    for wire in [at_client, at_node] {
        let frames = wire.stop()?;
        let maxima: Vec<u16> = frames.iter().filter_map(|frame| maximum(frame)).collect();
        assert_eq!(maxima, [1340, 1340]);
    }
    assert_eq!(lb.refused("too_big")?, 0, "no segment was too big");

    let told = Wire::received(
        &client.netns,
        "eth0",
        "icmp6 and ip6[40] = 2",
        topology.dir(),
    )?;
    let server = udp_server(&topology)?;
    let socket = udp_client(client)?;
    assert_eq!(observe::path_mtu(&client.netns, VIP6)?, None);
    let datagram = [9; 1450];
    socket.send(&datagram).context("send")?;
    let path = || observe::path_mtu(&client.netns, VIP6);
    poll::until("a path MTU", LIMIT, || {
        Ok((path()? == Some(MTU)).then_some(()))
    })
    .with_context(|| format!("{:?}", lb.drops()))?;
    assert_eq!(lb.refused("too_big")?, 1, "{:?}", lb.drops()?);
    // The client's kernel has learned of it, says so once, and cuts what is too big itself.
    let told_to = socket.take_error().context("ask for an error")?;
    let number = told_to.and_then(|error| error.raw_os_error());
    assert_eq!(number, Some(nix::libc::EMSGSIZE));
    socket.send(&datagram).context("send again")?;
    assert_eq!(receive(&server)?.0, datagram);
    for frame in told.stop()? {
        let read = read(&frame).map_err(anyhow::Error::msg)?;
        assert_eq!((read.source, read.protocol), (VIP6, number::ICMP));
        assert_eq!(read.segment[4..8], MTU.to_be_bytes());
    }
    Ok(())
}

/// Makes the management LAN narrow, as far as the load balancer and `node` are concerned.
fn narrow(topology: &Topology, node: &Host) -> Result<()> {
    let set = |device: &str| format!("ip link set dev {device} mtu {MTU}");
    topology.lb.run(&set(MGMT_NIC))?;
    for port in ["p-lb", &format!("p-{}", node.name)] {
        topology.mgmt_lan.run(&set(port))?;
    }
    node.netns.run(&set("eth0")).map(drop)
}

/// The largest segment that the sender of a SYN wants to get; `None` of another segment. It is the first
/// option that a kernel writes.
fn maximum(frame: &[u8]) -> Option<u16> {
    const SYN: u8 = 2;
    let tcp = read(frame).ok()?.segment;
    (tcp.get(13)? & SYN != 0).then_some(())?;
    match tcp.get(20..24)? {
        [2, 4, high, low] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

#[test]
fn a_syn_says_its_maximum() -> Result<()> {
    let syn = |flags| lb_tests::frames::packet::tcp("[fd00::1]:1", "[fd00::2]:2", flags);
    let options = [2, 4, 5, 0x3c, 1, 1, 1, 1];
    ensure!(maximum(&syn(2).tcp_options(&options).bytes()) == Some(1340));
    ensure!(maximum(&syn(16).tcp_options(&options).bytes()).is_none());
    Ok(())
}
