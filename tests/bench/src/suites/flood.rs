//! Connections beside a flood of SYNs: how many go on, here to a shared VIP.

use anyhow::Result;
use lb_tests::topology::path::Path;

use crate::{
    Plan,
    measure::{Better, Chart, Rounds, Shape, turns},
    path::conntrack::Room,
    report::{Goal, Suite},
    suites::connections::stands,
    tcp::{
        answer::HELLO,
        flood::RATE,
        stand::{Ask, Stand, Taken},
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
/// The column of what was measured beside the flood.
const BESIDE: usize = 1;

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
    let flooded = Flooded::measure(&mut stands, plan, ANSWER)?;
    Ok(Suite {
        name: "flood",
        method: METHOD.to_owned(),
        goals: vec![flooded.goal(
            "lb with late binding / HAProxy by SNI",
            [2.0, 3.0],
            [Way::LbBound, Way::HaproxyName],
        )],
        charts: flooded.charts(),
        checked: flooded.checked(),
        contestants: there.iter().map(|way| way.shown()).collect::<Result<_>>()?,
        missing,
    })
}

/// What connections took without a flood and beside one.
pub(crate) struct Flooded {
    rates: Rounds,
    costs: Rounds,
    /// How long they took, beside the flood.
    times: Rounds,
    /// Connections of all ways.
    made: u64,
    /// SYNs in a second of the slowest flood.
    slowest: f64,
}

impl Flooded {
    /// The turns of all, each with a CPU of its own, with answers of this many bytes.
    ///
    /// # Errors
    ///
    /// When a connection fails.
    pub(crate) fn measure(stands: &mut [Stand<'_>], plan: Plan<'_>, answer: u64) -> Result<Self> {
        let ask = |millis| Ask {
            answer,
            concurrency: CONCURRENCY,
            millis,
        };
        for stand in &mut *stands {
            stand.expect_flood()?;
            stand.run(ask(WARM))?;
        }
        let mut flooded = Self::of(stands);
        for round in 0..plan.rounds {
            for place in turns(round, stands.len()) {
                plan.interrupt.check()?;
                let millis = if plan.quick { QUICK } else { TURN };
                let stand = &mut stands[place];
                let calm = stand.run(ask(millis))?;
                let (beside, sent) = stand.run_flooded(ask(millis))?;
                flooded.slowest = flooded.slowest.min(sent);
                flooded.add(round, place, [calm, beside]);
            }
        }
        flooded.made = stands.iter().map(|stand| stand.made).sum();
        Ok(flooded)
    }

    fn of(stands: &[Stand<'_>]) -> Self {
        let names = || stands.iter().map(|stand| stand.way.name());
        let columns = ["without a flood".to_owned(), format!("{RATE} SYNs/s")];
        Self {
            rates: Rounds::new(names(), columns.clone(), Better::More),
            costs: Rounds::new(names(), columns, Better::Less),
            times: Rounds::new(names(), ["99 of 100", "the longest"], Better::Less),
            made: 0,
            slowest: f64::MAX,
        }
    }

    /// Notes a turn of one way: without a flood and beside one.
    fn add(&mut self, round: usize, place: usize, both: [Taken; 2]) {
        for (column, taken) in both.iter().enumerate() {
            let connections = taken.told.connections as f64;
            let rate = connections / taken.told.seconds;
            self.rates.add(round, place, column, rate);
            let cost = taken.carrier * 1e6 / connections;
            self.costs.add(round, place, column, cost);
        }
        let times = both[BESIDE].told.whole;
        for (column, micros) in [times.most, times.longest].into_iter().enumerate() {
            self.times.add(round, place, column, micros / 1e3);
        }
    }

    /// How many connections one way makes in a second of its own CPU beside the flood, by those of another.
    pub(crate) fn goal(&self, names: &str, wanted: [f64; 2], [one, other]: [Way; 2]) -> Goal {
        let what = format!("connections per second of its own CPU beside the flood, {names}");
        let ratio = self.costs.ratio(one.name(), other.name(), BESIDE);
        Goal::new(what, wanted, ratio)
    }

    pub(crate) fn charts(&self) -> Vec<Chart> {
        let cost = "CPU time of the contestant, with that for the flood, for a connection";
        let time = "Duration of a connection beside the flood";
        vec![
            self.rates
                .chart("Connections", "1/s", "", Shape::Bars, None),
            self.costs.chart(cost, "us", "", Shape::Bars, None),
            self.times.chart(time, "ms", "", Shape::Bars, None),
        ]
    }

    /// What was checked.
    pub(crate) fn checked(&self) -> Vec<String> {
        let Self { made, slowest, .. } = self;
        vec![
            format!("{made} connections, each with the right answer; none failed"),
            format!("the slowest flood sent {slowest:.0} SYNs/s"),
        ]
    }
}
