//! A start over the pinned maps of another version: refused in words, or one switch of all programs.
//!
//! The maps of a data plane of this version stand for those of another one, under its name.

use std::{
    fs,
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_common::abi::ABI_VERSION;
use lb_tests::{
    oracle::links::{Monitor, links, pins},
    poll,
    product::lb::{Lb, start_fails, start_fails_with},
    servers::teller::{Teller, ask_on},
    topology::Topology,
    traffic::{
        client,
        conn_pair::{Line, Pair, wait_for_reset},
        hello::named,
    },
};

use crate::{
    flows::life::{LIMIT, send_without_service},
    lifecycle::takeover::{
        DIRECT, LONG, LONG_DIRECT, LONG_PORT, NAME, PORT, SHARED, config, ended_well,
    },
    proxy::bind::hellos,
};

pub(crate) fn ours() -> String {
    format!("v{ABI_VERSION}")
}

fn other() -> String {
    format!("v{}", ABI_VERSION - 1)
}

/// Makes the pinned maps those of another version.
pub(crate) fn age(topology: &Topology) -> Result<()> {
    let root = pins(topology.run());
    fs::rename(root.join(ours()), root.join(other())).context("rename the maps")
}

/// The folders of pins.
pub(crate) fn folders(topology: &Topology) -> Result<Vec<String>> {
    let entries = fs::read_dir(pins(topology.run())).context("list the pins")?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

/// The words of a start that may lose nothing.
fn refusal(topology: &Topology) -> String {
    format!(
        "lb: instance {} runs with pinned state of another version ({}), which this lb ({}) cannot adopt; \
         `lb run --migrate` switches over to new state at once: established flows of the data plane end then, \
         connections that were routed by SNI among them, and all counters begin anew; with --takeover, the \
         process that runs now finishes what it carries for services with `http`",
        topology.run(),
        other(),
        ours()
    )
}

/// What came of connections that are opened one after the other.
#[derive(Debug, Default)]
struct Opened {
    count: usize,
    /// Those that the switch has met after they were open.
    ended: usize,
    /// The longest time until one was open.
    longest: Duration,
}

/// Opens connections until it is stopped; each must open.
fn open(topology: &Topology, to: SocketAddrV4, stop: &AtomicBool) -> Result<Opened> {
    let hello = named(NAME.as_bytes());
    let mut opened = Opened::default();
    topology.client().netns.inside(|| {
        while !stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            let stream = client::open(None, to)
                .with_context(|| format!("connection {} to {to}", opened.count))?;
            opened.longest = opened.longest.max(started.elapsed());
            opened.count += 1;
            let who = ask_on(stream, &[&hello], Duration::ZERO);
            if !matches!(&who, Ok(Some(who)) if who == "node") {
                println!("connection {} to {to} was ended: {who:?}", opened.count);
                opened.ended += 1;
            }
        }
        Ok(opened)
    })?
}

/// Does `work` while connections to these come and go, all of which open; says how it was. At most so many
/// may be ended.
fn beside(
    topology: &Topology,
    to: &[(&str, SocketAddrV4, usize)],
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let loads: Vec<_> = to
            .iter()
            .map(|&(name, to, most)| (name, most, scope.spawn(move || open(topology, to, stop))))
            .collect();
        let worked = work();
        stop.store(true, Ordering::Relaxed);
        for (name, most, load) in loads {
            let opened = load.join().map_err(|_| anyhow!("the load panicked"))??;
            println!("migrate, {name}, 0 did not open: {opened:?}");
            ensure!(
                opened.count > 10 && opened.ended <= most,
                "{name}: {opened:?}"
            );
        }
        worked
    })
}

/// Each end of a connection that the new data plane does not know is reset as soon as it says something;
/// the backend's may have been before, by a new connection that was given the same port.
fn is_forgotten(pair: &Pair) -> Result<()> {
    use std::io::{ErrorKind, Write as _};
    for (end, name) in [(&pair.client, "client"), (&pair.server, "backend")] {
        let mut end = end;
        match end.write_all(b"more") {
            Err(error) if name == "backend" && error.kind() == ErrorKind::ConnectionReset => {
                continue;
            }
            sent => sent.with_context(|| format!("the {name} sends"))?,
        }
        let took = wait_for_reset(end, LIMIT).with_context(|| format!("the {name}"))?;
        ensure!(took < Duration::from_secs(1), "the {name} after {took:?}");
    }
    Ok(())
}

