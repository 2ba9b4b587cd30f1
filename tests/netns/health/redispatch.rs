//! Connections to backends that drop SYNs, refuse them, or are gone: FEATURES A10, RELIABILITY 4.

use std::{
    fmt,
    net::SocketAddrV4,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, Host, SNAT, Topology, VIP},
    traffic::{
        client::{self, Answer},
        pace::Pace,
    },
};
use serde_json::json;

use crate::flows::life::LIMIT;

/// Connections to a pool of which one backend in three serves.
const CONNECTIONS: usize = 1000;
/// Threads that make them.
const CLIENTS: usize = 100;
/// What a connection may take, whatever its first backends do.
const MAX_CONNECT: Duration = Duration::from_secs(4);
/// A client repeats a SYN after this time (RFC 6298): a connection that took less has met no dead backend.
const REPEATED: Duration = Duration::from_secs(1);

/// New connections while a node vanishes.
const PACE: Pace = Pace {
    per_second: 500,
    threads: 256,
};
/// How long before and after it.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(6);
/// From then on no new connection meets it.
const SETTLED: Duration = Duration::from_secs(3);
/// What one takes then; of a hundred one may have waited for its CPU.
const QUICK: Duration = Duration::from_millis(200);

fn at(node: &Host) -> SocketAddrV4 {
    SocketAddrV4::new(node.address, ECHO_NODE_PORT)
}

/// A server that gets thousands of connections.
fn start(node: &Host) -> Result<EchoServer<'_>> {
    node.netns.keep_flows_on_a_cpu("eth0")?;
    EchoServer::start(&node.netns, at(node), node.name)
}

/// HAProxy in a load balancer's place, with the same addresses, which tries others as often.
fn haproxy(topology: &Topology, nodes: &[Host], check: &str) -> Result<Process> {
    let lb = &topology.lb;
    lb.run(&format!("ip addr add {VIP}/24 dev eth0"))?;
    lb.run(&format!("ip addr add {SNAT}/20 dev eth1"))?;
    let servers = nodes.iter().map(|node| {
        let (name, address) = (node.name, at(node));
        format!("  server {name} {address} {check}\n")
    });
    let servers: String = servers.collect();
    let text = format!(
        "defaults
  mode tcp
  retries 3
  option redispatch 1
  timeout connect 1s
  timeout client 1m
  timeout server 1m
listen echo
  bind {ECHO}
  balance roundrobin
{servers}"
    );
    let file = topology.write("haproxy.cfg", &text)?;
    let words = ["-db", "-f", file.to_str().context("a path")?];
    let process = Process::start(&lb.path(), topology.dir(), "haproxy", "haproxy", &words)?;
    poll::until("HAProxy listens", LIMIT, || {
        let port = format!(":{} ", ECHO.port());
        Ok(lb.run("ss -Hltn")?.contains(&port).then_some(()))
    })
    .with_context(|| process.stderr())?;
    Ok(process)
}

/// What became of connections.
#[derive(Debug, Default)]
struct Connects {
    /// When each that was answered began, since the test began, and what it took.
    took: Vec<(Duration, Duration)>,
    failures: Vec<String>,
}

impl Connects {
    fn note(&mut self, begun: Duration, took: Duration, answer: Result<Answer>) {
        match answer {
            Ok(_) => self.took.push((begun, took)),
            Err(error) => self.failures.push(format!("after {took:?}: {error:#}")),
        }
    }

    /// Those that began in this part of the time, the shortest first.
    fn begun(&self, from: Duration, until: Duration) -> Vec<Duration> {
        let took = self.took.iter();
        let took = took.filter(|(begun, _)| (from..until).contains(begun));
        let mut took: Vec<Duration> = took.map(|(_, took)| *took).collect();
        took.sort_unstable();
        took
    }
}

