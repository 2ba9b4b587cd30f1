//! What the program alone costs: BPF_PROG_TEST_RUN, by the CPU clock of the thread.

mod beside;
mod directions;
mod flows;
mod handed;
mod hubs;
mod paths;
mod paths6;
mod stand;

use std::thread;

use anyhow::{Context as _, Result, anyhow};
use lb_tests::product::{
    budget, cpu,
    program::{DataPlane, Port},
};
use lb_user::dataplane::object::Build;

use self::{
    flows::{Crowd, ROWS, Row},
    stand::Stand,
};
use crate::{
    Plan,
    measure::{Better, Chart, Rounds, Shape, turns},
    path::reference_nat::ReferenceNat,
    report::{Goal, Suite, Wanted},
};

/// How many flows there are.
const COLUMNS: [(&str, u32); 4] = [("1", 1), ("1k", 1_000), ("64k", 64_000), ("1M", 1_000_000)];
/// Columns that ratios are printed of, where they are measured.
const RATIOS: [&str; 3] = ["1k", "64k", "1M"];
/// A reply leads to its flow by its port alone.
const REPLY_TO_REQUEST: Wanted = Wanted {
    must: 0.3,
    aim: 0.3,
};

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
Where both directions come at once, another CPU sends the other one of the same connections again and again; an entry of 128 B \
has a second line, which has what replies write, and is that of a build that is not shipped. \
In the last chart one packet comes again and again; a new flow takes the place of the oldest half-open one. Answers \
have a rate: the allowance is filled up before every leg of 900. The actions and all counters are compared: every \
packet came to its end. The reference NAT, an XDP program of this tree that does nothing but one look-up and the writing, has \
the same flows in its table and gets the same packets. These are absolute times of one machine, and neighbours on it \
that use its caches can double those of many flows; ratios are of figures of one round.";

pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    // A data plane moves its thread into a network namespace.
    thread::scope(|scope| {
        let suite = scope.spawn(move || in_thread(plan)).join();
        suite.map_err(|_| anyhow!("the thread of the suite has panicked"))?
    })
}

fn in_thread(plan: Plan<'_>) -> Result<Suite> {
    let [other, cpu] = cpu::two()?;
    cpu::bind(cpu)?;
    let mut checked = Vec::new();
    let (flows, mut goals) = established(plan, &mut checked).context("established connections")?;
    let both = directions::measure(plan, other, &mut checked);
    let (directions, of_directions) = both.context("both directions at once")?;
    goals.extend(of_directions);
    let paths = every_path(plan, &mut checked).context("every path")?;
    Ok(Suite {
        name: "program",
        method: METHOD.to_owned(),
        charts: vec![flows, directions, paths],
        checked,
        goals,
        ..Suite::default()
    })
}

/// Segments of established connections, by how many of them there are, and what is compared of them.
fn established(plan: Plan<'_>, checked: &mut Vec<String>) -> Result<(Chart, Vec<Goal>)> {
    let columns: Vec<_> = COLUMNS
        .into_iter()
        .filter(|column| !plan.quick || ["1k", "64k"].contains(&column.0))
        .collect();
    let packets = if plan.quick { 200_000 } else { 1_000_000 };
    let most = columns.iter().map(|column| column.1).max().unwrap_or(1);
    let mut crowd = Crowd::new(Build::SHIPPED, most)?;
    let mut nat = ReferenceNat::load()?;
    let (_, interface) = crowd.stand.plane.at(Port::Foreign)?;
    let names = ROWS.iter().map(|row| row.name.to_owned());
    let names = names.chain(ROWS.iter().map(nat_row));
    let names = names.chain([EMPTY.to_owned()]);
    let mut rounds = Rounds::new(names, columns.iter().map(|column| column.0), Better::Less);
    for (column, &(_, flows)) in columns.iter().enumerate() {
        crowd.grow(flows)?;
        nat.fill(crowd.translated(), interface)?;
        let mut segments = Vec::new();
        for row in ROWS {
            segments.push(crowd.segments(row, flows, packets)?);
        }
        for round in 0..plan.rounds {
            plan.interrupt.check()?;
            for row in turns(round, ROWS.len()) {
                // Of many flows what is in a cache is what the last pass has left there.
                let warm = flows > FEW;
                if warm {
                    crowd.stand.send_all(&segments[row])?;
                }
                let cost = crowd.stand.cost(&segments[row])?;
                rounds.add(round, row, column, cost.program);
                if row == 0 {
                    rounds.add(round, 2 * ROWS.len(), column, cost.empty);
                }
                let cost = crowd
                    .stand
                    .cost_of_nat(&segments[row], nat.program()?, warm)
                    .context("the reference NAT")?;
                rounds.add(round, ROWS.len() + row, column, cost);
            }
        }
    }
    nat.has_missed_none().context("the reference NAT")?;
    checked.push(format!(
        "{most} connections were established through the program"
    ));
    note(&crowd.stand, checked);
    let title = "The program: segments of established TCP connections";
    let goals = goals(&rounds, &columns);
    Ok((
        rounds.chart(title, UNIT, "flows", Shape::Lines, None),
        goals,
    ))
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
            if let Some(known) = budget::of(path.name) {
                rounds.add(round, turn, 1, known.into());
            }
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

/// The row of the reference NAT beside one of lb.
fn nat_row(row: &Row) -> String {
    format!("reference NAT: {}", row.name)
}

/// What lb takes beside the reference NAT, and its replies beside its requests.
fn goals(rounds: &Rounds, columns: &[(&'static str, u32)]) -> Vec<Goal> {
    let [request, _, reply, _] = ROWS;
    let places = RATIOS.into_iter().filter_map(|name| {
        let place = columns.iter().position(|column| column.0 == name)?;
        Some((name, place))
    });
    let mut goals = Vec::new();
    for (name, place) in places {
        // Of costs the better one is the divisor.
        let ratio = rounds.ratio(request.name, reply.name, place);
        let what = format!("program, reply / request, {name} flows");
        goals.push(Goal {
            wanted: (name == "64k").then_some(REPLY_TO_REQUEST),
            ..Goal::cost(what, ratio)
        });
        for (what, row) in [("request", request), ("reply", reply)] {
            let ratio = rounds.ratio(&nat_row(&row), row.name, place);
            let what = format!("program, {what}, lb / reference NAT, {name} flows");
            goals.push(Goal::cost(what, ratio));
        }
    }
    goals
}
