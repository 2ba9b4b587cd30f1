//! Larger maps of flows for a data plane that goes on: `limits.snat_addresses` and `limits.handed_over` with
//! `lb run --migrate`.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::MapData;
use lb_common::maps::snat::{FLOWS_PER_ADDRESS, flow_entries};
use lb_tests::{
    fault::kill_at_step::{self, Moment},
    oracle::query::Flow,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::{SNAT, Topology},
    traffic::{
        client,
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use lb_user::dataplane::pins::Pins;

use crate::{
    flows::life::{LIMIT, ensure_all_ids_are_free},
    lifecycle::{
        migrate::{folders, ours},
        takeover::{LONG, LONG_DIRECT, LONG_PORT, NAME, config},
    },
};

/// Flows that are there, and how many of them were handed over.
const FLOWS: usize = 1000;
const HANDED_OVER: usize = 100;
/// How many there are while processes are killed.
const FEW: usize = 20;
/// From one word of the connection that is watched to the next.
const WORD_INTERVAL: Duration = Duration::from_millis(2);
/// How long packets may be dropped: TCP sends again after 200 ms, and then 400 ms later.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The configuration with so many SNAT addresses, and room for no more.
fn sized(topology: &Topology, addresses: u8) -> Config {
    let more = (1..addresses).map(|last| Ipv4Addr::from_bits(SNAT.to_bits() + u32::from(last)));
    let snat: Vec<Ipv4Addr> = [SNAT].into_iter().chain(more).collect();
    let limits = Keys::from("snat_addresses: 0")
        .set("snat_addresses", addresses)
        .set("handed_over", 1000 * u32::from(addresses));
    config(topology)
        .network("mgmt", |mgmt| mgmt.set("snat", snat))
        .set("limits", limits)
}

/// Entries of the maps of flows.
fn sizes(topology: &Topology) -> Result<[u32; 2]> {
    let entries = |name: &str| -> Result<u32> {
        let map = MapData::from_pin(Pins::new(topology.run()).maps().join(name));
        Ok(map
            .with_context(|| format!("open {name}"))?
            .info()?
            .max_entries())
    };
    Ok([entries("FLOWS")?, entries("SPLICES")?])
}

/// What they are for so many SNAT addresses.
fn expected(addresses: u8) -> [u32; 2] {
    [
        flow_entries(addresses.into()),
        1000 * u32::from(addresses) + 1,
    ]
}

/// Connections of the shared VIP that were handed over to XDP.
fn handed_over(lb: &Lb<'_>) -> Result<u64> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let counted = status["shared"]["shared-long"]["handed_over"].as_u64();
    // Nothing is counted of a service that no client has come to.
    Ok(counted.unwrap_or_default())
}

/// Connections, and as many as that of them by name; all of these are handed over.
fn open(line: &Line<'_>, lb: &Lb<'_>, all: usize, by_name: usize) -> Result<Vec<Pair>> {
    let before = handed_over(lb)?;
    let mut pairs = line.open_many(by_name)?;
    for _ in by_name..all {
        pairs.push(line.open_at(LONG_DIRECT)?);
    }
    pairs.iter().try_for_each(Pair::talk)?;
    assert_eq!(handed_over(lb)? - before, u64::try_from(by_name)?);
    Ok(pairs)
}

/// What tells flows apart that stay the same, whatever is counted of them.
fn names(flows: &[Flow]) -> BTreeSet<String> {
    let name = |flow: &Flow| {
        format!(
            "{} {} {} {:?}",
            flow.client, flow.snat, flow.backend, flow.name
        )
    };
    flows.iter().map(name).collect()
}

/// The folders of pins when nothing is left to be done.
fn whole() -> [String; 2] {
    ["links".to_owned(), ours()]
}

/// Does `work` while a connection talks; how long it was silent at most.
fn beside(pair: &Pair, work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let talking = scope.spawn(move || {
            let mut longest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                pair.talk().context("the connection that is watched")?;
                longest = longest.max(begun.elapsed());
                thread::sleep(WORD_INTERVAL);
            }
            anyhow::Ok(longest)
        });
        let worked = work();
        stop.store(true, Ordering::Relaxed);
        let longest = talking.join().expect("the talk does not panic")?;
        worked.map(|()| longest)
    })
}

