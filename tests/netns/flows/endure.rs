//! What is worth minutes: silence and kills, much of them in the long tier (`LB_TEST_LONG`) and a
//! little in every run.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::raw::RawPort,
    product::{config::Config, lb::Lb},
    seeded_rng::{Dice, SEED},
    topology::{DNS_NODE_PORT, TENANT_NIC, Topology, VIP},
    traffic::{
        conn_pair::{Line, Pair},
        flood::Flood,
    },
};

use crate::flows::life::{LIMIT, config, ensure_all_ids_are_free, line};

/// FEATURES A6: longer than what others allow (60, 240 and 900 s).
const LONG_SILENCE: Duration = Duration::from_secs(1000);
const SHORT_SILENCE: Duration = Duration::from_secs(10);
const SILENT: usize = 500;
const KILLS: u32 = 200;
/// Where the connection goes that outlives all kills.
const KEPT: SocketAddrV4 = SocketAddrV4::new(VIP, 7001);
/// Where no server answers, and how many flows go there each time.
const DARK: SocketAddrV4 = SocketAddrV4::new(VIP, 7002);
const CROWD: u64 = 4000;

/// A6: 500 connections that say nothing, in the long tier for 1000 s in real time, go on as if nothing
/// had been.
#[privileged_test]
fn a6_silent_connections_live_on() -> Result<()> {
    let silence = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => LONG_SILENCE,
        None => SHORT_SILENCE,
    };
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let pairs = line(&topology)?.open_many(SILENT)?;
    thread::sleep(silence);

    let flows = lb.flows()?;
    assert_eq!(flows.len(), SILENT);
    for flow in flows {
        let ends = flow.idle_seconds + flow.expires_in_seconds.unwrap_or_default();
        // 2 h 10 min, in whole seconds each.
        ensure!((7799..=7800).contains(&ends), "{flow:?}");
    }
    pairs.iter().try_for_each(Pair::talk)?;
    drop(pairs);
    ensure_all_ids_are_free(&topology, &lb)
}

/// A control plane that is killed at any moment of its life loses no id: while it starts, while idle
/// connections expire, while their resets go out. And a connection that was there before goes on.
#[privileged_test]
fn no_id_is_lost_by_kills() -> Result<()> {
    let kills = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => KILLS,
        None => 5,
    };
    let mut dice = Dice::from_environment();
    let again = format!("{SEED}={}", dice.seed());
    println!("{again}");
    survive(kills, &mut dice).context(again)
}

fn survive(kills: u32, dice: &mut Dice) -> Result<()> {
    let topology = Topology::poc()?;
    let config = killed_config();
    let mut lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let mut crowd = Crowd::new(&topology)?;
    let kept = line.open_at(KEPT)?;
    lb.kill()?;
    let start = Instant::now();
    lb.restart(&config)?;
    let starting = start.elapsed();
    lb.kill()?;

    let (mut early, done) = (0, AtomicBool::new(false));
    thread::scope(|scope| {
        let talking = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                kept.talk().context("the connection that stays")?;
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let killed = (0..kills).try_for_each(|round| {
            let killed = kill_once(&mut lb, &line, &mut crowd, starting, dice);
            early += u32::from(killed.with_context(|| format!("kill {round}"))?);
            Ok(())
        });
        done.store(true, Ordering::Release);
        let talked: Result<()> = talking.join().expect("the talk does not panic");
        killed.and(talked)
    })?;

    println!("{kills} kills, {early} of them before it was ready; a start took {starting:.1?}");
    lb.restart(&config)?;
    kept.talk().context("the connection that stays")?;
    let flows = lb.status()?.flows;
    assert_eq!(flows.free + flows.live, flows.capacity, "{flows:?}");
    drop(kept);
    ensure_all_ids_are_free(&topology, &lb)
}

/// Two services more: for the connection that stays, with the same backend, and for those that
/// no server answers.
fn killed_config() -> Config {
    config()
        .service("echo-a", |echo| echo.with("idle_timeout: 500ms"))
        .tcp_service_to("kept", KEPT, "echo-a")
        .tcp_service_to("dark", DARK, "dns-a")
        .set("timeouts.half_open", "500ms")
}

/// Starts the control plane on flows that are due, or become so, and kills it at some moment until
/// all of them have ended. Whether that was before it was ready.
fn kill_once(
    lb: &mut Lb<'_>,
    line: &Line<'_>,
    crowd: &mut Crowd,
    starting: Duration,
    dice: &mut Dice,
) -> Result<bool> {
    let mut pairs = line.open_many(10)?;
    // It takes a while to end so many, so that many kills come meanwhile.
    crowd.flood.send(&crowd.port, CROWD)?;
    thread::sleep(dice.up_to(Duration::from_millis(700)));
    lb.begin_restart(&killed_config())?;
    let moment = if dice.coin() {
        dice.up_to(starting)
    } else {
        lb.process().wait_for_stdout("ready", LIMIT)?;
        dice.up_to(Duration::from_millis(700))
    };
    thread::sleep(moment / 2);
    if dice.coin() {
        // These close by themselves, the others are reset.
        pairs.truncate(5);
    }
    thread::sleep(moment / 2);
    lb.kill()?;
    Ok(!lb.process().stdout().contains("ready"))
}

/// Half-open flows that no server answers.
struct Crowd {
    flood: Flood,
    port: RawPort,
}

impl Crowd {
    fn new(topology: &Topology) -> Result<Self> {
        const UNUSED: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);
        let node = &topology.nodes[0].netns;
        node.run("nft add table ip dark")?;
        node.run("nft add chain ip dark in { type filter hook input priority 0 ; }")?;
        node.run(&format!(
            "nft add rule ip dark in tcp dport {DNS_NODE_PORT} drop"
        ))?;
        let sources = (120..250).map(|host| Ipv4Addr::new(192, 168, 203, host));
        let way = [UNUSED, topology.mac(TENANT_NIC)?];
        Ok(Self {
            flood: Flood::new(way, sources.collect(), DARK),
            port: RawPort::open(&topology.client().netns, "eth0")?,
        })
    }
}
