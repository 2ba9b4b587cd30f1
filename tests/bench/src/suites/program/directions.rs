//! Requests on one CPU and replies of the same flows on another one, at once: what it costs that both write a flow's entry,
//! with one cache line for a flow and with one for each direction.

use anyhow::{Context as _, Result};
use lb_tests::product::builds::LINE_PER_DIRECTION;
use lb_user::dataplane::object::Build;

use super::{
    UNIT,
    beside::Beside,
    flows::{Crowd, ROWS},
    note,
    stand::Leg,
};
use crate::{
    Plan,
    measure::{Better, Chart, Rounds, Shape, turns},
    report::Goal,
};

/// Entries by their size.
const ENTRIES: [(&str, Build); 2] = [("64 B", Build::SHIPPED), ("128 B", LINE_PER_DIRECTION)];
const FLOWS: [(&str, u32); 2] = [("1k", 1_000), ("64k", 64_000)];
/// Of each number of flows first a direction alone, then beside the other one.
const WAYS: [&str; 2] = ["alone", "both at once"];
const DIRECTIONS: [&str; 2] = ["request", "reply"];
const TITLE: &str =
    "The program: both directions of the same connections, by the size of their entries";

/// The connections of one size of entries, and segments of both directions.
struct Side {
    crowd: Crowd,
    beside: Beside,
    legs: [Vec<Leg>; 2],
}

/// `cpu` sends what is not measured.
pub(super) fn measure(
    plan: Plan<'_>,
    cpu: usize,
    checked: &mut Vec<String>,
) -> Result<(Chart, Vec<Goal>)> {
    let packets = if plan.quick { 100_000 } else { 1_000_000 };
    let mut sides = Vec::new();
    for (size, build) in ENTRIES {
        sides.push(Side::new(build, cpu).with_context(|| format!("entries of {size}"))?);
    }
    let rows = ENTRIES.map(|(size, _)| DIRECTIONS.map(|direction| row(direction, size)));
    let columns = FLOWS.map(|(flows, _)| WAYS.map(|way| format!("{flows}, {way}")));
    let mut rounds = Rounds::new(rows.as_flattened(), columns.as_flattened(), Better::Less);
    for (column, (_, flows)) in FLOWS.into_iter().enumerate() {
        for side in &mut sides {
            side.grow(flows, packets)?;
        }
        for round in 0..plan.rounds {
            for place in turns(round, sides.len()) {
                plan.interrupt.check()?;
                for direction in 0..DIRECTIONS.len() {
                    let costs = sides[place].costs(direction)?;
                    for (way, cost) in costs.into_iter().enumerate() {
                        let row = place * DIRECTIONS.len() + direction;
                        rounds.add(round, row, column * WAYS.len() + way, cost);
                    }
                }
            }
        }
    }
    for side in &sides {
        note(&side.crowd.stand, checked);
    }
    let chart = rounds.chart(TITLE, UNIT, "flows", Shape::Bars, None);
    Ok((chart, goals(&rounds)))
}

impl Side {
    fn new(build: Build, cpu: usize) -> Result<Self> {
        let [.., (_, most)] = FLOWS;
        let mut crowd = Crowd::new(build, most)?;
        Ok(Self {
            beside: Beside::new(&mut crowd.stand, cpu)?,
            crowd,
            legs: [Vec::new(), Vec::new()],
        })
    }

    /// Makes it so many connections, and at least `packets` segments of each direction.
    fn grow(&mut self, flows: u32, packets: u32) -> Result<()> {
        self.crowd.grow(flows)?;
        let [request, _, reply, _] = ROWS;
        for (row, legs) in [request, reply].into_iter().zip(&mut self.legs) {
            *legs = self.crowd.segments(row, flows, packets)?;
            self.beside.learn(&self.crowd.stand, legs)?;
        }
        Ok(())
    }

    /// Nanoseconds of a packet of a direction, alone and beside the other one.
    fn costs(&mut self, direction: usize) -> Result<[f64; 2]> {
        let stand = &mut self.crowd.stand;
        let (own, other) = (&self.legs[direction], &self.legs[1 - direction]);
        stand.send_all(own)?;
        let alone = stand.cost(own)?;
        let both = self.beside.cost(stand, own, other)?;
        Ok([alone.program, both.program])
    }
}

fn row(direction: &str, size: &str) -> String {
    format!("{direction}, entry of {size}")
}

/// What the other direction costs, and what the second line changes about it.
fn goals(rounds: &Rounds) -> Vec<Goal> {
    let [small, large] = ENTRIES.map(|(size, _)| size);
    let mut goals = Vec::new();
    for (place, (flows, _)) in FLOWS.iter().enumerate() {
        let [alone, both] = [0, 1].map(|way| place * WAYS.len() + way);
        for direction in DIRECTIONS {
            let [one, other] = [small, large].map(|size| row(direction, size));
            let what =
                format!("program, {direction}, both directions at once / alone, {flows} flows");
            goals.push(Goal::cost(what, rounds.growth(&one, alone, both)));
            for (column, way) in [(alone, WAYS[0]), (both, WAYS[1])] {
                let what = format!(
                    "program, {direction}, {way}, entry of {large} / {small}, {flows} flows"
                );
                // Of costs the better one is the divisor.
                goals.push(Goal::cost(what, rounds.ratio(&one, &other, column)));
            }
        }
    }
    goals
}
