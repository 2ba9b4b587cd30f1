//! A shared VIP under a flood of SYNs: how many connections go on.

use anyhow::Result;
use lb_tests::topology::path::Path;

use crate::{
    Plan,
    measure::{Better, Rounds, Shape, turns},
    path::conntrack::Room,
    report::{Goal, Suite},
    suites::connections::stands,
    tcp::{
        answer::HELLO,
        flood::RATE,
        stand::Ask,
        way::{self, Way},
    },
};

const WAYS: [Way; 2] = [Way::LbBound, Way::HaproxyName];
const CONCURRENCY: u16 = 32;
const ANSWER: u64 = 3000;
/// How long a turn takes, and with `--quick`, in milliseconds; and what comes before the first one.
const TURN: u64 = 3000;
const QUICK: u64 = 400;
const WARM: u64 = 200;

const METHOD: &str = "As sni, without a flood and beside one of SYNs from 10,000 addresses. The contestant and its NICs have a \
     CPU of their own; both ends, the wire and the flood have another one, which is the first to be busy. Answers to the flood reach \
     the client's NIC, and nothing answers them. HAProxy has the kernel's SYN cookies, as by default.";

/// # Errors
///
/// When a connection fails.
pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let (there, missing) = way::present(&WAYS);
    let _room = Room::make();
    let paths: Vec<Path> = there.iter().map(|_| Path::build()).collect::<Result<_>>()?;
    let mut stands = stands(&there, &paths, HELLO)?;
    let columns = ["without a flood".to_owned(), format!("{RATE} SYNs/s")];
    let names = || there.iter().map(|way| way.name());
    let mut rates = Rounds::new(names(), columns.clone(), Better::More);
    let mut costs = Rounds::new(names(), columns, Better::Less);
    let ask = |millis| Ask {
        answer: ANSWER,
        concurrency: CONCURRENCY,
        millis,
    };
    for stand in &mut stands {
        stand.expect_flood()?;
        stand.run(ask(WARM))?;
    }
    let mut slowest = f64::MAX;
    for round in 0..plan.rounds {
        for place in turns(round, stands.len()) {
            plan.interrupt.check()?;
            let millis = if plan.quick { QUICK } else { TURN };
            let stand = &mut stands[place];
            let calm = stand.run(ask(millis))?;
            let (flooded, sent) = stand.run_flooded(ask(millis))?;
            slowest = slowest.min(sent);
            for (column, taken) in (0..).zip([calm, flooded]) {
                let connections = taken.told.connections as f64;
                rates.add(round, place, column, connections / taken.told.seconds);
                costs.add(round, place, column, taken.carrier * 1e6 / connections);
            }
        }
    }
    let made: u64 = stands.iter().map(|stand| stand.made).sum();
    let [lb, haproxy] = [Way::LbBound, Way::HaproxyName].map(Way::name);
    Ok(Suite {
        name: "flood",
        method: METHOD.to_owned(),
        goals: vec![Goal::new(
            "connections per second of its own CPU beside the flood, lb with late binding / HAProxy by SNI",
            [2.0, 3.0],
            costs.ratio(lb, haproxy, 1),
        )],
        charts: vec![
            rates.chart("Connections", "1/s", "", Shape::Bars, None),
            costs.chart(
                "CPU time of the contestant, with that for the flood, for a connection",
                "us",
                "",
                Shape::Bars,
                None,
            ),
        ],
        checked: vec![
            format!("{made} connections, each with the right answer; none failed"),
            format!("the slowest flood sent {slowest:.0} SYNs/s"),
        ],
        contestants: there.iter().map(|way| way.shown()).collect::<Result<_>>()?,
        missing,
    })
}
