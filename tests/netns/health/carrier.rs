//! The cable of our own NIC says nothing of the backends: FEATURES E10.

use std::{thread, time::Duration};

use anyhow::Result;
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    topology::Topology,
};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, alive, connect, wait_for},
};

/// A site whose dead backends lose their flows at the first check that fails.
fn config(site: &Site<'_>) -> Config {
    let config = site.http_reset("");
    config.pool("echo-a", |pool| pool.set("health.fall", 1))
}

fn set(topology: &Topology, state: &str) -> Result<()> {
    topology
        .mgmt_lan
        .ip_batch(&format!("link set p-lb {state}\n"))
        .map(drop)
}

fn transitions(lb: &Lb<'_>) -> Result<Vec<u64>> {
    let health = lb.health()?.into_iter();
    Ok(health.map(|one| one.transitions).collect())
}

/// The switch of the backends restarts: they stay as they are, and so do the connections.
#[privileged_test]
fn a_nic_without_carrier_makes_no_backend_dead() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let mut lb = Lb::start(&topology, &config(&site))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let connections = connect(&topology, 20)?;
    let before = transitions(&lb)?;
    set(&topology, "down")?;
    thread::sleep(SOON);
    assert_eq!(transitions(&lb)?, before);
    let networks = lb.status()?.networks.into_iter();
    let carriers: Vec<bool> = networks.map(|network| network.carrier).collect();
    assert_eq!(carriers, [false, true]);
    set(&topology, "up")?;
    connections.iter().try_for_each(alive)?;
    assert_eq!(transitions(&lb)?, before);
    let log = lb.process().stderr();
    assert_eq!(log.matches("NIC has no carrier").count(), 1, "{log}");
    // Each is an event, and no other interface has any.
    let words = || -> Result<Vec<String>> {
        let events = lb.events()?.into_iter();
        let events = events.filter(|event| event.kind == "interface");
        Ok(events
            .map(|event| format!("{}: {}", event.object, event.words))
            .collect())
    };
    let found = poll::until("the events", SOON, || {
        let words = words()?;
        Ok((words.len() >= 2).then_some(words))
    })?;
    let wanted = ["no carrier", "a carrier again"];
    assert_eq!(found.len(), wanted.len(), "{found:?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.starts_with("interface eth1: "), "{found}");
        assert!(found.contains(wanted), "{found}");
    }

    // And what it did not see is found out now.
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead"], SOON)?;
    Ok(())
}

/// A link that comes and goes: no check that it was away for counts.
#[privileged_test]
fn a_link_that_flaps_makes_no_backend_dead() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let lb = Lb::start(&topology, &config(&site))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let connections = connect(&topology, 20)?;
    let before = transitions(&lb)?;
    for _ in 0..10 {
        set(&topology, "down")?;
        thread::sleep(Duration::from_millis(330));
        set(&topology, "up")?;
        thread::sleep(Duration::from_millis(470));
    }
    assert_eq!(transitions(&lb)?, before);
    connections.iter().try_for_each(alive)
}
