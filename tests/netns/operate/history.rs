//! The history of an instance: FEATURES G9. Its file is read here as any program would read it.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::query::Event,
    poll,
    product::{lb::Lb, order::Said},
    topology::Topology,
};
use serde_json::{Value, json};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, wait_for},
};

/// The file of events.
fn file(topology: &Topology) -> PathBuf {
    PathBuf::from("/var/lib/lb")
        .join(topology.run())
        .join("events.jsonl")
}

/// The numbers in the file, each line of which is an object.
fn numbers_in_file(topology: &Topology) -> Result<Vec<u64>> {
    let text = fs::read_to_string(file(topology))?;
    let lines = text.lines().map(|line| {
        let event: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        event["number"].as_u64().with_context(|| line.to_owned())
    });
    lines.collect()
}

/// Waits until the file has what `lb events` prints.
fn ensure_all_are_in_the_file(topology: &Topology, lb: &Lb<'_>) -> Result<Vec<Event>> {
    let events = lb.events()?;
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    poll::until("the events in the file", LIMIT, || {
        let found = numbers_in_file(topology)?;
        Ok((found == numbers).then_some(()))
    })?;
    Ok(events)
}

fn of_process(events: &[Event]) -> Vec<&str> {
    let words = events.iter().filter(|event| event.kind == "process");
    let words = words.map(|event| event.words.split(" (").next().unwrap_or_default());
    words.collect()
}

/// G9: events are there after a kill that has torn a line, a take-over and a stop, also while no process runs. Their
/// numbers have no gap, and the history says where each process began.
#[privileged_test]
fn g9_events_go_on_over_a_kill_a_take_over_and_a_stop() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let name = topology.nodes[1].name;
    lb.tell(&["backend", "drain", name])?.done()?;
    let known = ensure_all_are_in_the_file(&topology, &lb)?.len();
    lb.kill()?;
    let mut torn = OpenOptions::new().append(true).open(file(&topology))?;
    torn.write_all(br#"{"time":"2026-11-27T01:0"#)?;
    drop(torn);

    let Said { code, stderr, .. } = lb.tell(&["events"])?;
    ensure!(
        code == Some(0) && stderr.contains("is not running"),
        "{stderr}"
    );
    assert_eq!(lb.events()?.len(), known);
    lb.restart(&config)?;
    lb.tell(&["backend", "enable", name])?.done()?;
    let before = lb.take_over(&config)?;
    lb.tell(&["reload"])?.done()?;
    lb.process().stop()?;
    drop(before);
    lb.restart(&config)?;

    let events = ensure_all_are_in_the_file(&topology, &lb)?;
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    let last = u64::try_from(events.len())?;
    assert_eq!(numbers, (1..=last).collect::<Vec<_>>());
    assert_eq!(
        of_process(&events),
        [
            "started",
            "started; the process before has ended without a stop",
            "gives way to a new process",
            "started, and took over",
            "stopped by a signal",
            "started"
        ]
    );
    let kinds = ["override", "reload"].map(|kind| {
        let of_kind = events.iter().filter(|event| event.kind == kind);
        of_kind.count()
    });
    assert_eq!(kinds, [2, 1]);
    lb.down()?;
    ensure!(!file(&topology).exists(), "`lb down` leaves the events");
    Ok(())
}

/// G9: what flaps does not push out what operators have ordered, and the file is bounded.
#[privileged_test]
fn g9_what_flaps_pushes_no_order_out() -> Result<()> {
    const FLAPS: u64 = 30_000;
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let mut text = String::new();
    for number in 1..=FLAPS {
        let (kind, by) = match number {
            1 => ("override", json!("uid 0, process 7")),
            _ => ("health", Value::Null),
        };
        let event = json!({
            "number": number, "time_ms": 1_790_000_000_000_u64, "kind": kind, "severity": "notice",
            "object": "backend echo-a/n1", "words": "drains: no new flows", "by": by
        });
        text.push_str(&format!("{event}\n"));
    }
    fs::create_dir_all(file(&topology).parent().context("a folder")?)?;
    fs::write(file(&topology), text)?;

    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up"], LIMIT)?;
    let events = ensure_all_are_in_the_file(&topology, &lb)?;
    let (first, later) = events.split_first().context("an event")?;
    assert_eq!((first.number, first.kind.as_str()), (1, "override"));
    ensure!((7000..10_000).contains(&later.len()), "{}", later.len());
    let started = later.iter().find(|event| event.kind == "process");
    assert_eq!(started.map(|event| event.number), Some(FLAPS + 1));
    lb.down()
}

