//! Two CPUs receive for the same flows at the same time: what no NIC does by itself, and a client can
//! make any NIC do (fragments, a tunnel, another hash).

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::{
        packet::{self, flags::*},
        raw::RawPort,
    },
    oracle::{ids, observe},
    product::{
        config::Config,
        cpu::{self, Dice},
        lb::Lb,
    },
    topology::{LB_PORT, MGMT_NIC, SNAT, TENANT_NIC, Topology, mac_of},
};

use crate::flows::life::{self, ensure_all_ids_are_free, line};

/// Tuples that both CPUs send for; each may have one flow.
const TUPLES: u8 = 8;
/// Ids for them and for the real connections, so few that each is taken again within milliseconds.
const IDS: u8 = 64;
/// The service that forged segments go to, and the node behind it, where no socket listens.
const FORGED: &str = "192.168.203.110:8000";
const NODE: &str = "10.32.96.107:30800";
/// A MAC that no station has: what is sent to the forged addresses reaches no stack.
const UNUSED: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);
const CLIENT_ISN: u32 = 1000;
const NODE_ISN: u32 = 5000;
/// Frames between two looks at the clock.
const BURST: u32 = 64;
/// Fewer frames for each queue than this prove little.
const LEAST: u64 = 10_000;

/// Segments of every kind for the same tuples on both CPUs and from both sides, while real connections
/// come and go on the same ids: none of those fails, and no id and no count is lost.
#[privileged_test]
fn two_cpus_on_the_same_flows_lose_nothing() -> Result<()> {
    let duration = Duration::from_secs(match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 60,
        None => 5,
    });
    let topology = Topology::poc()?;
    let cpus = cpu::two()?;
    topology.split_nics(cpus)?;
    let lb = Lb::start(&topology, &config())?;
    let line = line(&topology)?;
    line.open().context("before the storm")?;
    let held = ids::leave(topology.run(), IDS.into())?;
    let storm = Storm::new(&topology)?;
    let before = received(&topology)?;

    let (end, done) = (Instant::now() + duration, AtomicBool::new(false));
    let (made, sent) = thread::scope(|scope| -> Result<_> {
        let [mine, other] = [0, 1].map(|me| {
            let (storm, done) = (&storm, &done);
            scope.spawn(move || storm.blow(me, cpus[me], done))
        });
        let made = (|| -> Result<u64> {
            let mut made = 0_u64;
            while Instant::now() < end {
                line.open().with_context(|| format!("connection {made}"))?;
                made += 1;
            }
            Ok(made)
        })();
        done.store(true, Ordering::Release);
        let sent = [mine, other].map(|thread| thread.join().expect("a sender does not panic"));
        let [mine, other] = sent;
        Ok((made?, [mine?, other?]))
    })?;

    let after = received(&topology)?;
    println!("{made} connections, sent {sent:?}, received {before:?} to {after:?}");
    for (then, now) in before.iter().zip(&after) {
        ensure!(now - then > LEAST, "{before:?} to {after:?}: idle queues");
    }
    ensure!(made > 0, "no connection in {duration:?}");
    let races = lb.dropped("flow_race")?;
    println!("{races} packets met another one");
    storm.end()?;
    drop(held);
    ensure_all_ids_are_free(&topology, &lb)
}

fn config() -> Config {
    life::config()
        .mgmt_pool("forged", [NODE])
        .tcp_service("forged", FORGED)
        .set("timeouts.half_open", "2s")
}

/// What each queue of each NIC has received.
fn received(topology: &Topology) -> Result<Vec<u64>> {
    let of = |nic| observe::xdp_packets(&topology.lb, nic);
    Ok([of(TENANT_NIC)?, of(MGMT_NIC)?].concat())
}

/// The frames of the storm, and where they go in.
struct Storm {
    tenant: RawPort,
    mgmt: RawPort,
    /// By tuple: SYN, ACK, FIN, RST.
    requests: Vec<[Vec<u8>; 4]>,
    /// By SNAT port: SYN-ACK, ACK, FIN, RST.
    replies: Vec<[Vec<u8>; 4]>,
}

impl Storm {
    fn new(topology: &Topology) -> Result<Self> {
        let node = mac_of(&topology.nodes[2].netns, "eth0")?;
        let [nic, mgmt] = [topology.mac(TENANT_NIC)?, topology.mac(MGMT_NIC)?];
        let request = |tuple: u8| {
            let client = format!("192.168.203.{}:40000", 120 + tuple);
            [(SYN_ONLY, 0), (ACK_ONLY, 1), (FIN_ACK, 1), (RST_ONLY, 1)].map(|(flags, after)| {
                let ack = if after == 0 { 0 } else { NODE_ISN + 1 };
                let frame = packet::tcp(&client, FORGED, flags).numbers(CLIENT_ISN + after, ack);
                frame.between(UNUSED, nic).bytes()
            })
        };
        let reply = |port: u16| {
            let snat = format!("{SNAT}:{port}");
            [(SYN_ACK, 0), (ACK_ONLY, 1), (FIN_ACK, 1), (RST_ACK, 1)].map(|(flags, after)| {
                let frame = packet::tcp(NODE, &snat, flags);
                let frame = frame.numbers(NODE_ISN + after, CLIENT_ISN + 1);
                frame.between(node, mgmt).bytes()
            })
        };
        let mut ports = ids::ports_by_slot(topology.run())?.into_values().flatten();
        Ok(Self {
            tenant: RawPort::open(&topology.tenant_lan, LB_PORT)?,
            mgmt: RawPort::open(&topology.mgmt_lan, LB_PORT)?,
            requests: (0..TUPLES).map(request).collect(),
            replies: ports.by_ref().map(reply).collect(),
        })
    }

    /// Sends from one CPU until it is `done`; how many frames.
    fn blow(&self, me: usize, cpu: usize, done: &AtomicBool) -> Result<u64> {
        cpu::bind(cpu)?;
        let mut dice = Dice::new(me as u64 + 1);
        let mut sent = 0;
        while !done.load(Ordering::Acquire) {
            for _ in 0..BURST {
                let kind = dice.below(4) as usize;
                match dice.below(2) {
                    0 => {
                        let tuple = dice.below(TUPLES.into()) as usize;
                        self.tenant.send(&self.requests[tuple][kind])?;
                    }
                    _ => {
                        let port = dice.below(IDS.into()) as usize;
                        self.mgmt.send(&self.replies[port][kind])?;
                    }
                }
                sent += 1;
            }
        }
        Ok(sent)
    }

    /// Ends what may still live.
    fn end(&self) -> Result<()> {
        self.requests
            .iter()
            .try_for_each(|frames| self.tenant.send(&frames[3]))
    }
}
