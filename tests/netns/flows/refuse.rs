//! What cannot be served is refused at once; what policy denies meets silence: FEATURES A22,
//! RELIABILITY 9 and 10.

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use lb_common::wire::header::SYN;
use lb_tests::{
    frames::{
        packet::{self, Frame},
        raw::RawPort,
    },
    oracle::wire::Wire,
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::{DNS, ECHO, Host, TENANT_NIC, Topology, VIP, mac_of},
    traffic::conn_pair::{Pair, refused},
};

use crate::flows::life::{
    AT_ONCE, LIMIT, config, config_of, ensure_all_ids_are_free, line, udp_client, udp_server,
};

const PORTS: usize = 100;
const MAX_FLOWS: usize = 10;
/// A port of the VIP where nothing listens.
const NOTHING: SocketAddrV4 = SocketAddrV4::new(VIP, 9);

/// An empty pool refuses TCP by a reset and UDP by an ICMP port unreachable.
#[privileged_test]
fn an_empty_pool_refuses() -> Result<()> {
    refuses(&config_of(&[]), "no_backend")
}

/// So does a pool whose backend is not on the network.
#[privileged_test]
fn a_backend_that_is_not_there_refuses() -> Result<()> {
    let absent = Ipv4Addr::new(10, 32, 96, 200);
    refuses(&config_of(&[absent]), "no_next_hop")
}

/// A22: with 100 SNAT ports, 100 connections live; the next is refused at once, and none of the 100
/// is any worse for it.
#[privileged_test]
fn a22_without_a_free_snat_port_a_connection_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().network("mgmt", |mgmt| mgmt.snat_ports(2000, 2099));
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let mut pairs = line.open_many(PORTS)?;
    let mut ports: Vec<u16> = pairs.iter().map(|pair| pair.snat.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, (2000..2100).collect::<Vec<u16>>());

    at_once(line.is_refused()?)?;
    assert_eq!(lb.refused("snat_exhausted")?, 1, "{:?}", lb.drops()?);
    let datagrams = udp_client(topology.client())?;
    at_once(unreachable(&datagrams)?)?;
    assert_eq!(lb.refused("snat_exhausted")?, 2, "{:?}", lb.drops()?);
    assert_eq!(lb.dropped("snat_exhausted")?, 0);
    pairs.iter().try_for_each(Pair::talk)?;
    let flows = lb.status()?.flows;
    assert_eq!((flows.capacity, flows.free, flows.live), (100, 0, 100));

    // One goes, one comes.
    drop(pairs.pop());
    poll::until("a free port", LIMIT, || {
        Ok((lb.status()?.flows.free == 1).then_some(()))
    })?;
    pairs.push(line.open()?);
    at_once(line.is_refused()?)?;
    pairs.iter().try_for_each(Pair::talk)?;
    drop(pairs);
    ensure_all_ids_are_free(&topology, &lb)
}

/// A service has as many connections as it may have; other services of the network are not meant.
#[privileged_test]
fn a_service_above_its_budget_refuses() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| service.with("max_flows: 10"));
    let lb = Lb::start(&topology, &config)?;
    budget(&topology, &lb)?;
    let server = udp_server(&topology)?;
    let datagrams = udp_client(topology.client())?;
    datagrams.send(b"word").context("send")?;
    let mut word = [0; 4];
    server.recv(&mut word).context("a datagram")?;
    assert_eq!(&word, b"word");
    Ok(())
}

/// So has a network, over all of its services.
#[privileged_test]
fn a_network_above_its_budget_refuses() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config().network("tenant-a", |network| network.with("max_flows: 10"));
    let lb = Lb::start(&topology, &config)?;
    budget(&topology, &lb)?;
    let pairs = line(&topology)?.open_many(MAX_FLOWS)?;
    at_once(unreachable(&udp_client(topology.client())?)?)?;
    drop(pairs);
    ensure_all_ids_are_free(&topology, &lb)
}

/// A client that the rules deny gets no answer; with `reject` it gets one at once.
#[privileged_test]
fn the_denied_meet_silence_unless_the_service_rejects() -> Result<()> {
    for is_loud in [false, true] {
        let topology = Topology::poc()?;
        let rules = |service: Keys| {
            service
                .set("deny", ["192.168.203.50/32"])
                .set("reject", is_loud)
        };
        let config = config().service("echo-a", rules).service("dns-a", rules);
        let lb = Lb::start(&topology, &config)?;
        meets(&topology, &lb, [ECHO, DNS], "denied", is_loud)?;
        assert_eq!(lb.status()?.flows.live, 0);
    }
    Ok(())
}