/// G9: what an operator orders is an event and a line of the log, with the user and the process.
#[privileged_test]
fn g9_orders_have_the_user_in_events_and_log() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let mut lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let name = topology.nodes[1].name;
    let file = lb.file();
    let file = file.to_str().context("a path")?;
    for words in [
        &["backend", "drain", name][..],
        &["node", "enable", name],
        &["flows", "--kill", "--service", "echo-a"],
        &["reload", file, "--confirm", "30s"],
        &["confirm"],
    ] {
        lb.tell(words)?.done()?;
    }
    let ordered = lb.events()?.into_iter().filter(|event| event.by.is_some());
    let ordered: Vec<Event> = ordered.collect();
    let kinds: Vec<&str> = ordered.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["override", "override", "kill", "reload", "confirm"]);
    let log = lb.process().stderr();
    for Event {
        kind,
        object,
        words,
        by,
        ..
    } in ordered
    {
        let by = by.unwrap_or_default();
        ensure!(by.starts_with("uid 0, process "), "{by}");
        let lines = log.lines();
        let lines = lines.filter(|line| line.contains(&format!("{kind}: {object}: {words}")));
        let lines: Vec<&str> = lines.filter(|line| line.contains(&by)).collect();
        assert_eq!(lines.len(), 1, "{kind} {object} {words} {by}: {log}");
    }
    Ok(())
}

/// A name that a file has is escaped wherever it is shown.
#[privileged_test]
fn no_control_byte_of_a_name_reaches_terminal_or_file() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let mut lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up"], LIMIT)?;
    let hostile = topology.write("a\u{1b}[2J\n<script>\"].yaml", "version: [")?;
    let hostile = hostile.to_str().context("a path")?;
    assert_eq!(lb.tell(&["reload", hostile])?.code, Some(2));

    let printed = lb.tell(&["events"])?.done()?;
    ensure!(
        printed.contains(r#"a\u{1b}[2J\n<script>"].yaml"#),
        "{printed}"
    );
    ensure_all_are_in_the_file(&topology, &lb)?;
    let kept = fs::read_to_string(file(&topology))?;
    for text in [printed, kept, lb.process().stderr()] {
        let controls = text.chars().filter(|found| found.is_control());
        let controls: Vec<char> = controls.filter(|found| *found != '\n').collect();
        ensure!(controls.is_empty(), "{controls:?} in {text}");
        ensure!(!text.contains("\n<script>"), "{text}");
    }
    lb.down()
}

/// G9: each line of a log in JSON is an object, and the journal gets priorities.
#[privileged_test]
fn g9_a_log_is_json_or_what_the_journal_reads() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let mut lb = Lb::start_with(&topology, &site.http(""), &["--log-format", "json"])?;
    wait_for(&lb, &["up"], LIMIT)?;
    site.health[0].refuse();
    wait_for(&lb, &["dead"], LIMIT)?;
    lb.process().wait_for_stderr("dead", LIMIT)?;
    let log = lb.process().stderr();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect::<Result<_>>()?;
    let dead = lines
        .iter()
        .find(|line| line["fields"]["backend"].is_string());
    let dead = dead.with_context(|| log.clone())?;
    let backend = dead["fields"]["backend"].as_str().unwrap_or_default();
    let begin = format!("echo-a/{}@", topology.nodes[0].name);
    ensure!(backend.starts_with(&begin), "{backend}");
    assert_eq!(dead["subject"], "control");
    lb.process().stop()?;

    lb.restart_with(&site.http(""), &["--log-format", "journal"])?;
    wait_for(&lb, &["dead"], LIMIT)?;
    let log = lb.process().stderr();
    let is_ranked = |line: &str| {
        ["<3>", "<4>", "<6>"]
            .iter()
            .any(|rank| line.starts_with(rank))
    };
    ensure!(!log.is_empty() && log.lines().all(is_ranked), "{log}");
    lb.down()
}