/// A thousand flows, a tenth of them handed over, are all there afterwards, with the same ports; and there is room for
/// more.
#[privileged_test]
fn maps_of_flows_become_larger_under_a_thousand_flows() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
    let line = line.saying(named(NAME.as_bytes()));
    let (small, large) = (sized(&topology, 1), sized(&topology, 3));
    let mut lb = Lb::start(&topology, &small)?;
    assert_eq!(sizes(&topology)?, expected(1));
    let pairs = open(&line, &lb, FLOWS, HANDED_OVER)?;
    let before = names(&lb.flows()?);
    assert_eq!(before.len(), FLOWS);

    // A reload cannot have it, and says what can; a start without the option keeps the sizes, and says it too.
    lb.write(&large)?;
    let said = lb.tell(&["reload"])?;
    ensure!(
        said.code == Some(1)
            && (said.stderr).contains("limits.snat_addresses with `lb run --migrate`"),
        "{said:?}"
    );
    let larger = small.clone().set("limits.snat_addresses", 3);
    lb.write(&larger)?;
    let plan = lb.tell(&["reload"])?.done()?;
    ensure!(
        plan.contains("`lb run --migrate` makes them larger"),
        "{plan}"
    );
    lb.process().stop()?;
    lb.restart(&larger)?;
    let said = lb.process().stderr();
    ensure!(said.contains("keeps its size"), "{said}");
    assert_eq!(sizes(&topology)?, expected(1));

    // Answered by a cookie before, and served after.
    let early = topology
        .client()
        .netns
        .inside(|| client::open(None, LONG))??;
    lb.process().stop()?;
    let pause = beside(&pairs[FLOWS - 1], || {
        lb.restart_with(&large, &["--migrate"])
    })?;
    let said = lb.process().stderr();
    let grown = said.lines().find(|line| line.contains("are larger"));
    println!(
        "the longest round trip: {pause:.1?}; {}",
        grown.with_context(|| said.clone())?
    );
    ensure!(pause < MAX_PAUSE, "{pause:?}");
    assert_eq!(sizes(&topology)?, expected(3));
    assert_eq!(folders(&topology)?, whole());
    assert_eq!(names(&lb.flows()?), before);
    pairs.iter().try_for_each(Pair::talk)?;
    let room = 3 * u64::from(FLOWS_PER_ADDRESS);
    assert_eq!(lb.status()?.flows.capacity, room);
    let early = line.complete(early)?;
    let more = open(&line, &lb, FLOWS / 10, HANDED_OVER / 10)?;

    // From now on it is like any other, told to or not.
    for options in [&[][..], &["--migrate"]] {
        lb.process().stop()?;
        lb.restart_with(&large, options)?;
        let said = lb.process().stderr();
        ensure!(!said.contains("larger"), "{said}");
        more.iter().chain(&pairs).try_for_each(Pair::talk)?;
        early.talk()?;
    }
    drop((pairs, more, early));
    ensure_all_ids_are_free(&topology, &lb)
}

/// Where a process dies that makes them larger: while it fills them, stops the networks, names them, and switches over.
const MOMENTS: [Moment; 8] = [
    Moment::Of("bpf 6", 0),
    Moment::Of("bpf 6", 40),
    Moment::Of("bpf 2 of NETWORKS", 0),
    Moment::Of("bpf 2 of NETWORKS", 1),
    Moment::Of("call 82", 0),
    Moment::Of("call 82", 1),
    Moment::Of("bpf 29", 0),
    Moment::Of("bpf 29", 2),
];

/// Killed in the middle it is as before, or finished by the next start.
#[privileged_test]
fn a_process_that_makes_maps_larger_may_be_killed() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
    let line = line.saying(named(NAME.as_bytes()));
    let mut lb = Lb::start(&topology, &sized(&topology, 1))?;
    let mut pairs = open(&line, &lb, FEW, FEW / 2)?;
    let (mut addresses, mut finished) = (1, 0);
    for moment in MOMENTS {
        lb.process().stop()?;
        let larger = sized(&topology, addresses + 1);
        lb.begin_restart_with(&larger, &["--migrate"])?;
        let doom = kill_at_step::kill_before(topology.run(), lb.process().id(), moment)?;
        let begun = Instant::now();
        while !doom.is_over() && !lb.process().stdout().contains("ready") {
            ensure!(begun.elapsed() < 3 * LIMIT, "neither killed nor ready");
            thread::sleep(Duration::from_millis(5));
        }
        let followed = doom.end()?;
        ensure!(
            followed.killed.is_some(),
            "{moment:?} never came: {:#?}",
            followed.steps
        );
        lb.kill()?;
        lb.restart(&sized(&topology, addresses))?;
        let found = sizes(&topology)?;
        println!("killed at {moment:?}: {found:?}");
        if found == expected(addresses + 1) {
            (addresses, finished) = (addresses + 1, finished + 1);
        }
        assert_eq!(found, expected(addresses), "{moment:?}");
        assert_eq!(folders(&topology)?, whole(), "{moment:?}");
        let all = pairs.iter().try_for_each(Pair::talk);
        all.with_context(|| format!("after {moment:?}"))?;
        pairs.extend(open(&line, &lb, 2, 1)?);
    }
    // From the moment on at which one of the folders has another name.
    assert_eq!(finished, 3);
    lb.process().stop()?;
    lb.restart_with(&sized(&topology, addresses + 1), &["--migrate"])?;
    assert_eq!(sizes(&topology)?, expected(addresses + 1));
    pairs.iter().try_for_each(Pair::talk)?;
    drop(pairs);
    ensure_all_ids_are_free(&topology, &lb)
}
