//! A change is a map update: FEATURES D1, D3, RELIABILITY 31.

use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{config::Keys, lb::Lb},
    topology::{ECHO, ECHO_NODE_PORT, SNAT, Topology},
    traffic::conn_pair::{Line, Pair, wait_for_reset},
};
use serde_json::json;

use crate::flows::life::{LIMIT, config, config_of, ensure_all_ids_are_free, line};

/// Nodes of a pool of two.
const TWO: [Ipv4Addr; 2] = [
    Ipv4Addr::new(10, 32, 96, 105),
    Ipv4Addr::new(10, 32, 96, 106),
];

/// D1: what is wrong with a file is said, and nothing is changed; a plan lists what a reload then does.
#[privileged_test]
fn d1_a_bad_file_changes_nothing_and_a_plan_says_what_a_good_one_does() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    let before = lb.maps()?;

    let bad = config().service("echo-a", |service| service.pool("echo-z"));
    lb.write(&bad.replace("version: 1", "version: 1\nextra: 3"))?;
    let file = lb.file();
    let file = file.to_str().context("a path")?;
    for command in [&["plan", file][..], &["reload"], &["reload", file]] {
        let said = lb.tell(command)?;
        assert_eq!(said.code, Some(2), "{command:?}: {said:?}");
        for problem in [":2: extra", "echo-z"] {
            ensure!(
                said.stderr.contains(problem),
                "{problem} is not in {said:?}"
            );
        }
    }
    assert_eq!(lb.maps()?, before);
    pair.talk()?;

    lb.write(&config_of(&TWO))?;
    let plan = lb.tell(&["plan", "--operations", file])?;
    assert_eq!(plan.code, Some(3), "something changes: {plan:?}");
    let plan = plan.stdout;
    for line in [
        "pool echo-a: backend 10.32.96.106:30700: added",
        "pool dns-a: backend 10.32.96.106:30053: added",
        "set backend echo-a/10.32.96.106:30700@mgmt/10.32.96.106: 10.32.96.106:30700",
        "set pool echo-a: 10.32.96.105:30700 50%, 10.32.96.106:30700 50%",
        "set pool dns-a: 10.32.96.105:30053 50%, 10.32.96.106:30053 50%",
    ] {
        ensure!(plan.contains(line), "{line} is not in {plan}");
    }
    assert_eq!(lb.maps()?, before, "a plan changes nothing");
    lb.tell(&["reload"])?.done()?;
    let said = lb.tell(&["plan", file])?.done()?;
    ensure!(said.contains("nothing changes"), "{said}");
    assert_ne!(lb.maps()?, before);
    pair.talk()
}

/// D3: what is not confirmed is gone again, and with it what it had let in; what is confirmed stays.
#[privileged_test]
fn d3_a_reload_that_nobody_confirms_is_taken_back() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    let before = lb.maps()?;
    let to = SocketAddrV4::new(Ipv4Addr::new(192, 168, 203, 111), ECHO.port());
    let other = config().service("echo-a", |service| {
        service.set("listen.0", format!("{to}/tcp"))
    });

    lb.write(&other)?;
    let reloaded = Instant::now();
    lb.tell(&["reload", "--confirm", "3s"])?.done()?;
    let new = line.open_at(to)?;
    wait_for_reset(&pair.client, LIMIT).context("the VIP is gone")?;
    wait_for_reset(&new.client, LIMIT).context("taken back")?;
    let took = reloaded.elapsed();
    ensure!(took >= Duration::from_secs(3), "already after {took:?}");
    ensure!(took < Duration::from_secs(6), "only after {took:?}");
    poll::until("the maps of before", LIMIT, || {
        Ok((lb.maps()? == before).then_some(()))
    })?;
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("not confirmed"), "{status}");
    let pair = line.open()?;

    lb.tell(&["reload", "--confirm", "3s"])?.done()?;
    lb.tell(&["confirm"])?.done()?;
    wait_for_reset(&pair.client, LIMIT)?;
    let new = line.open_at(to)?;
    let said = lb.tell(&["confirm"])?;
    ensure!(
        said.code == Some(2) && said.stderr.contains("nothing"),
        "{said:?}"
    );
    std::thread::sleep(Duration::from_secs(4));
    new.talk()
}

