//! What the program alone costs: BPF_PROG_TEST_RUN, by the CPU clock of the thread.

mod flows;
mod handed;
mod hubs;
mod paths;
mod stand;

use std::thread;

use anyhow::{Context as _, Result, anyhow};
use lb_tests::product::{budget, cpu, program::DataPlane};

use self::{
    flows::{Crowd, ROWS},
    stand::Stand,
};
use crate::{
    Plan,
    measure::{Better, Chart, Rounds, Shape, Spread, turns},
    report::{Goal, Missing, Suite},
};

/// How many flows there are, and what Katran's program takes for a packet of one of them, in nanoseconds: on
/// another machine, see [`KATRAN`].
const COLUMNS: [(&str, u32, Option<f64>); 4] = [
    ("1", 1, None),
    ("1k", 1_000, Some(172.0)),
    ("64k", 64_000, Some(346.0)),
    ("1M", 1_000_000, Some(334.0)),
];
/// Must and aim as shares of that, for each column that has it.
const REQUEST_GOALS: [(f64, f64); 3] = [(0.5, 0.25), (0.4, 0.2), (0.5, 0.35)];
const REPLY_GOALS: [(f64, f64); 3] = [(0.4, 0.1), (0.3, 0.1), (0.3, 0.1)];

/// So many flows are in a near cache after the first leg.
const FEW: u32 = 10_000;

const UNIT: &str = "ns per packet";
const EMPTY: &str = "an empty program (subtracted)";

const METHOD: &str = "\
BPF_PROG_TEST_RUN runs the loaded programs, again and again on the same memory, and the CPU clock of the thread is \
read before and after. A program before them writes all headers of the next packet, which undoes whatever the last \
run has made of the frame, and calls them; what it takes with a program that does nothing is subtracted. Both run one \
after the other in short legs, and a figure is the middle of all legs. So figures are nanoseconds more than an empty \
program takes, with headers in the nearest cache, and without driver and memory of a NIC. Connections were established \
by SYN, SYN-ACK and ACK through the program, with 32 backends to each service; there are no more of them than the \
column says, in tables that have room for 1.1 million. In random order each flow comes once, in leaps of a large prime. \
In the second chart one packet comes again and again; a new flow takes the place of the oldest half-open one. Answers \
have a rate: the allowance is filled up before every leg of 900. The actions and all counters are compared: every \
packet came to its end. These are absolute times of one machine, and neighbours on it that use its caches can double \
those of many flows. The goals are shares of Katran's times, which are of a virtual machine as well, but of another run.";

const KATRAN: &str = "it is not run here. Its balancer_ingress (UDP, 32 reals, IPIP, one direction) took 172, 346 and \
334 ns with 1k, 64k and 1M flows, measured in the same way on a virtual machine of the Sapphire Rapids class with \
Linux 6.18";

pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    // A data plane moves its thread into a network namespace.
    thread::scope(|scope| {
        let suite = scope.spawn(move || in_thread(plan)).join();
        suite.map_err(|_| anyhow!("the thread of the suite has panicked"))?
    })
}

fn in_thread(plan: Plan<'_>) -> Result<Suite> {
    let [_, cpu] = cpu::two()?;
    cpu::bind(cpu)?;
    let mut checked = Vec::new();
    let flows = established(plan, &mut checked).context("established connections")?;
    let paths = every_path(plan, &mut checked).context("every path")?;
    let mut goals = goals("request", &flows, ROWS[0].name, &REQUEST_GOALS);
    goals.extend(self::goals("reply", &flows, ROWS[2].name, &REPLY_GOALS));
    Ok(Suite {
        name: "program",
        method: METHOD.to_owned(),
        charts: vec![flows, paths],
        checked,
        goals,
        missing: vec![Missing {
            name: "Katran",
            why: KATRAN.to_owned(),
        }],
        ..Suite::default()
    })
}

