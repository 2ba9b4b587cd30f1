//! Idle connections that are kept alive, and dead peers that are found: FEATURES A8.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::wire::header::ACK;
use lb_tests::{
    frames::segment::Segment,
    oracle::wire::Wire,
    poll,
    product::{config::Config, lb::Lb},
    topology::{Host, Topology},
    traffic::conn_pair::wait_for_reset,
};

use crate::flows::life::{
    LIMIT, config, ensure_all_ids_are_free, line, only_flow, wait_for_answers,
};

const SECOND: Duration = Duration::from_secs(1);
/// A second of silence, and three probes a second apart.
pub(crate) const FOUND: [Duration; 2] = [Duration::from_secs(3), Duration::from_secs(12)];

/// Idle connections are kept, by a probe in each second.
pub(super) fn kept() -> Config {
    let kept = "idle_timeout: never, keepalive: 1s";
    config().service("echo-a", |service| service.with(kept))
}

/// A8: an idle connection is probed at both ends by an acknowledgment of what they know already,
/// which each of them answers; and it stays.
#[privileged_test]
fn an_idle_connection_is_probed_at_both_ends_and_stays() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &kept())?;
    let line = line(&topology)?;
    let (client, node) = (topology.client(), &topology.nodes[0]);
    let dir = topology.dir();
    let to_client = Wire::received(&client.netns, "eth0", "tcp", dir)?;
    let to_node = Wire::received(&node.netns, "eth0", "tcp", dir)?;
    let from_client = Wire::received(&topology.tenant_lan, "p-c1", "tcp", dir)?;
    let from_node = Wire::received(&topology.mgmt_lan, "p-n1", "tcp", dir)?;

    let pair = line.open()?;
    let before = only_flow(&lb)?;
    thread::sleep(7 * SECOND);
    let after = only_flow(&lb)?;
    pair.talk()?;

    assert_eq!(before.snat, after.snat);
    assert_eq!(after.expires_in_seconds, None, "{after:?}");
    assert!(after.bytes_request > before.bytes_request, "{after:?}");
    assert!(after.bytes_reply > before.bytes_reply, "{after:?}");
    for (what, [to, from]) in [
        ("the client", [to_client, from_client]),
        ("the backend", [to_node, from_node]),
    ] {
        let [to, from] = [segments(to)?, segments(from)?];
        let probes = probes(&to);
        let answers = answers(&from);
        ensure!(
            (2..=7).contains(&probes) && answers >= probes,
            "{what}: {probes} probes, {answers} answers: {to:#?} {from:#?}"
        );
    }
    Ok(())
}

/// A8: a backend that is gone is found, and the client need not wait for it for ever.
#[privileged_test]
fn a_dead_backend_is_found_and_the_client_is_reset() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &kept())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    wait_for_answers(&lb)?;

    let cut = Instant::now();
    topology.nodes[0].netns.ip_batch("link set eth0 down\n")?;

    found(&topology, &lb, cut, || {
        wait_for_reset(&pair.client, 3 * LIMIT).context("at the client")
    })
}

/// The same the other way: the backend need not keep what belongs to a client that is gone.
#[privileged_test]
fn a_dead_client_is_found_and_the_backend_is_reset() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &kept())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    wait_for_answers(&lb)?;

    let cut = Instant::now();
    topology.client().netns.ip_batch("link set eth0 down\n")?;

    found(&topology, &lb, cut, || {
        wait_for_reset(&pair.server, 3 * LIMIT).context("at the backend")
    })
}

/// A peer that hears and does not answer is as dead as one that is gone.
#[privileged_test]
fn a_backend_that_is_silent_is_found() -> Result<()> {
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let config = kept().set("log.flows", &log);
    let lb = Lb::start(&topology, &config)?;
    let line = line(&topology)?;
    let pair = line.open()?;
    wait_for_answers(&lb)?;

    let cut = Instant::now();
    silence(&topology.nodes[0])?;

    found(&topology, &lb, cut, || {
        wait_for_reset(&pair.client, 3 * LIMIT).context("at the client")
    })?;
    // And the flow log says why.
    poll::until("the reason", LIMIT, || {
        let text = fs::read_to_string(&log).context("read the flow log")?;
        let reasons: Vec<&str> = ["dead", "expired"]
            .into_iter()
            .filter(|reason| text.contains(&format!("\"reason\":\"{reason}\"")))
            .collect();
        Ok((reasons == ["dead"]).then_some(()))
    })
}

/// The other end is reset in time, and the flow is gone.
fn found(
    topology: &Topology,
    lb: &Lb<'_>,
    cut: Instant,
    reset: impl FnOnce() -> Result<Duration>,
) -> Result<()> {
    reset().with_context(|| format!("{:?}", lb.flows()))?;
    let elapsed = cut.elapsed();
    let [soonest, latest] = FOUND;
    ensure!(
        (soonest..=latest).contains(&elapsed),
        "found after {elapsed:?}"
    );
    ensure_all_ids_are_free(topology, lb)
}

/// Has a host hear nothing any more.
pub(crate) fn silence(host: &Host) -> Result<()> {
    host.netns.run("nft add table ip quiet")?;
    let chain = "nft add chain ip quiet in { type filter hook input priority 0 ; policy drop ; }";
    host.netns.run(chain).map(drop)
}

fn segments(wire: Wire) -> Result<Vec<Segment>> {
    let frames = wire.stop()?;
    Ok(frames.iter().filter_map(|f| Segment::read(f)).collect())
}

/// Acknowledgments without data, one number before what is expected.
fn probes(segments: &[Segment]) -> usize {
    let mut expected = None;
    let mut probes = 0;
    for segment in segments {
        let is_bare = segment.flags == ACK && segment.payload == 0;
        if is_bare && expected == Some(segment.sequence.wrapping_add(1)) {
            probes += 1;
        } else if segment.payload > 0 {
            expected = Some(segment.next());
        }
    }
    probes
}

/// Acknowledgments without data that say nothing new.
fn answers(segments: &[Segment]) -> usize {
    let mut last = None;
    let mut answers = 0;
    for segment in segments.iter().filter(|segment| segment.flags & ACK != 0) {
        let is_bare = segment.flags == ACK && segment.payload == 0;
        if is_bare && last == Some(segment.acknowledgment) {
            answers += 1;
        }
        last = Some(segment.acknowledgment);
    }
    answers
}