/// D3: also by the process after one that was killed before the time was over.
#[privileged_test]
fn d3_a_crash_confirms_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    let before = lb.maps()?;
    let more = config_of(&TWO);
    lb.write(&more)?;
    lb.tell(&["reload", "--confirm", "2s"])?.done()?;
    ensure!(lb.maps()? != before);
    lb.kill()?;
    std::thread::sleep(Duration::from_secs(2));
    lb.restart(&more)?;
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("not confirmed"), "{status}");
    assert_eq!(tables(lb.maps()?), tables(before));
    pair.talk()
}

/// Which backends get new flows, of all that is in the maps.
fn tables(maps: BTreeSet<String>) -> Vec<String> {
    let tables = maps.into_iter().filter(|entry| entry.starts_with("pool "));
    tables.collect()
}

/// D3: a start while a reload waits to be confirmed confirms nothing, whatever has become of the file
/// meanwhile.
#[privileged_test]
fn d3_a_file_that_is_broken_meanwhile_confirms_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    let before = lb.maps()?;
    let more = config_of(&TWO);
    lb.write(&more)?;
    lb.tell(&["reload", "--confirm", "8s"])?.done()?;
    let after = lb.maps()?;
    ensure!(after != before);
    lb.kill()?;
    lb.restart("version: [")?;
    assert_eq!(lb.maps()?, after, "it goes on");
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("stale"), "{status}");
    let before = tables(before);
    poll::until("what was before", 2 * LIMIT, || {
        Ok((tables(lb.maps()?) == before).then_some(()))
    })?;
    pair.talk()?;

    // Also by a process that starts when the time is over.
    lb.write(&more)?;
    lb.tell(&["reload", "--confirm", "2s"])?.done()?;
    lb.kill()?;
    std::thread::sleep(Duration::from_secs(2));
    lb.restart("version: [")?;
    assert_eq!(tables(lb.maps()?), before);
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("not confirmed"), "{status}");
    pair.talk()
}

/// D3: a start with another file than the one that waits to be confirmed applies it, for good.
#[privileged_test]
fn d3_another_file_at_a_start_is_not_taken_back() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    lb.write(&config_of(&TWO))?;
    lb.tell(&["reload", "--confirm", "6s"])?.done()?;
    lb.kill()?;
    lb.restart(&config_of(&[TWO[0], Ipv4Addr::new(10, 32, 96, 107)]))?;
    lb.process()
        .wait_for_stderr("nothing waits any more", LIMIT)?;
    let third = tables(lb.maps()?);
    let said = lb.tell(&["confirm"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(tables(lb.maps()?), third);
    pair.talk()
}

/// A reload that was to be confirmed and is refused leaves nothing to be confirmed, now or at the next
/// start.
#[privileged_test]
fn d3_a_refused_reload_is_not_taken_back() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config();
    let mut lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let pair = line.open()?;
    // The host has no such interface.
    let tenant = |tenant: Keys| tenant.nic("tenant", "none0", "192.168.203.0/24");
    let fewer = config
        .without("networks", "tenant-a")
        .network("tenant-b", tenant)
        .service("echo-a", |service| service.on("tenant-b"))
        .service("dns-a", |service| service.on("tenant-b"));
    lb.write(&fewer)?;
    let said = lb.tell(&["reload", "--confirm", "1s"])?;
    ensure!(
        said.code == Some(1) && said.stderr.contains("none0"),
        "{said:?}"
    );
    std::thread::sleep(Duration::from_secs(2));
    let said = lb.tell(&["confirm"])?;
    ensure!(said.code == Some(2), "{said:?}");
    let more = config_of(&TWO);
    lb.reload(&more)?;
    let before = lb.maps()?;
    lb.kill()?;
    lb.restart(&more)?;
    assert_eq!(lb.maps()?, before);
    let status = lb.tell(&["status"])?.done()?;
    ensure!(!status.contains("confirmed"), "{status}");
    pair.talk()
}