/// A client that sends to a VIP what it has no service for gets no answer; with `reject` it gets one at once.
#[privileged_test]
fn a_port_of_no_service_is_silent_unless_the_network_rejects() -> Result<()> {
    for is_loud in [false, true] {
        let topology = Topology::poc()?;
        let config = config().network("tenant-a", |tenant| tenant.set("reject", is_loud));
        let lb = Lb::start(&topology, &config)?;
        meets(&topology, &lb, [NOTHING, NOTHING], "no_service", is_loud)?;
    }
    Ok(())
}

/// Both services of `config` refuse for `reason`, at once, and nothing is left of the attempt.
fn refuses(config: &Config, reason: &str) -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, config)?;
    let client = topology.client();
    at_once(refused(client, ECHO)?)?;
    assert_eq!(lb.refused(reason)?, 1, "{:?}", lb.drops()?);
    at_once(unreachable(&udp_client(client)?)?)?;
    assert_eq!(lb.refused(reason)?, 2, "{:?}", lb.drops()?);
    assert_eq!(lb.dropped(reason)?, 0, "{:?}", lb.drops()?);
    ensure_all_ids_are_free(&topology, &lb)
}

/// Ten connections live, the eleventh is refused, until one of them ends.
fn budget(topology: &Topology, lb: &Lb<'_>) -> Result<()> {
    let line = line(topology)?;
    let mut pairs = line.open_many(MAX_FLOWS)?;
    for count in 1..=3 {
        at_once(line.is_refused()?)?;
        assert_eq!(lb.refused("budget_spent")?, count, "{:?}", lb.drops()?);
    }
    pairs.iter().try_for_each(Pair::talk)?;
    drop(pairs.pop());
    poll::until("room for one", LIMIT, || {
        Ok((lb.status()?.flows.live == 9).then_some(()))
    })?;
    pairs.push(line.open()?);
    at_once(line.is_refused()?)?;
    drop(pairs);
    ensure_all_ids_are_free(topology, lb)
}

/// Asks the TCP service and the UDP service that these addresses stand for.
fn meets(
    topology: &Topology,
    lb: &Lb<'_>,
    [tcp, udp]: [SocketAddrV4; 2],
    reason: &str,
    is_loud: bool,
) -> Result<()> {
    let client = topology.client();
    if is_loud {
        at_once(refused(client, tcp)?)?;
        let socket = udp_client(client)?;
        socket.connect(udp).context("connect it elsewhere")?;
        at_once(unreachable(&socket)?)?;
        assert_eq!(lb.refused(reason)?, 2, "{:?}", lb.drops()?);
        assert_eq!(lb.dropped(reason)?, 0, "{:?}", lb.drops()?);
        return Ok(());
    }
    let filter = format!("src host {VIP} or icmp");
    let wire = Wire::received(&client.netns, "eth0", &filter, topology.dir())?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let from = SocketAddrV4::new(client.address, 20_000).to_string();
    port.send(&sent(
        topology,
        client,
        packet::tcp(&from, &tcp.to_string(), SYN),
    )?)?;
    port.send(&sent(
        topology,
        client,
        packet::udp(&from, &udp.to_string()),
    )?)?;
    poll::until("both to be dropped", LIMIT, || {
        Ok((lb.dropped(reason)? == 2).then_some(()))
    })?;
    std::thread::sleep(AT_ONCE);
    let answers = wire.stop()?;
    assert!(answers.is_empty(), "{answers:02x?}");
    assert_eq!(lb.refused(reason)?, 0, "{:?}", lb.drops()?);
    Ok(())
}

fn sent(topology: &Topology, client: &Host, frame: Frame) -> Result<Vec<u8>> {
    let hops = [mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    Ok(frame.between(hops[0], hops[1]).bytes())
}

fn at_once(elapsed: Duration) -> Result<()> {
    ensure!(elapsed <= AT_ONCE, "refused after {elapsed:?}");
    Ok(())
}

/// Sends a datagram that must come back as unreachable; how long that took.
fn unreachable(socket: &UdpSocket) -> Result<Duration> {
    let start = Instant::now();
    socket.send(b"hello?").context("send")?;
    match socket.recv(&mut [0]) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(start.elapsed()),
        Err(error) => Err(error).context("not refused"),
        Ok(bytes) => bail!("{bytes} bytes instead of a refusal"),
    }
}
