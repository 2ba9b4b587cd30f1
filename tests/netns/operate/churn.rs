//! Reloads without end: FEATURES D2, RELIABILITY 31; and what a file and a disk can do beside them.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::memory,
    poll,
    product::{
        config::Keys,
        lb::{Lb, start_fails},
    },
    topology::{ECHO, Topology},
    traffic::client,
};
use nix::sys::signal::Signal;

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, alive, connect, wait_for},
};

const IDLE: usize = 500;
/// New connections a second.
const RATE: u32 = 200;

/// How many reloads, in what time they are asked for, and how long they may take: beside other tests a disk
/// that each of them writes to may be slow.
fn reloads() -> (u32, Duration, Duration) {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => (1000, Duration::from_secs(60), Duration::from_secs(120)),
        None => (100, Duration::from_secs(6), Duration::from_secs(40)),
    }
}

/// D2: a thousand reloads in a minute, each of which changes something, beside idle flows and new ones:
/// no reset, no failure, one process, and its memory stays.
#[privileged_test]
fn d2_reloads_cost_no_connection() -> Result<()> {
    let topology = Topology::poc()?;
    for node in &topology.nodes {
        node.netns.keep_flows_on_a_cpu("eth0")?;
    }
    let site = Site::new(&topology, 4)?;
    let (count, time, bound) = reloads();
    let config = |round: u32| {
        let weighed = |pool: Keys| pool.set("backends.0.weight", 1 + round % 4);
        site.http("").pool("echo-a", weighed)
    };
    let mut lb = Lb::start(&topology, &config(0))?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    let netns = &topology.client().netns;
    let idle = connect(&topology, IDLE)?;
    let pid = lb.process().id();
    let warm = 10;
    let mut before = 0;
    let (stop, opened) = (AtomicBool::new(false), AtomicU64::new(0));
    let started = Instant::now();
    thread::scope(|scope| -> Result<()> {
        let load = scope.spawn(|| {
            netns.inside(|| -> Result<()> {
                let pause = Duration::from_secs(1) / RATE;
                let begun = Instant::now();
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    client::who(None, ECHO).with_context(|| format!("connection {number}"))?;
                    number += 1;
                    opened.store(number.into(), Ordering::Relaxed);
                    thread::sleep((pause * number).saturating_sub(begun.elapsed()));
                }
                Ok(())
            })?
        });
        let run = || -> Result<()> {
            for round in 1..=count {
                lb.reload(&config(round))
                    .with_context(|| format!("reload {round}"))?;
                if round == warm {
                    before = memory::now(pid)?;
                }
                ensure!(!load.is_finished(), "a connection has failed");
                thread::sleep((time / count * round).saturating_sub(started.elapsed()));
            }
            Ok(())
        };
        let mut run = run;
        let result = run();
        stop.store(true, Ordering::Relaxed);
        let load = load
            .join()
            .map_err(|_| anyhow::anyhow!("the load panicked"))?;
        load.and(result)
    })?;
    let took = started.elapsed();
    let after = memory::now(pid)?;
    let opened = opened.load(Ordering::Relaxed);
    println!(
        "{count} reloads in {took:?}, {opened} connections beside them, {before} -> {after} KiB"
    );
    idle.iter().try_for_each(alive)?;
    assert_eq!(lb.process().id(), pid);
    assert_eq!(processes(topology.run())?, 1);
    ensure!(
        after < before + before / 10 + 1024,
        "{before} KiB became {after} KiB"
    );
    ensure!(took < bound, "{count} reloads took {took:?}");
    Ok(())
}

/// A pool all of whose backends are others now: they are asked before the old ones go, so that no
/// connection is refused meanwhile.
#[privileged_test]
fn d2_other_backends_take_over_without_a_gap() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let both = site.http("min_up: 60%");
    let only = |node: usize| {
        let other = 1 - node;
        both.clone()
            .pool("echo-a", |pool| pool.without("backends", other))
    };
    let lb = Lb::start(&topology, &only(0))?;
    wait_for(&lb, &["up"], LIMIT)?;
    let idle = connect(&topology, 20)?;
    let netns = &topology.client().netns;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let load = scope.spawn(|| {
            netns.inside(|| -> Result<u64> {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    client::who(None, ECHO).with_context(|| format!("connection {number}"))?;
                    number += 1;
                }
                Ok(number)
            })?
        });
        let turns = || -> Result<()> {
            for round in 1..=6 {
                lb.reload(&only(round % 2))
                    .with_context(|| format!("reload {round}"))?;
                wait_for(&lb, &["up"], LIMIT)?;
                lb.reload(&both)?;
                lb.reload(&only(round % 2))?;
            }
            Ok(())
        };
        let result = turns();
        stop.store(true, Ordering::Relaxed);
        let load = load
            .join()
            .map_err(|_| anyhow::anyhow!("the load panicked"))?;
        println!("{} connections", load?);
        result
    })?;
    idle.iter().try_for_each(alive)
}

/// Processes of `lb run` for this instance.
fn processes(instance: &str) -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir("/proc")? {
        let line = fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let has = |word: &str| words.contains(&word.as_bytes());
        found += usize::from(has("run") && has("--instance") && has(instance));
    }
    Ok(found)
}

