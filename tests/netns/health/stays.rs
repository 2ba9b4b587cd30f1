//! Clients that stay with a backend for a time, over real connections: at a service of XDP and at a shared VIP.

use std::{net::SocketAddrV4, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::Teller,
    topology::{Host, Topology, VIP},
};

use super::balance::reached;

/// Where each node listens, and the shared VIP.
const PORT: u16 = 31443;
const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
/// The services of their own have these ports from here on, in the order of the pools.
const FIRST: u16 = 6440;
/// What the nodes call themselves.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// The pools with their `source_timeout`.
const POOLS: [(&str, Option<&str>); 4] = [
    ("by-xdp", Some("10m")),
    ("by-shared", Some("10m")),
    ("short", Some("1s")),
    ("hash", None),
];

/// Three nodes as each pool, each with a service of its own, and a name of the shared VIP.
fn config(nodes: &[Host]) -> Config {
    let route = |(pool, _): &(&str, _)| format!("{{ names: [{pool}.lab], pool: {pool} }}");
    let routes: Vec<String> = POOLS.iter().map(route).collect();
    let sni = format!("routes: [{}]", routes.join(", "));
    let config = Config::poc().service("shared", |shared| {
        shared
            .on("tenant-a")
            .tcp(SHARED)
            .set("sni", Keys::from(&*sni))
    });
    (FIRST..)
        .zip(POOLS)
        .fold(config, |config, (port, (name, timeout))| {
            let nodes = nodes.iter();
            let nodes = nodes.map(|node| SocketAddrV4::new(node.address, PORT));
            config
                .mgmt_pool(name, nodes)
                .pool(name, |pool| {
                    let pool = pool.set("balance", "source");
                    match timeout {
                        Some(timeout) => pool.set("source_timeout", timeout),
                        None => pool,
                    }
                })
                .tcp_service_to(name, SocketAddrV4::new(VIP, port), name)
        })
}

/// The node that a client reaches with each of a few connections.
fn node(client: &Host, to: SocketAddrV4, pool: &str) -> Result<String> {
    let counts = reached(client, None, to, pool, 5)?;
    ensure!(counts.len() == 1, "{pool} at {to}: {counts:?}");
    counts.into_keys().next().context("a node")
}

/// A node is disabled while a client has it, and enabled again: the client stays with the one that it has had meanwhile,
/// wherever it has got that, and without a timeout, or after it, it is back at the first one.
#[privileged_test]
fn a_client_stays_with_the_node_that_it_has_had() -> Result<()> {
    let topology = Topology::poc()?;
    let nodes = &topology.nodes[..3];
    let servers = NAMES.iter().zip(nodes).map(|(name, node)| {
        Teller::start_listening(&node.netns, SocketAddrV4::new(node.address, PORT), name)
    });
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let lb = Lb::start(&topology, &config(nodes))?;
    let client = &topology.clients[0];

    for (port, (pool, _)) in (FIRST..).zip(POOLS) {
        let mut listeners = [SocketAddrV4::new(VIP, port), SHARED];
        if pool == "by-shared" {
            listeners.reverse();
        }
        let [one, other] = listeners;
        let first = node(client, one, pool)?;
        let index = NAMES.iter().position(|name| *name == first);
        let address = nodes[index.context("a name")?].address.to_string();
        lb.tell(&["node", "disable", &address])?.done()?;
        let second = node(client, one, pool)?;
        ensure!(second != first, "{pool}: {first} is disabled");
        lb.tell(&["node", "enable", &address])?.done()?;
        if pool == "short" {
            // Each connection would begin the time anew, so nothing is there to be polled.
            thread::sleep(Duration::from_secs(4));
        }
        let wanted = match pool {
            "short" | "hash" => first,
            _ => second,
        };
        for listener in [one, other] {
            let found = node(client, listener, pool)?;
            ensure!(
                found == wanted,
                "{pool} at {listener}: {found}, not {wanted}"
            );
        }
    }
    Ok(())
}
