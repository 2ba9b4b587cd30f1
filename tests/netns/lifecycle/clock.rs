//! The clock of the wall is set: RELIABILITY 33.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{process, product::lb::Lb, topology::Topology};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, alive, connect, wait_for},
};

const CONNECTIONS: u64 = 5;
/// How long checks are counted, and by how many percent their number may change on a busy machine.
const COUNTED: Duration = Duration::from_secs(2);
const SLACK: u64 = 30;
/// How long the operator waits for an answer, at most.
const ANSWER: Duration = Duration::from_secs(1);
const DAY_MS: u64 = 24 * 3600 * 1000;
const MINUTE_MS: u64 = 60_000;

/// RELIABILITY 33: the clock of the wall is set a day ahead and two days back beside flows and checks. Events
/// have the new time; nothing expires, and no backend is checked more or less often.
#[privileged_test]
fn r33_a_clock_that_is_set_changes_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let wall = Wall::new(topology.dir())?;
    let words = wall.words()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let lb = Lb::start_through(&topology, &site.http(""), &words)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let flows = connect(&topology, usize::try_from(CONNECTIONS)?)?;
    let usual = checks(&site);
    let node = topology.nodes[1].name;

    for (set, ahead) in [("+1d", DAY_MS), ("-1d", 2 * DAY_MS), ("+0", DAY_MS)] {
        lb.tell(&["backend", "weight", node, "100"])?.done()?;
        let before = last_event(&lb)?;
        wall.set(set)?;
        lb.tell(&["backend", "enable", node])?.done()?;
        let jumped = last_event(&lb)?.abs_diff(before);
        ensure!(jumped.abs_diff(ahead) < MINUTE_MS, "{set}: {jumped} ms");

        let counted = checks(&site);
        println!("{set}: {counted} checks in {COUNTED:?}, {usual} before");
        let differs = counted.abs_diff(usual) * 100 / usual;
        ensure!(differs <= SLACK, "{set}: {counted} checks, {usual} before");
        assert_eq!(lb.status()?.flows.live, CONNECTIONS, "{set}");
        flows.iter().try_for_each(alive)?;
        assert_eq!(site.who(20)?.len(), 2, "{set}");
        let asked = Instant::now();
        let health = lb.health()?;
        ensure!(asked.elapsed() < ANSWER, "{set}: {:?}", asked.elapsed());
        for one in health {
            assert_eq!((one.verdict.as_str(), one.transitions), ("up", 1), "{set}");
        }
    }
    lb.down()
}

/// How often backends are asked how they are, in [`COUNTED`].
fn checks(site: &Site<'_>) -> u64 {
    let asked = || -> u64 { site.health.iter().map(|node| node.asked()).sum() };
    let before = asked();
    thread::sleep(COUNTED);
    asked() - before
}

/// When the last event was, in milliseconds since 1970.
fn last_event(lb: &Lb<'_>) -> Result<u64> {
    let answer: serde_json::Value = lb.ask_json(&["events"])?;
    let last = answer["events"].as_array().and_then(|events| events.last());
    let time = last.and_then(|event| event["time"].as_str());
    let time = time.with_context(|| format!("no time in {answer}"))?;
    let millis = process::succeed(Command::new("date").args(["-d", time, "+%s%3N"]))?;
    Ok(millis.trim().parse()?)
}

/// The clock of the wall, as a process sees it that is started by [`Self::words`].
pub(crate) struct Wall(PathBuf);

impl Wall {
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let wall = Self(folder.join("wall"));
        wall.set("+0")?;
        Ok(wall)
    }

    /// Sets it, from the real time on.
    pub(crate) fn set(&self, offset: &str) -> Result<()> {
        // Never half of it.
        let beside = self.0.with_extension("new");
        fs::write(&beside, format!("{offset}\n"))?;
        Ok(fs::rename(beside, &self.0)?)
    }

    /// What a program is started by; its other clocks are the real ones.
    pub(crate) fn words(&self) -> Result<[String; 5]> {
        let file = self.0.display();
        Ok([
            "env".to_owned(),
            format!("LD_PRELOAD={}", library()?.display()),
            format!("FAKETIME_TIMESTAMP_FILE={file}"),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ])
    }
}

/// Where distributions have libfaketime for programs with threads.
fn library() -> Result<PathBuf> {
    const NAME: &str = "faketime/libfaketimeMT.so.1";
    let multiarch = fs::read_dir("/usr/lib")?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut folders = multiarch.chain(["/usr/lib", "/usr/lib64"].map(PathBuf::from));
    let found = folders.find(|folder| folder.join(NAME).is_file());
    let folder = found.with_context(|| format!("no {NAME}: install faketime"))?;
    Ok(folder.join(NAME))
}
