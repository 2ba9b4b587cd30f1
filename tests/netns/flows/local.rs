//! Connections of a cell itself, from the local ports of a SNAT address.

use std::{
    io::ErrorKind,
    net::{SocketAddr, SocketAddrV4, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::maps::snat::{FIRST_LEG_PORT, FIRST_LOCAL_PORT};
use lb_tests::{
    oracle::capture::Capture,
    product::{config::Config, lb::Lb},
    servers::peers::Peers,
    topology::{CONFIG, ECHO_NODE_PORT, LB_PORT, SNAT, Topology},
    traffic::client,
};
use lb_user::network::{cell, namespace};

use crate::ip::offload::make_generic;

const BULK: u64 = 2_000_000;
/// How long a connection may take, and how long silence is listened to.
const LIMIT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(500);

/// Runs `work` in the cell of the hub's network.
fn in_cell<T: Send>(topology: &Topology, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    namespace::inside(&cell::name(topology.run(), "mgmt"), work)
}

/// How many packets of a cell were not let out.
fn forbidden(lb: &Lb<'_>) -> Result<u64> {
    let drops = lb.drops()?.into_iter();
    let cells = drops.filter(|drop| drop.hook == "cell" && drop.reason == "cell_forbidden");
    Ok(cells.map(|drop| drop.dropped).sum())
}

/// The configuration of the lab, with checks of the echo servers that ask at this port: what else a
/// cell says to it is heard as well.
fn asks(port: u16) -> Config {
    Config::read(CONFIG).pool("echo-a", |pool| pool.set("health.tcp.port", port))
}

fn node(topology: &Topology, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(topology.nodes[0].address, port)
}

#[privileged_test]
fn a_cell_reaches_a_node_from_its_local_ports() -> Result<()> {
    for is_generic in [false, true] {
        let topology = Topology::poc()?;
        if is_generic {
            make_generic(&topology)?;
        }
        let _peers = Peers::start(&topology)?;
        let lb = Lb::start(&topology, &asks(ECHO_NODE_PORT))?;
        let at_node = &topology.nodes[0].netns;
        let seen = Capture::start(at_node, "eth0", "tcp and src 10.32.96.50", topology.dir())?;
        let echo = node(&topology, ECHO_NODE_PORT);
        for tx in ["off", "on"] {
            // What the node's kernel leaves to its NIC is open when it comes here.
            let offloads = format!("tx {tx} tso off gso off gro off");
            at_node.run(&format!("ethtool -K eth0 {offloads}"))?;
            let lan = &topology.mgmt_lan;
            lan.run(&format!("ethtool -K p-n1 {offloads}"))?;
            lan.run(&format!("ethtool -K {LB_PORT} tx {tx} tso off gso off"))?;
            let what = || format!("generic {is_generic}, tx {tx}: {:?}", lb.drops());
            in_cell(&topology, || {
                let answer = client::who(Some(SNAT), echo)?;
                let is_local = *answer.peer.ip() == SNAT && answer.peer.port() >= FIRST_LOCAL_PORT;
                ensure!(answer.node == "n1" && is_local, "{answer:?}");
                client::upload(echo, BULK, 1)?;
                client::download(echo, BULK, 2)?;
                Ok(())
            })
            .with_context(what)?;
        }
        let frames = seen.stop()?;
        ensure!(!frames.is_empty(), "nothing came from the cell");
        for frame in frames {
            assert_eq!(frame.source, SNAT);
            assert!(frame.source_port >= Some(FIRST_LOCAL_PORT), "{frame:?}");
        }
        let flows = lb.flows()?;
        assert!(flows.is_empty(), "{flows:?}");
        assert_eq!(forbidden(&lb)?, 0);
    }
    Ok(())
}

/// A refusal comes back to the cell, from the host it connects to; a host that connects to its ports gets no answer.
#[privileged_test]
fn a_closed_port_refuses_the_cell_and_the_cell_is_silent_to_strangers() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &asks(1))?;
    let refusals = [
        (1, LIMIT, ErrorKind::ConnectionRefused),
        (2, SILENCE, ErrorKind::TimedOut),
    ];
    for (port, limit, kind) in refusals {
        let closed = SocketAddr::from(node(&topology, port));
        let error = in_cell(&topology, || {
            Ok(TcpStream::connect_timeout(&closed, limit).err())
        })?;
        let error = error.context("no socket listens")?;
        assert_eq!(error.kind(), kind, "port {port}");
    }

    let knock = |port: u16| {
        let to = SocketAddr::from((SNAT, port));
        let at_node = &topology.nodes[0].netns;
        let error = at_node.inside(|| TcpStream::connect_timeout(&to, SILENCE).err())?;
        Ok::<_, anyhow::Error>(error.context("no socket listens")?.kind())
    };
    let ports = [FIRST_LEG_PORT - 1, FIRST_LEG_PORT, FIRST_LOCAL_PORT - 1];
    for port in ports.into_iter().chain([FIRST_LOCAL_PORT, u16::MAX]) {
        assert_eq!(knock(port)?, ErrorKind::TimedOut, "port {port}");
    }
    assert_eq!(forbidden(&lb)?, 0);
    Ok(())
}

/// A flow's port is never the cell's, whichever socket of it wants one.
#[privileged_test]
fn a_cell_has_no_other_ports() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let echo = node(&topology, ECHO_NODE_PORT);
    let seen = Capture::start(
        &topology.nodes[0].netns,
        "eth0",
        "tcp and src 10.32.96.50",
        topology.dir(),
    )?;
    for port in [2000, FIRST_LEG_PORT - 1] {
        let from = SocketAddrV4::new(SNAT, port);
        let before = forbidden(&lb)?;
        let unheard = in_cell(&topology, || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let socket = tokio::net::TcpSocket::new_v4()?;
                socket.bind(from.into())?;
                let connected = tokio::time::timeout(SILENCE, socket.connect(echo.into())).await;
                Ok(connected.is_err())
            })
        })?;
        assert!(unheard, "port {port}");
        assert!(forbidden(&lb)? > before, "port {port}");
        let drops = lb.drops()?;
        let samples = drops.iter().filter(|drop| drop.hook == "cell");
        let samples: Vec<_> = samples.flat_map(|drop| &drop.samples).collect();
        let ends = [from, echo].map(|end| Some(end.to_string()));
        let is_shown = samples.iter().any(|sample| {
            [&sample.source, &sample.destination] == ends.each_ref()
                && sample.flags.as_deref() == Some("SYN")
        });
        ensure!(is_shown, "port {port}: {samples:?}");
    }
    assert_eq!(seen.stop()?, []);
    Ok(())
}