/// Segments of established connections, by how many of them there are.
fn established(plan: Plan<'_>, checked: &mut Vec<String>) -> Result<Chart> {
    let columns: Vec<_> = COLUMNS
        .into_iter()
        .filter(|column| !plan.quick || ["1k", "64k"].contains(&column.0))
        .collect();
    let packets = if plan.quick { 200_000 } else { 1_000_000 };
    let most = columns.iter().map(|column| column.1).max().unwrap_or(1);
    let mut crowd = Crowd::new(most)?;
    let names = ROWS.iter().map(|row| row.name).chain([EMPTY]);
    let mut rounds = Rounds::new(names, columns.iter().map(|column| column.0), Better::Less);
    for (column, (_, flows, _)) in columns.into_iter().enumerate() {
        crowd.grow(flows)?;
        let mut segments = Vec::new();
        for row in ROWS {
            segments.push(crowd.segments(row, flows, packets)?);
        }
        for round in 0..plan.rounds {
            plan.interrupt.check()?;
            for row in turns(round, ROWS.len()) {
                // Of many flows what is in a cache is what the last pass has left there.
                if flows > FEW {
                    crowd.stand.send_all(&segments[row])?;
                }
                let cost = crowd.stand.cost(&segments[row])?;
                rounds.add(round, row, column, cost.program);
                if row == 0 {
                    rounds.add(round, ROWS.len(), column, cost.empty);
                }
            }
        }
    }
    checked.push(format!(
        "{most} connections were established through the program"
    ));
    note(&crowd.stand, checked);
    let title = "The program: segments of established TCP connections";
    Ok(rounds.chart(title, UNIT, "flows", Shape::Lines, None))
}

/// One packet each way through the programs, beside what the tree says of it.
fn every_path(plan: Plan<'_>, checked: &mut Vec<String>) -> Result<Chart> {
    let plane = DataPlane::with_own_limits(paths::CONFIG)?;
    let mut stand = Stand::new(plane, paths::NEW)?;
    let paths = paths::paths(&mut stand, if plan.quick { 50_000 } else { 500_000 })?;
    let names = paths.iter().map(|path| path.name).chain([EMPTY]);
    let mut rounds = Rounds::new(names, ["this run", "the tree"], Better::Less);
    for round in 0..plan.rounds {
        plan.interrupt.check()?;
        for turn in turns(round, paths.len()) {
            let path = &paths[turn];
            let cost = stand.cost(&path.legs);
            let cost = cost.with_context(|| path.name)?;
            rounds.add(round, turn, 0, cost.program);
            let known = budget::of(path.name)
                .with_context(|| format!("no row in tests/verifier/budget.md: {}", path.name))?;
            rounds.add(round, turn, 1, known.into());
            if turn == 0 {
                rounds.add(round, paths.len(), 0, cost.empty);
            }
        }
    }
    note(&stand, checked);
    let title = "The programs: every path, beside the figures in tests/verifier/budget.md";
    Ok(rounds.chart(title, UNIT, "", Shape::Bars, None))
}

fn note(stand: &Stand, checked: &mut Vec<String>) {
    checked.push(format!(
        "{} packets came to the end that they must come to, by action and counters",
        stand.right
    ));
    checked.push(format!(
        "{} of them were looked at, and every checksum was right",
        stand.whole
    ));
}

/// Where a row should stand beside Katran.
fn goals(what: &str, chart: &Chart, row: &str, shares: &[(f64, f64)]) -> Vec<Goal> {
    let known = COLUMNS
        .into_iter()
        .filter_map(|(name, _, ns)| Some((name, ns?)));
    let series = chart.series.iter().find(|series| series.name == row);
    let goal = |((name, katran), &(must, aim)): ((&str, f64), &(f64, f64))| {
        let column = chart.columns.iter().position(|column| column == name);
        let value = column.and_then(|column| *series?.values.get(column)?);
        Goal {
            what: format!("program, established {what}, {name} flows, of Katran's {katran} ns"),
            must,
            aim,
            less_is_better: true,
            measured: value.map(
                |Spread {
                     median,
                     least,
                     most,
                 }| Spread {
                    median: median / katran,
                    least: least / katran,
                    most: most / katran,
                },
            ),
        }
    };
    known.zip(shares).map(goal).collect()
}