/// A file that changes is applied by itself where that is wanted, when it has come to rest; a signal
/// does it everywhere.
#[privileged_test]
fn a_watched_file_and_a_hangup_reload() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = |weight: u32, watch: bool| {
        let weighed = |pool: Keys| pool.set("backends.0.weight", weight);
        site.http("").pool("echo-a", weighed).set("watch", watch)
    };
    let mut lb = Lb::start(&topology, &config(1, true))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let weigh = |lb: &Lb<'_>, weight: f64| {
        poll::until("the weight", LIMIT, || {
            Ok((lb.health()?[0].effective_weight == weight).then_some(()))
        })
    };
    lb.write(&config(2, true))?;
    weigh(&lb, 2.0)?;
    // A file that is written byte by byte is waited for; a broken one changes nothing.
    let next = config(3, true);
    for end in (0..next.len()).step_by(next.len() / 8) {
        fs::write(lb.file(), &next[..end])?;
        thread::sleep(Duration::from_millis(100));
        assert_eq!(lb.health()?[0].effective_weight, 2.0);
    }
    fs::write(lb.file(), next.as_bytes())?;
    weigh(&lb, 3.0)?;
    lb.write("version: [")?;
    poll::until("it is refused", LIMIT, || {
        Ok(lb
            .tell(&["status"])?
            .done()?
            .contains("stale")
            .then_some(()))
    })?;
    assert_eq!(lb.health()?[0].effective_weight, 3.0);

    lb.write(&config(4, false))?;
    weigh(&lb, 4.0)?;
    lb.write(&config(5, false))?;
    thread::sleep(Duration::from_secs(3));
    assert_eq!(lb.health()?[0].effective_weight, 4.0, "no file is watched");
    lb.process().signal(Signal::SIGHUP)?;
    weigh(&lb, 5.0)
}

/// Without room on the disk a reload is refused before it changes anything, and all goes on.
#[privileged_test]
fn a_full_disk_refuses_a_reload_and_nothing_else() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let folder = format!("/var/lib/lb/{}", topology.run());
    fs::create_dir_all(&folder)?;
    let disk = Disk::mount(&folder)?;
    let mut lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let before = lb.maps()?;
    let room = format!("{folder}/room");
    let filled = fs::write(&room, vec![1; 4 << 20]);
    ensure!(filled.is_err(), "the disk is not full");

    lb.write(&site.http("slow_start: 1s"))?;
    let said = lb.tell(&["reload"])?;
    assert_eq!(said.code, Some(1), "{said:?}");
    ensure!(said.stderr.contains("nothing is changed"), "{said:?}");
    let said = lb.tell(&["backend", "drain", topology.nodes[0].name])?;
    ensure!(
        said.code != Some(0) && said.stderr.contains("nothing is changed"),
        "{said:?}"
    );
    assert_eq!(lb.maps()?, before);
    assert_eq!(site.who(40)?.len(), 2);
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("stale"), "{status}");
    fs::remove_file(&room)?;
    lb.tell(&["reload"])?.done()?;
    lb.process().stop()?;
    drop(disk);
    lb.down()
}

/// Without room on the disk a start is refused before it changes anything, and what ran goes on.
#[privileged_test]
fn a_full_disk_refuses_a_start_that_would_change_something() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let folder = format!("/var/lib/lb/{}", topology.run());
    fs::create_dir_all(&folder)?;
    let disk = Disk::mount(&folder)?;
    let config = site.http("");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let idle = connect(&topology, 10)?;
    lb.process().stop()?;
    let before = lb.maps()?;
    let room = format!("{folder}/room");
    ensure!(
        fs::write(&room, vec![1; 4 << 20]).is_err(),
        "the disk is not full"
    );

    let other = config.clone().service("echo-a", |service| {
        service.set("listen.0", "192.168.203.111:7000/tcp")
    });
    let failure = start_fails(&topology, topology.run(), &other)?;

    assert_eq!(failure.code, Some(1), "{failure:?}");
    ensure!(
        failure.message().contains("nothing is changed"),
        "{failure:?}"
    );
    assert_eq!(lb.maps()?, before);
    idle.iter().try_for_each(alive)?;
    fs::remove_file(&room)?;
    lb.restart(&config)?;
    idle.iter().try_for_each(alive)?;
    lb.process().stop()?;
    drop(disk);
    lb.down()
}

/// A reload to other backends asks them first. If it is refused after that, those of before are asked
/// again.
#[privileged_test]
fn after_a_refused_reload_the_old_backends_are_checked() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let folder = format!("/var/lib/lb/{}", topology.run());
    fs::create_dir_all(&folder)?;
    let disk = Disk::mount(&folder)?;
    let config = site.http("");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead"], LIMIT)?;
    let room = format!("{folder}/room");
    ensure!(
        fs::write(&room, vec![1; 4 << 20]).is_err(),
        "the disk is not full"
    );

    // In another pool they are other backends.
    let mut pool = Keys::default();
    let moved = config
        .pool("echo-a", |echo| {
            pool = echo.clone();
            echo
        })
        .without("pools", "echo-a")
        .pool("other", |_| pool)
        .service("echo-a", |service| service.pool("other"));
    lb.write(&moved)?;
    let said = lb.tell(&["reload"])?;
    assert_eq!(said.code, Some(1), "{said:?}");
    ensure!(said.stderr.contains("nothing is changed"), "{said:?}");
    let health = lb.health()?;
    assert_eq!(health[1].verdict.as_str(), "dead", "it is known still");
    site.health[0].refuse();
    wait_for(&lb, &["dead", "dead"], LIMIT)?;
    fs::remove_file(&room)?;
    lb.process().stop()?;
    drop(disk);
    lb.down()
}

/// A small file system, until it is dropped.
pub(crate) struct Disk(String);

impl Disk {
    pub(crate) fn mount(at: &str) -> Result<Self> {
        use nix::mount::{MsFlags, mount};
        mount(
            Some("lb-disk"),
            at,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("size=256k"),
        )?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        use nix::mount::{MntFlags, umount2};
        if let Err(error) = umount2(self.0.as_str(), MntFlags::MNT_DETACH) {
            lb_tests::process::complain(format_args!("{}: {error}", self.0));
        }
    }
}