impl fmt::Display for Connects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.begun(Duration::ZERO, Duration::MAX);
        let failed = self.failures.len();
        let of = |part: usize| all.get(all.len().saturating_sub(1) * part / 100).copied();
        let [middle, late, last] = [50, 99, 100].map(|part| of(part).unwrap_or_default());
        let count = all.len();
        write!(
            f,
            "{count} answered, {failed} failed; median {middle:.1?}, p99 {late:.1?}, "
        )?;
        write!(f, "longest {last:.1?}")
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// So many connections of a client, from so many threads.
fn connect(client: &Host) -> Result<Connects> {
    let (connects, start) = (Mutex::new(Connects::default()), Instant::now());
    let some = || {
        for _ in 0..CONNECTIONS / CLIENTS {
            let begun = Instant::now();
            let answer = client::who(None, ECHO);
            locked(&connects).note(begun - start, begun.elapsed(), answer);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| client.netns.inside(some)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    Ok(connects
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}

/// Has a node drop what comes to the port of the pool.
pub(super) fn deafen(node: &Host) -> Result<()> {
    for line in [
        "nft add table ip deaf",
        "nft add chain ip deaf in { type filter hook input priority 0 ; policy accept ; }",
    ] {
        node.netns.run(line)?;
    }
    let rule = format!("nft add rule ip deaf in tcp dport {ECHO_NODE_PORT} counter drop");
    node.netns.run(&rule).map(drop)
}

/// Has it take everything again.
pub(super) fn undeafen(node: &Host) -> Result<()> {
    node.netns.run("nft delete table ip deaf").map(drop)
}

/// How many packets it has dropped.
fn deaf_to(node: &Host) -> Result<u64> {
    let rules = node.netns.run("nft list table ip deaf")?;
    let (_, count) = rules.split_once("counter packets ").context("a counter")?;
    let count = count.split(' ').next().context("a number")?;
    Ok(count.parse()?)
}

/// A10: of three backends one drops SYNs and one refuses them, and nothing checks them: every connection is answered by
/// the third one, within 4 s. Each backend has each connection once at most, by its own count.
#[privileged_test]
fn a10_a_backend_that_does_not_answer_or_refuses_costs_no_connection() -> Result<()> {
    let [topology, beside] = [Topology::poc()?, Topology::poc()?];
    for site in [&topology, &beside] {
        deafen(&site.nodes[1])?;
    }
    let _servers = [start(&topology.nodes[0])?, start(&beside.nodes[0])?];
    let nodes = &topology.nodes[..3];
    let config = Config::poc()
        .mgmt_pool("echo-a", nodes.iter().map(at))
        .tcp_service("echo-a", ECHO);
    let lb = Lb::start(&topology, &config)?;

    let connects = connect(topology.client())?;

    println!("lb: {connects}");
    assert!(connects.failures.is_empty(), "{:?}", connects.failures);
    assert_eq!(connects.took.len(), CONNECTIONS);
    let all = connects.begun(Duration::ZERO, Duration::MAX);
    ensure!(
        all.last().is_some_and(|last| *last < MAX_CONNECT),
        "{connects}"
    );
    let syns = lb.backends()?.into_iter().map(|backend| backend.syns);
    let [serves, drops, refuses] = syns.collect::<Vec<_>>()[..] else {
        anyhow::bail!("three backends");
    };
    let dropped = deaf_to(&topology.nodes[1])?;
    assert_eq!(
        [serves.unanswered, serves.refused, serves.redispatched],
        [0; 3]
    );
    assert_eq!(
        [drops.unanswered, drops.redispatched].map(u64::from),
        [dropped; 2]
    );
    assert_eq!((drops.refused, refuses.unanswered), (0, 0));
    ensure!(
        drops.redispatched > 100 && refuses.refused > 100,
        "{drops:?} {refuses:?}"
    );
    assert_eq!(refuses.refused, refuses.redispatched);
    assert_eq!(
        lb.dropped("refused_by_backend")?,
        u64::from(refuses.refused)
    );

    let haproxy = haproxy(&beside, &beside.nodes[..3], "")?;
    println!("HAProxy: {}", connect(beside.client())?);
    drop(haproxy);
    Ok(())
}

/// New connections at a rate, while a node vanishes.
fn vanish(topology: &Topology) -> Result<Connects> {
    let (connects, start) = (Mutex::new(Connects::default()), Instant::now());
    let step = |_| {
        let begun = Instant::now();
        let answer = client::who(None, ECHO);
        locked(&connects).note(begun - start, begun.elapsed(), answer);
        Ok(())
    };
    let netns = &topology.client().netns;
    let (lost, done) = PACE.beside(netns, &step, || {
        thread::sleep(BEFORE);
        topology.nodes[1].netns.run("ip link set eth0 down")?;
        let lost = start.elapsed();
        thread::sleep(AFTER);
        Ok(lost)
    })?;
    let mut connects = connects
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    // From the loss on.
    connects
        .took
        .retain(|(begun, took)| begun.saturating_add(*took) >= lost);
    for (begun, _) in &mut connects.took {
        *begun = begun.saturating_sub(lost);
    }
    println!("{:.0} connections/s", done.per_second());
    Ok(connects)
}

/// Checks of a pool, in the words of both.
struct Checking {
    name: &'static str,
    lb: fn(Keys) -> Keys,
    haproxy: &'static str,
}

const CHECKING: [Checking; 2] = [
    Checking {
        name: "no checks",
        lb: |pool| pool,
        haproxy: "",
    },
    Checking {
        name: "checks",
        lb: |pool| pool.set("health", json!({ "tcp": {}, "interval": "1s", "fall": 2 })),
        haproxy: "check inter 1s fall 2",
    },
];

/// One of four nodes vanishes under new connections: none fails, and soon none meets it, with checks and without.
#[privileged_test]
fn a_node_that_vanishes_under_new_connections_costs_none() -> Result<()> {
    CHECKING.iter().try_for_each(|checking| {
        let sites = [Topology::poc()?, Topology::poc()?];
        lose_a_node(&sites, checking).context(checking.name)
    })
}

fn lose_a_node([topology, beside]: &[Topology; 2], checking: &Checking) -> Result<()> {
    let Checking { name, lb, haproxy } = checking;
    let sites = [topology, beside].into_iter();
    let servers = sites.flat_map(|site| &site.nodes).map(start);
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let config = Config::poc()
        .mgmt_pool("echo-a", topology.nodes.iter().map(at))
        .pool("echo-a", lb)
        .tcp_service("echo-a", ECHO);
    let lb = Lb::start(topology, &config)?;

    let connects = vanish(topology)?;

    println!("{name}, lb: {connects}");
    assert!(connects.failures.is_empty(), "{:?}", connects.failures);
    let all = connects.begun(Duration::ZERO, Duration::MAX);
    let last = all.last().context("a connection")?;
    ensure!(*last < MAX_CONNECT, "{connects}");
    let late = connects.begun(SETTLED, Duration::MAX);
    ensure!(late.len() > 500, "{} connections", late.len());
    let quick = late.iter().filter(|took| **took < QUICK).count();
    let last = late.last().copied().unwrap_or_default();
    let count = late.len();
    println!("{name}, 3 s after the loss: {quick} of {count} within {QUICK:?}, longest {last:.1?}");
    ensure!(last < REPEATED && quick * 100 >= count * 99, "{last:?}");
    drop(lb);

    let haproxy = self::haproxy(beside, &beside.nodes, haproxy)?;
    println!("{name}, HAProxy: {}", vanish(beside)?);
    drop(haproxy);
    Ok(())
}