/// A service that is taken out of the file ends its connections at once, and loudly; so does a source
/// that is not allowed any more. Others do not notice.
#[privileged_test]
fn a_service_or_a_source_that_is_removed_ends_its_flows() -> Result<()> {
    let topology = Topology::poc()?;
    let allow = |who: &str| config().service("echo-a", |service| service.set("allow", [who]));
    let both = allow("192.168.203.0/24");
    let [one, other] = [0, 1].map(|index| &topology.clients[index]);
    let lb = Lb::start(&topology, &both)?;
    let node = &topology.nodes[0];
    let line = Line::new(one, ECHO, node, ECHO_NODE_PORT)?;
    let pairs = line.open_many(20)?;
    let theirs = other
        .netns
        .inside(|| lb_tests::traffic::client::open(None, ECHO))??;

    let said = lb.reload(&allow(&format!("{}/32", other.address)))?;
    ensure!(said.contains("does not allow any more"), "{said}");
    for pair in &pairs {
        pair.wait_for_resets(Duration::from_secs(3))?;
    }
    refused_or_silent(&line)?;
    ensure!(still_there(&theirs)?, "the other client's connection ended");

    lb.reload(&both.without("services", "echo-a"))?;
    wait_for_reset(&theirs, Duration::from_secs(3))?;
    drop(pairs);
    ensure_all_ids_are_free(&topology, &lb)
}

fn refused_or_silent(line: &Line<'_>) -> Result<()> {
    ensure!(line.open().is_err(), "it is let in");
    Ok(())
}

/// Whether a connection has not ended.
fn still_there(end: &std::net::TcpStream) -> Result<bool> {
    use std::io::{ErrorKind, Read as _};
    end.set_read_timeout(Some(Duration::from_millis(300)))?;
    match (&mut { end }).read(&mut [0]) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// RELIABILITY 31, and what becomes of a file in other ways: forwarding and the last configuration
/// stay, and status and exit code say so.
#[privileged_test]
fn reliability_31_a_file_that_cannot_be_used_changes_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config();
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let pair = line.open()?;
    let before = lb.maps()?;
    let half = &config[..config.len() / 2];
    let twice = config.clone().tcp_service_to("dns-b", ECHO, "dns-a");
    let backend_twice = config.clone().pool("echo-a", |pool| {
        pool.push("backends", SocketAddrV4::new(TWO[0], ECHO_NODE_PORT))
    });
    let overlap = config.clone().network("mgmt", |mgmt| {
        let ports = json!({ "address": SNAT, "ports": "2500-3500" });
        mgmt.snat_ports(2000, 3000).push("snat", ports)
    });
    for (what, text) in [
        ("half a file", half),
        ("no YAML", "version: [1"),
        ("an unknown key", &config.replace("pools:", "puls:")),
        ("a VIP twice", &twice),
        ("a backend twice", &backend_twice),
        ("ports that overlap", &overlap),
    ] {
        lb.write(text)?;
        let said = lb.tell(&["reload"])?;
        assert_eq!(said.code, Some(2), "{what}: {said:?}");
        ensure!(
            said.stderr.contains(".yaml:"),
            "{what}: no line in {said:?}"
        );
        stays(&lb, &line, &pair, &before).context(what)?;
    }
    fs::remove_file(lb.file())?;
    let said = lb.tell(&["reload"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    stays(&lb, &line, &pair, &before).context("no file")?;
    lb.write(&config)?;
    lb.tell(&["reload"])?.done()?;
    let status = lb.tell(&["status"])?.done()?;
    ensure!(!status.contains("stale"), "{status}");
    Ok(())
}

/// What was applied goes on, and status says that the file is not it.
fn stays(lb: &Lb<'_>, line: &Line<'_>, pair: &Pair, before: &BTreeSet<String>) -> Result<()> {
    assert_eq!(&lb.maps()?, before);
    pair.talk()?;
    line.open()?;
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("stale"), "{status}");
    Ok(())
}
