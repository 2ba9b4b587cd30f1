//! All backends of a network that do not answer any more: it may be the way to them. FEATURES E10.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    topology::Topology,
};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{HEALTH_PORT, SOON, Site, alive, at_endpoints, connect, wait_for},
    lifecycle::mend::cell,
};

/// One check that fails is a verdict, and there is time between two of them.
const TIMES: &str = "interval: 3s, timeout: 500ms, fast_interval: 3s, rise: 1, fall: 1";
/// What is logged of it.
const SILENCE: &str = "no backend of the network answers its checks";

fn config(site: &Site<'_>) -> Config {
    let health = at_endpoints(TIMES).set("on_dead", "reset");
    site.config(health, "")
}

/// Makes ready what [`block`] needs.
fn prepare(topology: &Topology) -> Result<()> {
    in_cell(topology, "nft add table ip lost")?;
    let chain = "nft add chain ip lost in { type filter hook input priority 0 ; }";
    in_cell(topology, chain)
}

/// Takes the way back of all checks away at once, or gives it back.
fn block(topology: &Topology, is_blocked: bool) -> Result<()> {
    match is_blocked {
        true => {
            let rule = format!("nft add rule ip lost in tcp sport {HEALTH_PORT} drop");
            in_cell(topology, &rule)
        }
        false => in_cell(topology, "nft flush chain ip lost in"),
    }
}

fn in_cell(topology: &Topology, line: &str) -> Result<()> {
    let words: Vec<&str> = line.split(' ').collect();
    cell(topology, "mgmt", &words).map(drop)
}

fn transitions(lb: &Lb<'_>) -> Result<Vec<u64>> {
    let health = lb.health()?.into_iter();
    Ok(health.map(|one| one.transitions).collect())
}

/// A way that is lost for less than a round of checks makes no backend dead, and one that stays lost does.
#[privileged_test]
fn a_silence_of_all_nodes_waits_for_one_more_round() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 4)?;
    let mut lb = Lb::start(&topology, &config(&site))?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    let connections = connect(&topology, 20)?;
    let before = transitions(&lb)?;
    prepare(&topology)?;

    block(&topology, true)?;
    poll::until("the silence", LIMIT, || {
        Ok(lb.process().stderr().contains(SILENCE).then_some(()))
    })?;
    block(&topology, false)?;
    thread::sleep(SOON * 2);
    assert_eq!(transitions(&lb)?, before);
    let log = lb.process().stderr();
    assert_eq!(log.matches(SILENCE).count(), 1, "{log}");
    connections.iter().try_for_each(alive)?;

    block(&topology, true)?;
    let took = wait_for(&lb, &["dead"; 4], SOON * 4)?;
    println!("dead after {took:?}");
    let log = lb.process().stderr();
    assert_eq!(log.matches(SILENCE).count(), 2, "{log}");
    block(&topology, false)?;
    wait_for(&lb, &["up"; 4], SOON * 2).map(drop)
}

/// One node of four waits for no round.
#[privileged_test]
fn a_silence_of_one_node_is_its_own() -> Result<()> {
    const DEAD_WITHIN: Duration = Duration::from_secs(6);
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 4)?;
    let times = "interval: 500ms, timeout: 500ms, fast_interval: 500ms, rise: 1, fall: 2";
    let mut lb = Lb::start(&topology, &site.config(at_endpoints(times), ""))?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    topology.nodes[2].netns.run("ip link set eth0 down")?;
    wait_for(&lb, &["up", "up", "dead", "up"], DEAD_WITHIN)?;
    let log = lb.process().stderr();
    ensure!(!log.contains(SILENCE), "{log}");
    Ok(())
}
