//! Checks against real servers on the loopback interface.

pub(crate) mod certificate;
mod checker;
mod http;
mod proxy;
mod server;
mod strangers;
mod tcp;
mod tls;

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    CheckOutcome, CheckTarget, Standing,
    check::check,
    probe::{self, OpenConnection},
};
use crate::config::{Authorities, Check, Get, Health, OnDead, Tls};

const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The source address of the checks: not the one that the kernel would choose.
const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// Of checks that must not fail for want of time, whatever the machine does.
const LONG: Duration = Duration::from_secs(20);
/// Of checks that wait in vain.
const SHORT: Duration = Duration::from_secs(1);

fn health(check: Check) -> Health {
    Health {
        check,
        port: None,
        interval: LONG,
        timeout: LONG,
        rise: 2,
        fall: 3,
        fast_interval: Duration::from_secs(1),
        flap_hold: Duration::ZERO,
        on_dead: OnDead::None,
    }
}

fn target(address: SocketAddrV4, health: Health) -> CheckTarget {
    CheckTarget {
        backend: 7,
        also: Vec::new(),
        address: address.into(),
        send_proxy_header: false,
        source: SOURCE.into(),
        next_hop: (*address.ip()).into(),
        health,
        saved: Standing::default(),
    }
}

fn get(path: &str) -> Get {
    Get {
        path: path.to_owned(),
        host: None,
        status: (200, 299),
    }
}

fn any_tls() -> Tls {
    Tls::default()
}

fn trusting(sni: Option<&str>, ca: impl Into<PathBuf>) -> Tls {
    Tls {
        sni: sni.map(str::to_owned),
        ca: Some(Authorities::read(ca.into())),
    }
}

/// One check, closed as the checker closes it.
async fn ask(address: SocketAddrV4, health: Health) -> anyhow::Result<CheckOutcome> {
    let target = target(address, health);
    let (outcome, open) = ask_openly(&target).await?;
    open.close().await;
    Ok(outcome)
}

/// One check, not closed yet.
async fn ask_openly(target: &CheckTarget) -> anyhow::Result<(CheckOutcome, OpenConnection)> {
    let probe = probe::of(&target.health.check)?;
    let checked = check(target, probe.as_ref(), target.health.timeout).await?;
    Ok((checked.outcome, checked.open))
}

/// One check that must be possible.
async fn outcome(address: SocketAddrV4, check: Check) -> CheckOutcome {
    ask(address, health(check)).await.expect("a check")
}

/// One check that waits in vain, and no longer than it may.
async fn in_vain(address: SocketAddrV4, check: Check) -> CheckOutcome {
    let health = Health {
        timeout: SHORT,
        ..health(check)
    };
    let begin = Instant::now();
    let outcome = ask(address, health).await.expect("a check");
    let took = begin.elapsed();
    assert!(took >= SHORT && took < SHORT * 5 / 2, "{took:?}");
    outcome
}

fn good(words: &str) -> CheckOutcome {
    CheckOutcome::Good(words.to_owned())
}

fn not_ready(words: &str) -> CheckOutcome {
    CheckOutcome::NotReady(words.to_owned())
}

fn dead(words: &str) -> CheckOutcome {
    CheckOutcome::Dead(words.to_owned())
}
