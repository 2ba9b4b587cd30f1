//! What is worth minutes: silence and kills, much of them in the long tier (`LB_TEST_LONG`) and a
//! little in every run.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use lb_tests::{lb::Lb, pair::Pair, topology::Topology};
use nix::sys::signal::Signal;

use crate::life::{LIMIT, Words, ensure_all_ids_are_free, line};

/// FEATURES A6: longer than what others allow (60, 240 and 900 s).
const LONG_SILENCE: Duration = Duration::from_secs(1000);
const SHORT_SILENCE: Duration = Duration::from_secs(10);
const SILENT: usize = 500;
const KILLS: u64 = 200;

/// A6: 500 connections that say nothing, in the long tier for 1000 s in real time, go on as if nothing
/// had been.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a6_silent_connections_live_on() -> Result<()> {
    let silence = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => LONG_SILENCE,
        None => SHORT_SILENCE,
    };
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &Words::default().config())?;
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

/// A control plane that is killed at any point loses no id: 200 times, at another moment of its work
/// each time, while idle connections expire.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn no_id_is_lost_by_kills() -> Result<()> {
    let kills = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => KILLS,
        None => 5,
    };
    let topology = Topology::poc()?;
    let config = Words {
        tcp: ", idle_timeout: 500ms",
        ..Words::default()
    };
    let config = config.config();
    let mut lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    for round in 0..kills {
        let pairs = line.open_many(50)?;
        // From the middle of the idle time to the end of all resets, in uneven steps.
        thread::sleep(Duration::from_millis(350 + round * 37 % 400));
        lb.process().signal(Signal::SIGKILL)?;
        lb.process().wait_for_end(LIMIT)?;
        drop(pairs);
        lb.restart(&config)?;
    }
    ensure_all_ids_are_free(&topology, &lb)
}
