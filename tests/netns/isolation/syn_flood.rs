//! C9: a flood of SYNs to a service behind SYN cookies comes to no backend, and its other clients connect as without it.

use std::{
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::raw::RawPort,
    oracle::capture::Capture,
    poll,
    product::lb::Lb,
    servers::teller::{self, Teller},
    topology::{ECHO, ECHO_NODE_PORT, TENANT_NIC, Topology},
    traffic::flood::Flood,
};

use crate::{flows::cookies::behind, isolation::flood::sources};

/// SYNs in a second, which is what a CPU of a small machine sends beside all else; and frames at a time.
const RATE: u64 = 60_000;
const BURST: u64 = 60;
/// How long the flood goes on, and in the long tier.
const TIME: Duration = Duration::from_secs(8);
const LONG_TIME: Duration = Duration::from_secs(30);
/// By then a flood is known as one.
const NOTICED: Duration = Duration::from_secs(2);
/// Between two connections.
const PAUSE: Duration = Duration::from_millis(3);
/// What each connection, and nine hundred and ninety-nine of a thousand take at most.
const ALL: Duration = Duration::from_secs(4);
const MOST: Duration = Duration::from_secs(1);
/// A MAC that no station has: what is sent to the spoofed addresses reaches no stack.
const UNUSED: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);
const NAME: &str = "node";

/// A flood in the background, from other hosts' addresses.
fn flood(topology: &Topology, is_over: &AtomicBool) -> Result<u64> {
    let stations = [UNUSED, topology.mac(TENANT_NIC)?];
    let mut flood = Flood::new(stations, sources(120..250), ECHO);
    let port = RawPort::open(&topology.client().netns, "eth0")?;
    let begun = Instant::now();
    while !is_over.load(Ordering::Acquire) {
        flood.send(&port, BURST)?;
        let due = Duration::from_micros(flood.sent() * 1_000_000 / RATE);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(flood.sent())
}

/// Connections of another client until then, one after the other, of which either end speaks first: how long each took.
fn connect(topology: &Topology, until: Instant) -> Result<Vec<Duration>> {
    let client = topology.clients.get(1).context("a second client")?;
    client.netns.inside(|| {
        let mut times = Vec::new();
        while Instant::now() < until {
            let begun = Instant::now();
            let said: &[&[u8]] = if times.len() % 2 == 0 {
                &[]
            } else {
                &[b"hello"]
            };
            let reached = teller::ask(ECHO, said, Duration::ZERO);
            let reached = reached.with_context(|| format!("connection {}", times.len()))?;
            ensure!(reached.as_deref() == Some(NAME), "{reached:?}");
            times.push(begun.elapsed());
            thread::sleep(PAUSE);
        }
        Ok(times)
    })?
}

/// Always, and where the flood turns cookies on: then it comes to the backends until they are.
#[privileged_test]
fn c9_a_flood_of_syns_comes_to_no_backend() -> Result<()> {
    let time = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => LONG_TIME,
        None => TIME,
    };
    for cookies in ["always", "auto"] {
        let topology = Topology::poc()?;
        let node = &topology.nodes[0];
        node.netns.keep_flows_on_a_cpu("eth0")?;
        let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        let _teller = Teller::start(&node.netns, address, NAME)?;
        let lb = Lb::start(&topology, &behind(cookies))?;
        let is_over = AtomicBool::new(false);
        let ring = || -> Result<_> { Ok(lb.status()?.networks[1].half_open) };
        let (mut times, syns, taken, sent) = thread::scope(|scope| -> Result<_> {
            let flooding = scope.spawn(|| flood(&topology, &is_over));
            let watched = (|| {
                if cookies == "auto" {
                    poll::until("cookies", NOTICED, || Ok(ring()?.flooded.then_some(())))?;
                }
                let filter = format!(
                    "dst {} and tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn",
                    node.address
                );
                let syns = Capture::start(&node.netns, "eth0", &filter, topology.dir())?;
                let before = ring()?.taken;
                let times = connect(&topology, Instant::now() + time)?;
                let taken = ring()?.taken - before;
                Ok::<_, anyhow::Error>((times, syns.stop()?.len(), taken))
            })();
            is_over.store(true, Ordering::Release);
            let sent = flooding
                .join()
                .map_err(|_| anyhow!("the flood panicked"))??;
            let (times, syns, taken) = watched?;
            Ok((times, syns, taken, sent))
        })?;
        times.sort_unstable();
        let count = times.len();
        let at = |share: usize| times.get(count * share / 1000).copied().unwrap_or_default();
        println!(
            "{cookies}: {sent} SYNs of the flood, {count} connections: p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}, the longest {:.1?}; \
             {syns} SYNs at the backend, {taken} flows",
            at(500),
            at(990),
            at(999),
            times.last().copied().unwrap_or_default()
        );
        ensure!(count > 200, "{count} connections");
        ensure!(times.iter().all(|time| *time < ALL), "{cookies}");
        ensure!(at(999) < MOST, "{cookies}");
        // One that was repeated has two.
        ensure!(
            (count..=count + count / 100).contains(&syns),
            "{cookies}: {syns} SYNs at the backend for {count} connections"
        );
        assert_eq!(usize::try_from(taken)?, count, "{cookies}: flows");
        if cookies == "auto" {
            poll::until("the end of the flood", Duration::from_secs(15), || {
                Ok((!ring()?.flooded).then_some(()))
            })?;
        }
        lb.down()?;
    }
    Ok(())
}
