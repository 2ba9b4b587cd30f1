//! Weights over real connections: FEATURES A11.

use std::{net::SocketAddrV4, thread, time::Duration};

use anyhow::{Result, anyhow, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, Host, Topology},
    traffic::client,
};
use serde_json::json;

/// Connections of each of the two clients.
const CONNECTIONS: u64 = 5000;
/// What the first backend has of them, by the weights 3 and 1, and how far off it may be, in thousandths.
const WANTED: u64 = 750;
const MAX_ERROR: u64 = 37;
/// How long it may take until the MAC of each backend is known.
const NEXT_HOP_LIMIT: Duration = Duration::from_secs(20);

/// A11: of 10,000 connections a backend of weight 3 gets three times as many as one of weight 1, within 5 %, by the
/// servers' own count.
#[privileged_test]
fn a11_ten_thousand_connections_go_by_weight() -> Result<()> {
    let topology = Topology::poc()?;
    let nodes = &topology.nodes[..2];
    let at = |node: &Host| SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    let servers = nodes
        .iter()
        .map(|node| EchoServer::start(&node.netns, at(node), node.name));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    let backends = [
        json!({ "address": at(&nodes[0]), "weight": 3 }),
        json!({ "address": at(&nodes[1]) }),
    ];
    let config = Config::poc()
        .mgmt_pool("echo-a", nodes.iter().map(at))
        .pool("echo-a", |pool| pool.set("backends", backends))
        .tcp_service("echo-a", ECHO);
    let lb = Lb::start(&topology, &config)?;
    // As long as the MAC of one is not known, the other one has all of them.
    poll::until("next hops", NEXT_HOP_LIMIT, || {
        let backends = lb.backends()?;
        let are_known = backends.iter().all(|backend| backend.next_hop.is_some());
        Ok(are_known.then_some(()))
    })?;

    let connect = |client: &Host| -> Result<()> {
        client
            .netns
            .inside(|| (0..CONNECTIONS).try_for_each(|_| client::who(None, ECHO).map(drop)))?
    };
    thread::scope(|scope| {
        let clients = topology.clients[..2].iter();
        let clients: Vec<_> = clients
            .map(|client| scope.spawn(|| connect(client)))
            .collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;

    let seen = |server: &EchoServer<'_>| server.seen().values().sum::<u64>();
    let [first, second] = [seen(&servers[0]), seen(&servers[1])];
    assert_eq!(first + second, 2 * CONNECTIONS);
    let part = first * 1000 / (first + second);
    println!("{first} and {second}: {part} of 1000");
    ensure!(part.abs_diff(WANTED) <= MAX_ERROR, "{first} and {second}");
    Ok(())
}
