//! Many backends that die at once.

use std::{
    collections::BTreeSet,
    net::SocketAddrV4,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    oracle::{links, map_content::ids_of_tables, raw_map::RawMap},
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::answers::Answers,
    topology::{Topology, VIP},
};
use lb_user::dataplane::pins::Pins;

use crate::{flows::life::LIMIT, health::verdicts::HEALTH_PORT};

/// How many pools there are, and how many backends each of two nodes has in each of them.
const POOLS: u16 = 125;
const EACH: u16 = 8;
const DYING: usize = POOLS as usize * EACH as usize;
/// The first NodePort.
const FIRST_PORT: u16 = 30_000;
/// Checks that a machine with two CPUs makes of so many backends.
const CHECKS: &str = "interval: 5s, timeout: 2s, fast_interval: 1s, rise: 1, fall: 2";
/// How long it may take from when a table lacks the first one until no table has one of them.
const MAX_SWEEP: Duration = Duration::from_secs(1);
/// How long the checks take to find it: `interval` and `fast_interval`, a tenth late each, on a machine that is busy.
const MAX_VERDICT: Duration = Duration::from_secs(8);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Of 2,000 backends those of one node die: 1,000 at once, in all pools. The tables are read from the kernel.
#[privileged_test]
fn a_thousand_backends_that_die_at_once_are_out_within_a_second() -> Result<()> {
    let topology = Topology::poc()?;
    let at = |node: usize| SocketAddrV4::new(topology.nodes[node].address, HEALTH_PORT);
    let dying = Answers::start(&topology.nodes[0].netns, at(0))?;
    let _living = Answers::start(&topology.nodes[1].netns, at(1))?;
    let lb = Lb::start(&topology, &config(&topology))?;
    let maps = links::pins(topology.run()).join(Pins::version());
    let tables = RawMap::open(&maps.join("MAGLEV"))?;
    poll::until("all backends in the tables", LIMIT * 6, || {
        Ok((backends(&tables)?.len() == DYING * 2).then_some(()))
    })?;

    dying.refuse();
    let start = Instant::now();
    let (mut first, mut out) = (None, None);
    while out.is_none() {
        let left = backends(&tables)?.len() - DYING;
        ensure!(start.elapsed() < LIMIT * 6, "{left} are left");
        if left < DYING {
            first.get_or_insert_with(|| start.elapsed());
        }
        if left == 0 {
            out = Some(start.elapsed());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let [first, out] = [first, out].map(Option::unwrap_or_default);
    let swept = out.saturating_sub(first);
    println!("{DYING} backends: the first is out after {first:?}, all are {swept:?} later");
    assert!(swept < MAX_SWEEP, "{swept:?} from the first");
    // Each of two failed checks, at the latest, and the sweep.
    assert!(out < MAX_VERDICT + MAX_SWEEP, "{out:?}");

    let verdicts = lb.health()?;
    let dead = verdicts.iter().filter(|one| one.verdict == "dead");
    assert_eq!(dead.count(), DYING);
    Ok(())
}

fn config(topology: &Topology) -> Config {
    let health = Keys::from(CHECKS).set("tcp.port", HEALTH_PORT);
    (0..POOLS).fold(Config::poc(), |config, pool| {
        let ports = (0..EACH).map(|index| FIRST_PORT + pool * EACH + index);
        let backends = ports.flat_map(|port| {
            let nodes = topology.nodes.iter().take(2);
            nodes.map(move |node| SocketAddrV4::new(node.address, port))
        });
        let name = format!("p{pool}");
        config
            .mgmt_pool(&name, backends)
            .pool(&name, |pool| pool.set("health", health.clone()))
            .tcp_service(&name, SocketAddrV4::new(VIP, FIRST_PORT + pool))
    })
}

/// The ids in the tables of all pools.
pub(super) fn backends(tables: &RawMap) -> Result<BTreeSet<Vec<u8>>> {
    Ok(ids_of_tables(&tables.take()?))
}
