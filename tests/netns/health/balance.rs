//! The algorithms of `balance` over real connections, at a service of its own and at a shared VIP: FEATURES A12.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{Teller, ask_on},
    topology::{Host, Topology, VIP},
    traffic::{
        client::{open, was_refused},
        hello::named,
    },
};

use crate::flows::life::LIMIT;

/// Where each node listens, and the shared VIP.
const PORT: u16 = 31443;
const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
/// The services of their own have these ports from here on, in the order of the algorithms.
const FIRST: u16 = 6440;
const ALGORITHMS: [&str; 4] = ["maglev", "round-robin", "least-connections", "source"];
/// Flows of one client by each.
const FLOWS: usize = 1000;
/// What Pearson's statistic of three equal backends exceeds with a probability of 0.1 %.
const CRITICAL: f64 = 13.82;

/// Three nodes as a pool for each algorithm, each with a service of its own, and a name of the shared VIP.
fn config(nodes: &[Host]) -> Config {
    let route = |pool: &&str| format!("{{ names: [{pool}.lab], pool: {pool} }}");
    let routes: Vec<String> = ALGORITHMS.iter().map(route).collect();
    let sni = format!("routes: [{}]", routes.join(", "));
    let config = Config::poc().service("shared", |shared| {
        shared
            .on("tenant-a")
            .tcp(SHARED)
            .set("sni", Keys::from(&*sni))
    });
    (FIRST..)
        .zip(ALGORITHMS)
        .fold(config, |config, (port, name)| {
            let nodes = nodes.iter();
            config
                .mgmt_pool(
                    name,
                    nodes.map(|node| SocketAddrV4::new(node.address, PORT)),
                )
                .pool(name, |pool| pool.set("balance", name))
                .tcp_service_to(name, SocketAddrV4::new(VIP, port), name)
        })
}

/// How many of so many connections of `client` reach each node, by the nodes' own words.
pub(super) fn reached(
    client: &Host,
    from: Option<Ipv4Addr>,
    to: SocketAddrV4,
    name: &str,
    count: usize,
) -> Result<BTreeMap<String, usize>> {
    let hello = named(format!("{name}.lab").as_bytes());
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        let connected = client.netns.inside(|| open(from, to))??;
        let node = ask_on(connected, &[&hello], Duration::ZERO)?;
        *counts
            .entry(node.context("no node has answered")?)
            .or_default() += 1;
    }
    Ok(counts)
}

fn chi_square(counts: &BTreeMap<String, usize>) -> f64 {
    let expected = f64::from(u32::try_from(FLOWS).expect("a few")) / 3.0;
    let found = ["a", "b", "c"].map(|node| counts.get(node).copied().unwrap_or(0));
    let terms = found.map(|count| {
        let count = f64::from(u32::try_from(count).expect("a few"));
        (count - expected).powi(2) / expected
    });
    terms.iter().sum()
}

/// A12: a thousand connections of one client by each algorithm: with `source` all reach one node, with the others all
/// nodes evenly; clients with other addresses reach others. So it is at a service of its own, and at a shared VIP, where
/// `source` chooses the same node.
#[privileged_test]
fn a12_a_thousand_connections_by_each_algorithm() -> Result<()> {
    let topology = Topology::poc()?;
    let nodes = &topology.nodes[..3];
    let servers = ["a", "b", "c"].iter().zip(nodes);
    let servers = servers.map(|(name, node)| {
        Teller::start_listening(&node.netns, SocketAddrV4::new(node.address, PORT), name)
    });
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let lb = Lb::start(&topology, &config(nodes))?;
    let client = &topology.clients[0];

    let mut stuck = Vec::new();
    for (port, name) in (FIRST..).zip(ALGORITHMS) {
        for to in [SocketAddrV4::new(VIP, port), SHARED] {
            let counts = reached(client, None, to, name, FLOWS)?;
            println!("{name} at {to}: {counts:?}");
            if name == "source" {
                ensure!(counts.len() == 1, "{name} at {to}: {counts:?}");
                stuck.extend(counts.into_keys());
            } else {
                let found = chi_square(&counts);
                ensure!(found < CRITICAL, "{name} at {to}: {counts:?}, {found}");
            }
        }
    }
    assert_eq!(stuck[0], stuck[1], "at both");
    let turns = reached(
        client,
        None,
        SocketAddrV4::new(VIP, FIRST + 1),
        "round-robin",
        9,
    )?;
    assert_eq!(
        turns.into_values().collect::<Vec<_>>(),
        [3; 3],
        "one after the other"
    );

    // Another seed moves clients, and ends no connection.
    let held = client
        .netns
        .inside(|| open(None, SocketAddrV4::new(VIP, FIRST)))??;
    let mut moved = false;
    for seed in 0..12 {
        lb.reload(&config(nodes).set("seed", format!("s{seed}")))?;
        let counts = reached(
            client,
            None,
            SocketAddrV4::new(VIP, FIRST + 3),
            "source",
            20,
        )?;
        ensure!(counts.len() == 1, "seed {seed}: {counts:?}");
        moved |= !counts.contains_key(&stuck[0]);
    }
    ensure!(moved, "twelve seeds have left the client where it was");
    let node = ask_on(held, &[&named(b"maglev.lab")], Duration::ZERO)?;
    ensure!(node.is_some(), "the connection from before has ended");
    Ok(())
}

/// Each backend has as many connections as it may, and the next client is refused at once, until one ends.
#[privileged_test]
fn a_backend_has_as_many_connections_as_it_may() -> Result<()> {
    const MOST: usize = 3;
    let topology = Topology::poc()?;
    let nodes = &topology.nodes[..2];
    let servers = ["a", "b"].iter().zip(nodes);
    let servers = servers.map(|(name, node)| {
        Teller::start_listening(&node.netns, SocketAddrV4::new(node.address, PORT), name)
    });
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let at = |node: &Host| SocketAddrV4::new(node.address, PORT);
    let service = SocketAddrV4::new(VIP, FIRST);
    let config = Config::poc()
        .mgmt_pool("api", nodes.iter().map(at))
        .pool("api", |pool| pool.set("max_connections", MOST))
        .tcp_service("api", service);
    let lb = Lb::start(&topology, &config)?;
    let netns = &topology.client().netns;
    let connect = || netns.inside(|| open(None, service))?;

    let mut held = (0..2 * MOST)
        .map(|_| connect())
        .collect::<Result<Vec<_>>>()?;
    let refused = connect().err().context("one more")?;
    ensure!(was_refused(&refused), "{refused:#}");
    assert_eq!(lb.refused("backends_full")?, 1);
    let mut counts = BTreeMap::new();
    for flow in lb.flows()? {
        *counts.entry(flow.backend).or_insert(0) += 1;
    }
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [MOST; 2]);

    drop(held.pop());
    poll::until("room for one more", LIMIT, || Ok(connect().ok())).map(drop)
}
