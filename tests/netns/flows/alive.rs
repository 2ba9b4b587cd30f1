//! Connections whose ends live must not be ended, whatever happens to the frames between them.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::lb::Lb,
    topology::{Host, Topology},
    traffic::conn_pair::wait_for_reset,
};
use serde::Deserialize;

use crate::flows::{
    keepalive::kept,
    life::{LIMIT, config, line, wait_for_answers},
};

/// Long enough for all probes of [`kept`], three times.
const SILENCE: Duration = Duration::from_secs(12);

/// The client, or the router that it is behind, is replaced while its connection is idle. Nothing
/// but its MAC is another.
#[privileged_test]
fn a_client_that_has_another_mac_now_is_alive() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &kept())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    wait_for_answers(&lb)?;
    let client = &topology.client().netns;
    client.run("ip link set eth0 address 02:00:5e:aa:bb:cc")?;
    thread::sleep(SILENCE);
    pair.talk()
}

/// The cable of our own NIC is out for a while: that says nothing about the client.
#[privileged_test]
fn a_nic_without_carrier_makes_nobody_dead() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &kept())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    wait_for_answers(&lb)?;
    topology.tenant_lan.ip_batch("link set p-lb down\n")?;
    thread::sleep(SILENCE);
    topology.tenant_lan.ip_batch("link set p-lb up\n")?;
    pair.talk()
}

/// RFC 7323 section 3.2: where timestamps were negotiated, a segment without one is dropped.
#[privileged_test]
fn a_backend_that_insists_on_timestamps_is_alive() -> Result<()> {
    let topology = Topology::poc()?;
    let _lb = Lb::start(&topology, &kept())?;
    let line = line(&topology)?;
    insist_on_timestamps(&topology.nodes[0])?;
    let pair = line.open()?;
    thread::sleep(SILENCE);
    pair.talk()
}

/// As it answers no probe, its connection ends when it is idle for too long: the answers of the client
/// do not keep it for ever.
#[privileged_test]
fn the_idle_time_holds_for_a_backend_that_answers_no_probe() -> Result<()> {
    let topology = Topology::poc()?;
    let words = config().service("echo-a", |service| {
        service.with("idle_timeout: 6s, keepalive: 1s")
    });
    let lb = Lb::start(&topology, &words)?;
    let line = line(&topology)?;
    insist_on_timestamps(&topology.nodes[0])?;
    let pair = line.open()?;
    let elapsed =
        wait_for_reset(&pair.client, 3 * LIMIT).with_context(|| format!("{:?}", lb.flows()))?;
    ensure!(elapsed >= Duration::from_secs(6), "after {elapsed:?}");
    Ok(())
}

fn insist_on_timestamps(host: &Host) -> Result<()> {
    host.netns.run("nft add table ip strict")?;
    let chain =
        "nft add chain ip strict in { type filter hook input priority 0 ; policy accept ; }";
    host.netns.run(chain)?;
    let rule = "tcp flags & (syn|rst) == 0 tcp option timestamp missing counter drop";
    host.netns
        .run(&format!("nft add rule ip strict in {rule}"))
        .map(drop)
}

/// The longest keepalive that is let in for an idle time keeps the connection.
#[privileged_test]
fn the_shortest_idle_time_of_a_keepalive_keeps_the_connection() -> Result<()> {
    let topology = Topology::poc()?;
    let words = config().service("echo-a", |service| {
        service.with("idle_timeout: 5s, keepalive: 1s")
    });
    let _lb = Lb::start(&topology, &words)?;
    let line = line(&topology)?;
    let pair = line.open()?;
    thread::sleep(2 * SILENCE);
    pair.talk()
}

/// A line of the flow log.
#[derive(Debug, Deserialize)]
struct Record {
    event: String,
    duration_ms: Option<u64>,
}

/// The log says when a flow was, also if no process could write it down then.
#[privileged_test]
fn the_flow_log_knows_when_a_flow_was_while_the_control_plane_was_down() -> Result<()> {
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let words = config().set("log.flows", &log);
    let mut lb = Lb::start(&topology, &words)?;
    lb.process().stop()?;
    let line = line(&topology)?;
    let pair = line.open()?;
    pair.client.shutdown(std::net::Shutdown::Both)?;
    pair.server.shutdown(std::net::Shutdown::Both)?;
    let over = SystemTime::now();
    thread::sleep(SILENCE);
    lb.restart(&words)?;
    poll::until("both records", LIMIT, || {
        Ok((read(&log)?.len() >= 2).then_some(()))
    })?;
    let records = read(&log)?;
    let ended = records.iter().find(|record| record.event == "ended");
    let ended = ended.context("the end")?;
    ensure!(
        ended.duration_ms.is_some_and(|ms| ms < 5000),
        "over {:?} ago: {records:#?}",
        over.elapsed()
    );
    Ok(())
}

fn read(log: &Path) -> Result<Vec<Record>> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect()
}
