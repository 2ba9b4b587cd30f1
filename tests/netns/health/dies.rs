//! A backend that dies with many connections: FEATURES E10.

use std::{
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    netns::Netns,
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::{answers::Answers, echo::EchoServer},
    topology::{ECHO_NODE_PORT, Topology, VIP},
    traffic::secret::SecretFlow,
};

use crate::{
    flows::{
        life::LIMIT,
        million::{self, Crowd, Extent, LISTENERS, STEP, silence},
    },
    health::verdicts::{FAST, SOON, wait_for},
};

const HEALTH_PORT: u16 = 31936;
/// Of the busy connections.
const BUSY: SocketAddrV4 = SocketAddrV4::new(VIP, 7002);
const BUSY_NODE_PORT: u16 = 30702;
const THREADS: usize = 8;

/// Idle connections, half of which are of the backend that dies, and busy ones, all of them of it.
fn extent() -> (Extent, usize) {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => (
            Extent {
                flows: 200_000,
                addresses: 2,
            },
            1000,
        ),
        None => (
            Extent {
                flows: 20_000,
                addresses: 1,
            },
            200,
        ),
    }
}

/// The client of every idle connection to the backend gets a reset, counted by its host's packet filter;
/// every busy one ends with its next word; the other half of the connections goes on.
#[privileged_test]
fn e10_everybody_knows_when_a_backend_dies() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let (extent, busy) = extent();
    let at = |port| SocketAddrV4::new(node.address, port);
    let health = Answers::start(&node.netns, at(HEALTH_PORT))?;
    let _echo = EchoServer::start(&node.netns, at(BUSY_NODE_PORT), node.name)?;
    let lb = Lb::start(&topology, &config(&extent))?;
    wait_for(&lb, &["up", "up", "up"], LIMIT)?;
    [topology.client(), node, &topology.workers[0]]
        .into_iter()
        .try_for_each(silence)?;
    for port in [HEALTH_PORT, BUSY_NODE_PORT] {
        let rule = format!("nft insert rule ip silent in tcp dport {port} accept");
        node.netns.run(&rule)?;
    }
    let client = &topology.client().netns;
    for listener in LISTENERS {
        let rule = format!(
            "nft add rule ip silent in tcp sport {} tcp flags & rst == rst counter",
            listener.port()
        );
        client.run(&rule)?;
    }
    let mut crowd = Crowd::new(&topology)?;
    while crowd.flows < extent.flows {
        crowd.grow(&lb, STEP.min(extent.flows - crowd.flows))?;
    }
    let dying = flows_to(&lb, ECHO_NODE_PORT, "10.32.96.105")?;
    let others = lb.status()?.flows.live - dying;
    ensure!(
        dying >= extent.flows / 3,
        "{dying} of {} flows",
        extent.flows
    );

    let talkers = Talkers::default();
    let netns = &topology.clients[1].netns;
    let took = thread::scope(|scope| -> Result<[Duration; 2]> {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| talk(netns, busy / THREADS, &talkers)))
            .collect();
        poll::until("busy connections", LIMIT * 6, || {
            let over = threads.iter().any(thread::ScopedJoinHandle::is_finished);
            ensure!(!over, "a busy connection failed");
            let talking = talkers.talking.load(Ordering::SeqCst);
            Ok((talking == u64::try_from(busy)?).then_some(()))
        })?;
        talkers.doomed.store(true, Ordering::SeqCst);
        health.refuse();
        wait_for(&lb, &["dead", "up", "dead"], SOON * 3)?;
        let verdict = Instant::now();
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        let busy = verdict.elapsed();
        poll::until("the resets", LIMIT * 3, || {
            Ok((resets(client)?.first() == Some(&dying)).then_some(()))
        })
        .with_context(|| format!("{dying} wanted, {:?}", resets(client)))?;
        Ok([busy, verdict.elapsed()])
    })?;
    println!(
        "{busy} busy connections knew after {:?}, {dying} idle ones after {:?}",
        took[0], took[1]
    );
    assert_eq!(resets(client)?, [dying, 0], "resets of the others");
    assert_eq!(lb.status()?.flows.live, others);
    Ok(())
}

/// Connections that say one word after the other.
#[derive(Default)]
struct Talkers {
    talking: AtomicU64,
    /// From now on a connection may end.
    doomed: AtomicBool,
}

fn talk(netns: &Netns, connections: usize, talkers: &Talkers) -> Result<()> {
    let open = |_| SecretFlow::open(netns, None, BUSY);
    let mut open: Vec<SecretFlow> = (0..connections).map(open).collect::<Result<_>>()?;
    talkers
        .talking
        .fetch_add(connections.try_into()?, Ordering::SeqCst);
    let deadline = Instant::now() + LIMIT * 12;
    while !open.is_empty() {
        ensure!(
            Instant::now() < deadline,
            "{} connections go on",
            open.len()
        );
        let mut ended = Vec::new();
        for (index, flow) in open.iter_mut().enumerate() {
            match flow.round() {
                Ok(()) => {}
                Err(error) if talkers.doomed.load(Ordering::SeqCst) => {
                    let error = format!("{error:#}");
                    ensure!(error.contains("reset") || error.contains("ipe"), "{error}");
                    ended.push(index);
                }
                Err(error) => return Err(error),
            }
        }
        for index in ended.into_iter().rev() {
            drop(open.swap_remove(index));
        }
    }
    Ok(())
}

/// Live flows to a port of a node.
fn flows_to(lb: &Lb<'_>, port: u16, node: &str) -> Result<u64> {
    let to = format!("{node}:{port}");
    let flows = lb.flows()?.into_iter().filter(|flow| flow.backend == to);
    Ok(u64::try_from(flows.count())?)
}

/// What the counting rules of a host have seen, in their order.
fn resets(netns: &Netns) -> Result<Vec<u64>> {
    let rules = netns.run("nft list chain ip silent in")?;
    let lines = rules
        .lines()
        .filter_map(|line| line.split("packets ").nth(1));
    lines
        .map(|rest| {
            let count = rest.split_whitespace().next().context("a number")?;
            count.parse().context("a count")
        })
        .collect()
}

fn config(extent: &Extent) -> Config {
    let checked = |pool: Keys| {
        let health = Keys::from(FAST).set("on_dead", "reset");
        pool.set("health", health.set("tcp.port", HEALTH_PORT))
    };
    let busy = format!("10.32.96.105:{BUSY_NODE_PORT}");
    million::config(extent)
        .pool("far", checked)
        .mgmt_pool("busy", [busy])
        .pool("busy", checked)
        .tcp_service("busy", BUSY)
}
