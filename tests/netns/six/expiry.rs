//! Idle flows of IPv6 end, loudly: FEATURES A7.

use std::{
    io::Write as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    frames::six::{check, read},
    oracle::wire::Wire,
    product::lb::Lb,
    topology::{SNAT6, VIP6},
    traffic::conn_pair::{reset, say, wait_for_reset},
};

use super::given::{config, open, topology};
use crate::flows::life::{AT_ONCE, LIMIT, ensure_all_ids_are_free, only_flow};

/// After its idle timeout both ends of a connection are reset, and nothing of it is left but its name.
#[privileged_test]
fn a7_an_idle_connection_of_ipv6_is_reset_at_both_ends() -> Result<()> {
    let topology = topology()?;
    let words = config().service("echo-a", |service| service.with("idle_timeout: 1s"));
    let lb = Lb::start(&topology, &words)?;
    let resets = |host: &lb_tests::topology::Host| {
        let filter = "ip6 and ip6[6] = 6 and ip6[53] & 4 != 0";
        Wire::received(&host.netns, "eth0", filter, topology.dir())
    };
    let wires = [resets(topology.client())?, resets(&topology.nodes[0])?];
    let pair = open(&topology)?;
    say(&pair.client, &pair.server, b"request")?;
    say(&pair.server, &pair.client, b"reply")?;
    assert_eq!(only_flow(&lb)?.state, "established");
    say(&pair.client, &pair.server, b"last")?;
    let _first = wait_for_reset(&pair.client, LIMIT)?;
    let second = wait_for_reset(&pair.server, LIMIT)?;
    assert!(second <= AT_ONCE, "the backend learned {second:?} later");
    ensure_all_ids_are_free(&topology, &lb)?;
    for (wire, source) in wires.into_iter().zip([VIP6, SNAT6]) {
        wire.wait_for("a reset", 1, LIMIT, |_| true)?;
        for frame in wire.stop()? {
            assert_eq!(check(&frame), Ok(()));
            assert_eq!(read(&frame).map(|read| read.source), Ok(source));
        }
    }
    let who = lb.who(pair.snat)?;
    assert_eq!(who.len(), 1, "{who:?}");
    assert_eq!((who[0].live, who[0].flow.state.as_str()), (false, "ended"));
    assert_eq!(who[0].flow.client, pair.client.local_addr()?.to_string());
    // The way is free for the next one.
    let pair = open(&topology)?;
    say(&pair.client, &pair.server, b"request")
}

/// An abort behind data that the backend has not acknowledged is found by a probe.
#[privileged_test]
fn an_abort_of_ipv6_behind_data_in_flight_ends_soon() -> Result<()> {
    let topology = topology()?;
    let lb = Lb::start(&topology, &config())?;
    let pair = open(&topology)?;
    say(&pair.client, &pair.server, b"request")?;
    say(&pair.server, &pair.client, b"reply")?;
    let node = &topology.nodes[0].netns;
    node.run("nft add table ip6 quiet")?;
    let chain = "nft add chain ip6 quiet in { type filter hook input priority 0 ; policy drop ; }";
    node.run(chain)?;

    (&pair.client).write_all(b"in flight").context("send")?;
    // It has left when the reset is sent.
    thread::sleep(Duration::from_millis(100));
    let aborted = Instant::now();
    reset(pair.client)?;
    ensure_all_ids_are_free(&topology, &lb)?;
    let elapsed = aborted.elapsed();
    ensure!(elapsed < Duration::from_secs(5), "ended after {elapsed:?}");
    Ok(())
}