/// What is pinned by another version is left alone, in exact words, until it may be lost; then all links
/// get the new program in their place, and new connections do not notice.
#[privileged_test]
fn another_version_is_switched_over_when_told_to() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology);
    let node = &topology.nodes[0];
    let _teller = Teller::start(&node.netns, SocketAddrV4::new(node.address, PORT), "node")?;
    let line = Line::new(topology.client(), LONG_DIRECT, node, LONG_PORT)?;
    let mut lb = Lb::start(&topology, &config)?;
    let pair = line.open()?;
    send_without_service(&topology, 5)?;
    assert_eq!(lb.dropped("no_service")?, 5);
    lb.process().stop()?;
    age(&topology)?;

    let failure = start_fails(&topology, topology.run(), &config)?;
    assert_eq!(
        (failure.code, failure.message()),
        (Some(1), refusal(&topology).as_str())
    );
    assert_eq!(folders(&topology)?, ["links".to_owned(), other()]);
    pair.talk()?;
    line.open()?.talk()?;
    let status = lb.tell(&["status"])?;
    let unreadable = format!(
        "lb: instance {} runs with pinned state of another version ({}), which this lb ({}) cannot read; ask \
         with the lb that it was started with",
        topology.run(),
        other(),
        ours()
    );
    assert_eq!(
        (status.code, status.stderr.trim()),
        (Some(1), unreadable.as_str())
    );

    let before = links(topology.run())?;
    let monitor = Monitor::start(&topology)?;
    beside(&topology, &[("data plane", DIRECT, 1)], || {
        lb.restart_with(&config, &["--migrate"])?;
        line.open()?.talk()
    })?;
    monitor.ensure_silent()?;
    let said = lb.process().stderr();
    for words in [
        format!("migrating from pinned state {} to {}: ", other(), ours()),
        "established flows of the data plane end with that, and all counters begin anew".to_owned(),
        format!(
            "migrated: all programs run with {}, and {} is removed",
            ours(),
            other()
        ),
    ] {
        ensure!(said.contains(&words), "{words}: {said}");
    }
    assert_eq!(folders(&topology)?, ["links".to_owned(), ours()]);
    let after = links(topology.run())?;
    assert!(before.keys().eq(after.keys()), "{before:?}, {after:?}");
    for (name, before) in &before {
        assert_eq!(before.id, after[name].id, "{name}");
        assert_ne!(before.program, after[name].program, "{name}");
    }
    assert_eq!(lb.dropped("no_service")?, 0, "counters begin anew");
    is_forgotten(&pair)?;
    // From now on it is like any other.
    let pair = line.open()?;
    lb.process().stop()?;
    lb.restart(&config)?;
    pair.talk()
}

/// With a process that runs, it is refused before that one is asked for anything; told to, new connections
/// do not notice.
#[privileged_test]
fn another_version_is_taken_over_and_switched() -> Result<()> {
    let topology = Topology::poc()?;
    // XDP opens the connections that come and go.
    let config = config(&topology)
        .service("shared", |shared| shared.set("sni.late_binding", "always"))
        .service("direct", |direct| direct.set("syn_cookies", "always"));
    let node = &topology.nodes[0];
    node.netns.keep_flows_on_a_cpu("eth0")?;
    let _teller = Teller::start(&node.netns, SocketAddrV4::new(node.address, PORT), "node")?;
    let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
    let line = line.saying(named(NAME.as_bytes()));
    let mut lb = Lb::start(&topology, &config)?;
    let shared = line.open()?;
    let direct = line.open_at(LONG_DIRECT)?;
    age(&topology)?;

    let failure = start_fails_with(&topology, &config, &["--takeover"])?;
    assert_eq!(
        (failure.code, failure.message()),
        (Some(1), refusal(&topology).as_str())
    );
    assert_eq!(folders(&topology)?, ["links".to_owned(), other()]);
    ensure!(lb.process().ended()?.is_none());
    let file = topology.dir().join("plan.yaml");
    fs::write(&file, config.as_bytes())?;
    let plan = lb.tell(&["plan", file.to_str().context("a path")?])?;
    ensure!(
        plan.code == Some(0) && format!("lb: {}", plan.stderr.trim()) == refusal(&topology),
        "{plan:?}"
    );

    let monitor = Monitor::start(&topology)?;
    let mut before = None;
    // Its SYN-ACK has a cookie by a key of before.
    let early = topology
        .client()
        .netns
        .inside(|| client::open(None, SHARED))??;
    let loads = [("data plane", DIRECT, 1), ("shared VIP", SHARED, 1)];
    beside(&topology, &loads, || {
        before = Some(lb.take_over_with(&config, &["--migrate"])?);
        line.open_at(LONG_DIRECT)?.talk()
    })?;
    monitor.ensure_silent()?;
    assert_eq!(folders(&topology)?, ["links".to_owned(), ours()]);
    is_forgotten(&direct)?;
    is_forgotten(&shared)?;
    let reached = ask_on(early, &[&named(NAME.as_bytes())], Duration::ZERO)?;
    assert_eq!(reached.as_deref(), Some("node"));
    line.open()?.talk()?;
    let hellos = hellos(&lb)?;
    assert_eq!(hellos.keys().collect::<Vec<_>>(), ["bound"], "{hellos:?}");
    drop((shared, direct));
    ended_well(&mut before.context("the process before")?)
}

