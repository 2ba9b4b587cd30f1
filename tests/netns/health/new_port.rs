//! A backend that moves to another port, as a NodePort does that is made anew.

use std::{
    net::SocketAddrV4,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, Host, Topology},
    traffic::client,
};
use serde_json::{Value, json};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{FAST, alive, connect, wait_for},
};

const NEW_PORT: u16 = 30_999;
/// How long the new port is closed when the reload begins.
const CLOSED: Duration = Duration::from_millis(1500);
/// How long a reload waits for checks.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// Named backends of three nodes at these ports, checked where they serve.
fn config(topology: &Topology, ports: [u16; 3]) -> Config {
    let backend = |(node, port): (&Host, u16)| {
        let address = SocketAddrV4::new(node.address, port);
        json!({ "name": node.name, "address": address })
    };
    let backends: Vec<Value> = topology.nodes.iter().zip(ports).map(backend).collect();
    let health = Keys::from(FAST).with("tcp: {}");
    Config::poc()
        .pool("echo-a", |pool| {
            let pool = pool.on("mgmt").set("health", health);
            pool.set("backends", backends)
        })
        .tcp_service("echo-a", ECHO)
}

/// Servers at a port of three nodes, with this behind their names.
fn servers<'t>(topology: &'t Topology, port: u16, part: &str) -> Result<Vec<EchoServer<'t>>> {
    let nodes = topology.nodes.iter().take(3);
    let start = |node: &'t Host| {
        let name = format!("{}{part}", node.name);
        EchoServer::start(&node.netns, SocketAddrV4::new(node.address, port), &name)
    };
    nodes.map(start).collect()
}

/// The names of the servers that answered one new connection after the other while a reload went on, and how long that
/// took; none of them may fail.
fn reload(topology: &Topology, lb: &Lb<'_>) -> Result<(Vec<String>, Duration)> {
    let netns = &topology.client().netns;
    thread::scope(|scope| {
        let start = Instant::now();
        let reload = scope.spawn(|| lb.tell(&["reload"])?.done());
        let mut names = Vec::new();
        while !reload.is_finished() {
            let answer = netns.inside(|| client::who(None, ECHO))?;
            let answer = answer.with_context(|| format!("after {:?}", start.elapsed()))?;
            names.push(answer.node);
        }
        reload.join().map_err(|_| anyhow!("a thread panicked"))??;
        Ok((names, start.elapsed()))
    })
}

/// The old ports serve until the new ones do, which begin to listen only when the reload waits for them; connections
/// that are there go on.
#[privileged_test]
fn a_new_port_is_checked_before_the_old_one_is_left() -> Result<()> {
    let topology = Topology::poc()?;
    let _old = servers(&topology, ECHO_NODE_PORT, "")?;
    let lb = Lb::start(&topology, &config(&topology, [ECHO_NODE_PORT; 3]))?;
    wait_for(&lb, &["up"; 3], LIMIT)?;
    let connections = connect(&topology, 12)?;
    lb.write(&config(&topology, [NEW_PORT; 3]))?;
    let (new, (names, took)) = thread::scope(|scope| -> Result<_> {
        let new = scope.spawn(|| {
            thread::sleep(CLOSED);
            servers(&topology, NEW_PORT, "-new")
        });
        let reloaded = reload(&topology, &lb)?;
        let new = new.join().map_err(|_| anyhow!("a thread panicked"))??;
        Ok((new, reloaded))
    })?;
    println!("{} connections while the reload took {took:?}", names.len());
    ensure!(took >= CLOSED && took < MAX_WAIT, "{took:?}");
    ensure!(names.len() > 20, "{names:?}");
    let netns = &topology.client().netns;
    for _ in 0..30 {
        let answer = netns.inside(|| client::who(None, ECHO))??;
        ensure!(answer.node.ends_with("-new"), "{answer:?}");
    }
    wait_for(&lb, &["up"; 3], LIMIT)?;
    connections.iter().try_for_each(alive)?;
    drop((connections, new));
    Ok(())
}

/// A new port that no server has is dead when the reload has waited for it, and no connection has met it.
#[privileged_test]
fn a_new_port_without_a_server_gets_no_connection() -> Result<()> {
    let topology = Topology::poc()?;
    let _old = servers(&topology, ECHO_NODE_PORT, "")?;
    let lb = Lb::start(&topology, &config(&topology, [ECHO_NODE_PORT; 3]))?;
    wait_for(&lb, &["up"; 3], LIMIT)?;
    lb.write(&config(
        &topology,
        [ECHO_NODE_PORT, NEW_PORT, ECHO_NODE_PORT],
    ))?;
    let (names, took) = reload(&topology, &lb)?;
    println!("{} connections while the reload took {took:?}", names.len());
    ensure!(took >= MAX_WAIT, "{took:?}");
    wait_for(&lb, &["up", "dead", "up"], LIMIT)?;
    let moved = topology.nodes[1].name;
    let netns = &topology.client().netns;
    for _ in 0..30 {
        let answer = netns.inside(|| client::who(None, ECHO))??;
        ensure!(answer.node != moved, "{answer:?}");
    }
    Ok(())
}
