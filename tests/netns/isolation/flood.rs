//! Floods harm no network but their own: FEATURES A9, RELIABILITY 18 to 25.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::raw::RawPort,
    poll,
    product::{config::Config, lb::Lb},
    topology::{ECHO, LAB_CONFIG, TENANT_NIC, Topology, Trunk},
    traffic::{
        client,
        conn_pair::{Line, Pair},
        flood::Flood,
    },
};

use crate::flows::life::{LIMIT, config, ensure_all_ids_are_free, line};

/// Established connections that have to survive.
const HELD: usize = 200;
/// SYNs, in the long tier; in the other one, as many as fit into the time.
const SYNS: u64 = 2_000_000;
const TIME: Duration = Duration::from_secs(10);
/// The least that a flood is, however slow the machine.
const LEAST: u64 = 50_000;
/// Flows in full use beside those that are held: new connections, and what is between two counts.
const SLACK: u64 = 64;
/// Frames between two looks at the clock.
const BURST: u64 = 256;
/// How long so many frames take at least, however late the flood is: a place of the ring lasts 320 ms
/// then, and the flood leaves CPU to the rest of the machine, which is the clients and the backends as
/// well.
const PACE: Duration = Duration::from_millis(10);
/// A MAC that no station has: what is sent to the spoofed addresses reaches no stack.
const UNUSED: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);
/// The most flows that the second tenant may have, and how many connections the first one makes.
const BUDGET: usize = 50;

/// A9: 200 idle connections survive a flood of SYNs from addresses that are let in, and new ones can
/// be made meanwhile; the flood holds no more than its ring.
#[privileged_test]
fn a9_established_connections_survive_a_flood() -> Result<()> {
    let topology = Topology::poc()?;
    // Or the flood would open no flow.
    let config = config()
        .set("timeouts.half_open", "2s")
        .service("echo-a", |echo| echo.set("syn_cookies", "never"));
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let held = line.open_many(HELD)?;
    let before = lb.status()?;
    let mut flood = Flood::new([UNUSED, topology.mac(TENANT_NIC)?], sources(120..250), ECHO);
    let port = RawPort::open(&topology.client().netns, "eth0")?;

    let (done, start) = (AtomicBool::new(false), Instant::now());
    let is_long = std::env::var_os("LB_TEST_LONG").is_some();
    let made = thread::scope(|scope| {
        let flooding = scope.spawn(|| -> Result<()> {
            let goes_on = |sent| match is_long {
                true => sent < SYNS,
                false => start.elapsed() < TIME,
            };
            while goes_on(flood.sent()) {
                flood.send(&port, BURST)?;
                thread::sleep(PACE);
            }
            done.store(true, Ordering::Release);
            Ok(())
        });
        let made = new_connections(&line, &lb, &done);
        let flooded = flooding.join().expect("the flood does not panic");
        flooded.and(made)
    })?;

    let after = lb.status()?;
    let [then, now] = [&before, &after].map(|status| &status.networks[1].half_open);
    let taken = now.taken - then.taken;
    let elapsed = start.elapsed();
    println!(
        "{} SYNs sent in {elapsed:.1?}, {taken} flows, {made} new connections",
        flood.sent()
    );
    ensure!(taken >= LEAST, "a flood of {taken}");
    ensure!(made > 0, "no new connection in {elapsed:?}");
    let talked = held.iter().filter(|pair| pair.talk().is_ok()).count();
    assert_eq!(talked, HELD, "of {HELD} live");
    drop(held);
    ensure_all_ids_are_free(&topology, &lb)
}