/// A switch that stops in the middle, or before its last step, is finished by the next start, told to or
/// not: there is nothing left that it could save.
#[privileged_test]
fn a_switch_that_was_interrupted_is_finished() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology);
    let node = &topology.nodes[0];
    let line = Line::new(topology.client(), LONG_DIRECT, node, LONG_PORT)?;
    let mut lb = Lb::start(&topology, &config)?;
    lb.process().stop()?;
    age(&topology)?;
    let before = links(topology.run())?;

    // A link without its pin cannot be switched: it is the last cell's, behind that of the first one.
    let root = pins(topology.run());
    let cells = before
        .keys()
        .filter_map(|name| name.strip_prefix("lb_cell-")?.parse::<u32>().ok());
    let cell = format!("lb_cell-{}", cells.max().context("a cell")?);
    let (pin, aside) = (root.join("links").join(cell), root.join("aside"));
    fs::rename(&pin, &aside)?;
    let failure = start_fails_with(&topology, &config, &["--migrate"])?;
    fs::rename(&aside, &pin)?;
    ensure!(
        failure.message().contains("already runs an XDP program")
            && failure.stderr.contains("the next start finishes that"),
        "{failure:?}"
    );
    assert_eq!(folders(&topology)?, ["links".to_owned(), other(), ours()]);
    let between = links(topology.run())?;
    let switched = before
        .iter()
        .filter(|(name, link)| between[*name].program != link.program);
    assert_eq!(switched.count(), 1);
    lb.restart(&config)?;
    is_whole(&topology, &mut lb, &line)?;

    // Only the folder is left.
    let pair = line.open()?;
    lb.process().stop()?;
    fs::create_dir(root.join(other()))?;
    lb.restart(&config)?;
    is_whole(&topology, &mut lb, &line)?;
    pair.talk()
}

/// Says that nothing of the other version is left, and that connections open.
fn is_whole(topology: &Topology, lb: &mut Lb<'_>, line: &Line<'_>) -> Result<()> {
    assert_eq!(folders(topology)?, ["links".to_owned(), ours()]);
    let said = lb.process().stderr();
    ensure!(
        said.contains("was interrupted, and is finished now"),
        "{said}"
    );
    lb.status()?;
    line.open()?.talk()
}

/// Killed at any moment: what had not begun is refused as before, what had is finished.
#[privileged_test]
fn a_switch_may_be_killed() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology);
    let node = &topology.nodes[0];
    let line = Line::new(topology.client(), LONG_DIRECT, node, LONG_PORT)?;
    let mut lb = Lb::start(&topology, &config)?;
    let mut outcomes = [0, 0];
    for words in [
        "migrating from",
        "next hop",
        "took over the running link",
        "took over the running link",
        "took over the running link",
        "migrated",
    ] {
        lb.process().stop()?;
        age(&topology)?;
        lb.begin_restart_with(&config, &["--migrate"])?;
        lb.process().wait_for_stderr(words, LIMIT)?;
        lb.kill()?;
        let found = folders(&topology)?;
        let pair = line
            .open()
            .with_context(|| format!("after {words}, {found:?}"));
        let failure = start_fails_or_runs(&mut lb, &config)?;
        let is_finished = failure.is_none();
        outcomes[usize::from(is_finished)] += 1;
        println!("killed after `{words}`: {found:?}, finished by the next start: {is_finished}");
        match failure {
            // Nothing was lost, so nothing may be.
            Some(said) => {
                ensure!(format!("{said}\n").contains(&refusal(&topology)), "{said}");
                pair?.talk()?;
                lb.restart_with(&config, &["--migrate"])?;
            }
            None => drop(pair),
        }
        assert_eq!(folders(&topology)?, ["links".to_owned(), ours()]);
        line.open()?.talk()?;
    }
    ensure!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
    Ok(())
}

/// Starts again; what it says if it does not get ready.
fn start_fails_or_runs(lb: &mut Lb<'_>, config: &str) -> Result<Option<String>> {
    lb.begin_restart(config)?;
    poll::until("ready, or the end", LIMIT * 3, || {
        if lb.process().stdout().contains("ready") {
            return Ok(Some(None));
        }
        let ended = lb.process().ended()?;
        Ok(ended.map(|_| Some(lb.process().stderr())))
    })
}
