//! Shared VIPs on one CPU and on several: short connections that a thread of the process carries.

use anyhow::{Context as _, Result};
use lb_tests::{product::cpu, topology::path::Path};

use crate::{
    Plan,
    measure::{Better, Rounds, Shape, turns},
    path::conntrack::Room,
    report::{Goal, Suite},
    tcp::{
        several::Several,
        stand::Ask,
        way::{self, Way},
    },
};

const WAYS: [Way; 4] = [Way::LbCopied, Way::LbHttp, Way::LbShared, Way::HaproxyName];
/// Those with a goal: each of their bytes passes the process.
const CARRIED: [Way; 2] = [Way::LbCopied, Way::LbHttp];
/// Connections at a time on each CPU.
const CONCURRENCY: u16 = 16;
const ANSWER: u64 = 3000;
/// How long a turn takes, and with `--quick`, in milliseconds; and what comes before the first one.
const TURN: u64 = 3000;
const QUICK: u64 = 400;
const WARM: u64 = 200;

const METHOD: &str = "As sni, on one CPU, and on all that there are up to eight, each with a client and a server of its own, 16 \
     connections at a time each; the wire runs where its packets are sent, and the contestant has a thread for each CPU. What is \
     compared is the whole path, so twice as many CPUs have twice as many clients. Copied: clients send no TCP timestamps, \
     and servers do. HTTP: one GET on a connection.";

/// # Errors
///
/// When a connection fails.
pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let (there, missing) = way::present(&WAYS);
    let _room = Room::make();
    let cpus = cpu::all()?;
    let own = [cpu::two()?[1]];
    let counts = [&own[..], cpus.get(..8).unwrap_or(&cpus)];
    let count = there.len() * counts.len();
    let paths: Vec<Path> = (0..count).map(|_| Path::build()).collect::<Result<_>>()?;
    let mut stands = Vec::new();
    let places = there.iter().flat_map(|way| counts.map(|cpus| (*way, cpus)));
    for ((way, cpus), path) in places.zip(&paths) {
        let stand = Several::build(way, path, cpus);
        stands.push(stand.with_context(|| format!("set up {}", way.name()))?);
    }
    let columns = counts.map(|cpus| cpus.len().to_string());
    let mut rates = Rounds::new(there.iter().map(|way| way.name()), columns, Better::More);
    let ask = |millis| Ask {
        answer: ANSWER,
        concurrency: CONCURRENCY,
        millis,
    };
    for stand in &mut stands {
        stand.rate(ask(WARM))?;
    }
    for round in 0..plan.rounds {
        for place in turns(round, stands.len()) {
            plan.interrupt.check()?;
            let millis = if plan.quick { QUICK } else { TURN };
            if let Some(stand) = stands.get_mut(place) {
                let rate = stand.rate(ask(millis))?;
                rates.add(round, place / counts.len(), place % counts.len(), rate);
            }
        }
    }
    let made: u64 = stands.iter().map(|stand| stand.made).sum();
    Ok(Suite {
        name: "threads",
        method: METHOD.to_owned(),
        charts: vec![rates.chart("Connections", "1/s", "CPUs", Shape::Lines, None)],
        checked: vec![format!(
            "{made} connections, each with the right answer; none failed"
        )],
        goals: there
            .iter()
            .map(|way| goal(*way, &rates, cpus.len()))
            .collect(),
        contestants: there.iter().map(|way| way.shown()).collect::<Result<_>>()?,
        missing,
    })
}

/// How many times as many connections all CPUs carry as one.
fn goal(way: Way, rates: &Rounds, cpus: usize) -> Goal {
    let what = format!("connections, {cpus} CPUs / 1, {}", way.name());
    let growth = rates.growth(way.name(), 0, 1);
    match CARRIED.contains(&way) && cpus == 2 {
        true => Goal::new(what, [1.5, 1.8], growth),
        false => Goal::gain(what, growth),
    }
}
