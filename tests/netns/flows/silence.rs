//! A flow that ended unheard: neither end got a reset, and each gets one when it sends.

use std::{
    io::Write as _,
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::lb::Lb,
    topology::{Host, Topology},
    traffic::conn_pair::{Pair, wait_for_reset},
};

use crate::flows::life::{AT_ONCE, LIMIT, config, ensure_all_ids_are_free, line};

/// RELIABILITY 8: both resets of an expired flow are lost; then the first segment of either end, of
/// the client or of the backend first, is answered with one.
#[privileged_test]
fn both_ends_learn_of_the_end_though_both_resets_were_lost() -> Result<()> {
    let rounds = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 50,
        None => 2,
    };
    let topology = Topology::poc()?;
    let config = config().service("echo-a", |service| service.with("idle_timeout: 500ms"));
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let hosts = [topology.client(), &topology.nodes[0]];
    for host in hosts {
        host.netns.run("nft add table ip lossy")?;
        let chain = "nft add chain ip lossy in { type filter hook input priority 0 ; }";
        host.netns.run(chain)?;
    }

    for round in 0..rounds {
        for host in hosts {
            let rule = "nft add rule ip lossy in tcp flags & rst == rst counter drop";
            host.netns.run(rule)?;
        }
        let pair = line.open()?;
        for host in hosts {
            poll::until("a lost reset", LIMIT, || {
                Ok((lost(host)? == 1).then_some(()))
            })
            .with_context(|| format!("at {}", host.name))?;
        }
        ensure_all_ids_are_free(&topology, &lb)?;
        for host in hosts {
            host.netns.run("nft flush chain ip lossy in")?;
        }

        let Pair { client, server, .. } = &pair;
        let mut ends = [("client", client), ("backend", server)];
        if round % 2 == 1 {
            ends.reverse();
        }
        for (name, end) in ends {
            let reset = speak_into_nothing(end).with_context(|| format!("at the {name}"))?;
            ensure!(reset <= AT_ONCE, "the {name} learned {reset:?} later");
        }
        assert_eq!(lb.status()?.flows.live, 0);
    }
    assert_eq!(lb.refused("no_flow")?, rounds);
    assert_eq!(lb.refused("reply_mismatch")?, rounds);
    Ok(())
}

/// How many resets `host` has thrown away, as its own packet filter counts.
fn lost(host: &Host) -> Result<u64> {
    let rules = host.netns.run("nft list chain ip lossy in")?;
    let (_, rest) = rules.split_once("packets ").context("a counter")?;
    let number = rest.split(' ').next().context("a number")?;
    number.parse().with_context(|| format!("count {number:?}"))
}

/// Says a word, and waits for the reset; how long that took.
fn speak_into_nothing(mut end: &TcpStream) -> Result<Duration> {
    let start = Instant::now();
    end.write_all(b"late").context("send")?;
    wait_for_reset(end, LIMIT)?;
    Ok(start.elapsed())
}