/// A client that the rules deny takes no id and no place, however often it tries.
#[privileged_test]
fn a_flood_of_denied_sources_costs_nothing() -> Result<()> {
    const DENIED: u64 = 20_000;
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| {
        service.with("allow: [192.168.203.0/25]")
    });
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let pair = line.open()?;
    let before = lb.status()?;
    let mut flood = Flood::new([UNUSED, topology.mac(TENANT_NIC)?], sources(128..250), ECHO);
    let port = RawPort::open(&topology.client().netns, "eth0")?;

    flood.send(&port, DENIED)?;

    poll::until("the end of the flood", LIMIT, || {
        let verdicts = lb.status()?.verdicts.nic;
        Ok((verdicts.total - before.verdicts.nic.total >= DENIED).then_some(()))
    })?;
    let after = lb.status()?;
    assert_eq!(lb.dropped("denied")?, DENIED);
    assert_eq!(after.flows, before.flows);
    let [then, now] = [&before, &after].map(|status| status.networks[1].half_open.taken);
    assert_eq!(now, then);
    pair.talk()?;
    line.open()?.talk()
}

/// A tenant that has all flows that it may have takes nothing from another one.
#[privileged_test]
fn a_tenant_at_its_budget_harms_no_other() -> Result<()> {
    let connections = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 10_000,
        None => 2000,
    };
    let trunk = Trunk::build()?;
    let lb = Lb::start(&trunk, &budget_config())?;
    let [a, b] = &trunk.tenants;
    let node = &trunk.nodes[0];
    let of_a = Line::new(a.client(), ECHO, node, a.ports.echo)?;
    let of_b = Line::new(b.client(), ECHO, node, b.ports.echo)?;
    let held = of_b.open_many(BUDGET)?;
    of_b.is_refused()?;

    let done = AtomicBool::new(false);
    let refused = thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let opened = (0..connections).try_for_each(|number| {
                let opened = of_a.open().map(drop);
                opened.with_context(|| format!("connection {number} of {connections}"))
            });
            done.store(true, Ordering::Release);
            opened
        });
        let mut refused = 0_u64;
        let tried = (|| -> Result<()> {
            while !done.load(Ordering::Acquire) {
                of_b.is_refused()?;
                refused += 1;
            }
            Ok(())
        })();
        let opened = opening.join().expect("the connections do not panic");
        opened.and(tried).map(|()| refused)
    })?;

    ensure!(refused > 0, "the second tenant did not even try");
    assert_eq!(lb.refused("budget_spent")?, refused + 1);
    held.iter().try_for_each(Pair::talk)?;
    let flows = lb
        .status()?
        .networks
        .into_iter()
        .map(|network| network.flows);
    let flows: Vec<u64> = flows.collect();
    assert_eq!(flows.last(), Some(&u64::try_from(BUDGET)?), "{flows:?}");
    Ok(())
}

/// Makes one connection after the other until `done`; how many, and none may fail. The flood's flows are
/// never in full use.
fn new_connections(line: &Line<'_>, lb: &Lb<'_>, done: &AtomicBool) -> Result<u64> {
    let mut made = 0;
    while !done.load(Ordering::Acquire) {
        line.open()
            .with_context(|| format!("new connection {made}"))?;
        made += 1;
        if made % 16 == 0 {
            // Counted as they come and go; a walk over the table would meet some flows twice.
            let network = &lb.status()?.networks[1];
            let most = u64::try_from(HELD)? + SLACK;
            ensure!(network.flows <= most, "{network:?}");
        }
        thread::sleep(client::BETWEEN);
    }
    Ok(made)
}

pub(super) fn sources(hosts: std::ops::Range<u8>) -> Vec<Ipv4Addr> {
    let address = |host| Ipv4Addr::new(192, 168, 203, host);
    hosts.map(address).collect()
}

/// The lab with one node behind the echo services, and a budget for the second tenant.
fn budget_config() -> Config {
    Config::read(LAB_CONFIG)
        .network("tenant-b", |tenant| tenant.set("max_flows", BUDGET))
        .mgmt_pool("echo-a", ["10.32.96.105:30700"])
        .mgmt_pool("echo-b", ["10.32.96.105:30701"])
}
