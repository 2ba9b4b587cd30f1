//! One process takes over from another while connections come and go: RELIABILITY 2.

use std::{
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    hello::named,
    lb::{Lb, start_fails_with},
    pair::{Line, Pair},
    process::Process,
    teller::{Teller, ask},
    topology::{Topology, VIP},
};

const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
const DIRECT: SocketAddrV4 = SocketAddrV4::new(VIP, 8443);
const LONG: SocketAddrV4 = SocketAddrV4::new(VIP, 444);
const LONG_DIRECT: SocketAddrV4 = SocketAddrV4::new(VIP, 8444);
const NAME: &str = "a.lab";
/// Where the node serves those that come and go, and those that stay.
const PORT: u16 = 31443;
const LONG_PORT: u16 = 31444;
const TAKEOVERS: usize = 20;
/// How long the process before may take to end once nothing is left to it.
const ENDS: Duration = Duration::from_secs(10);

fn config(topology: &Topology) -> String {
    let node = topology.nodes[0].address;
    format!(
        "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }}
  tenant-a: {{ role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }}
pools:
  short: {{ network: mgmt, backends: [\"{node}:{PORT}\"] }}
  long: {{ network: mgmt, backends: [\"{node}:{LONG_PORT}\"] }}
services:
  shared: {{ network: tenant-a, listen: [\"{SHARED}/tcp\"], sni: {{ routes: [{{ names: [{NAME}], pool: short }}] }} }}
  shared-long: {{ network: tenant-a, listen: [\"{LONG}/tcp\"], sni: {{ routes: [{{ names: [{NAME}], pool: long }}] }} }}
  direct: {{ network: tenant-a, listen: [\"{DIRECT}/tcp\"], pool: short }}
  direct-long: {{ network: tenant-a, listen: [\"{LONG_DIRECT}/tcp\"], pool: long }}
"
    )
}

/// What came of connections that are opened one after the other.
#[derive(Debug)]
struct Opened {
    count: usize,
    longest: Duration,
}

/// Opens connections to a VIP until it is told to stop; none may fail.
fn open(topology: &Topology, to: SocketAddrV4, stop: &AtomicBool) -> Result<Opened> {
    let hello = named(NAME.as_bytes());
    let mut opened = Opened {
        count: 0,
        longest: Duration::ZERO,
    };
    topology.client().netns.inside(|| {
        while !stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            let who = ask(to, &[&hello], Duration::ZERO);
            let who = who.with_context(|| format!("connection {} to {to}", opened.count))?;
            ensure!(
                who.as_deref() == Some("node"),
                "connection {} to {to} reached {who:?}",
                opened.count
            );
            opened.longest = opened.longest.max(started.elapsed());
            opened.count += 1;
        }
        Ok(opened)
    })?
}

/// Twenty upgrades, one after the other, beside connections that stay and connections that come and go,
/// by the data plane and by a shared VIP: none is lost, none is refused, and each process ends when what
/// it carries has ended.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn reliability_2_a_process_takes_over_and_nobody_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology);
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, PORT);
    let _teller = Teller::start(&node.netns, address, "node")?;
    let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
    let line = line.saying(named(NAME.as_bytes()));
    let mut lb = Lb::start(&topology, &config)?;
    let mut pairs = line.open_many(10)?;
    for _ in 0..10 {
        pairs.push(line.open_at(LONG_DIRECT)?);
    }
    let mut before = Vec::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let loads = [SHARED, DIRECT].map(|to| {
            let (topology, stop) = (&topology, &stop);
            scope.spawn(move || open(topology, to, stop))
        });
        let rounds = || -> Result<()> {
            for round in 1..=TAKEOVERS {
                before.push(
                    lb.take_over(&config)
                        .with_context(|| format!("take-over {round}"))?,
                );
                pairs.iter().try_for_each(Pair::talk)?;
                // One that begins with each process.
                pairs.push(line.open()?);
                for load in &loads {
                    ensure!(!load.is_finished(), "a connection has failed");
                }
            }
            Ok(())
        };
        let mut rounds = rounds;
        let result = rounds();
        stop.store(true, Ordering::Relaxed);
        for (load, to) in loads.into_iter().zip(["shared VIP", "data plane"]) {
            let load = load.join().map_err(|_| anyhow!("the load panicked"))?;
            let Opened { count, longest } = load?;
            println!(
                "{TAKEOVERS} take-overs, {to}: {count} connections, the longest {longest:.1?}"
            );
            ensure!(count > TAKEOVERS, "{count} connections");
        }
        result
    })?;
    pairs.iter().try_for_each(Pair::talk)?;
    // Each carries something.
    for (number, process) in before.iter_mut().enumerate() {
        ensure!(process.ended()?.is_none(), "process {number} has ended");
    }
    drop(pairs);
    for process in &mut before {
        ended_well(process)?;
    }
    ensure!(lb.process().ended()?.is_none());
    // What is left ends with the data plane.
    let _pair = line.open()?;
    let mut left = lb.take_over(&config)?;
    lb.process().stop()?;
    ensure!(left.ended()?.is_none());
    lb.down()?;
    ended_well(&mut left)
}

fn ended_well(process: &mut Process) -> Result<()> {
    let status = process.wait_for_end(ENDS)?;
    ensure!(status.success(), "{status}: {}", process.stderr());
    Ok(())
}

/// Where nobody runs, there is nobody to take over from; where somebody does, a file that is wrong leaves
/// him alone.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn who_cannot_start_takes_nothing_over() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology);
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, PORT);
    let _teller = Teller::start(&node.netns, address, "node")?;
    let mut lb = Lb::start(&topology, &config)?;
    let reaches = || {
        let hello = named(NAME.as_bytes());
        let who = topology
            .client()
            .netns
            .inside(|| ask(SHARED, &[&hello], Duration::ZERO))??;
        ensure!(who.as_deref() == Some("node"), "{who:?}");
        Ok(())
    };
    let failure = start_fails_with(&topology, "version: [", &["--takeover"])?;
    ensure!(failure.code == Some(2), "{failure:?}");
    reaches()?;
    ensure!(lb.process().ended()?.is_none());
    lb.process().stop()?;
    // The process has ended: its successor begins as any other.
    let _ended = lb.take_over(&config)?;
    reaches()
}
