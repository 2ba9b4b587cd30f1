//! Packets: small and large segments of many flows through one CPU, from the wire to the wire.

use anyhow::{Context as _, Result};
use lb_tests::topology::path::Path;

use crate::{
    Plan,
    measure::{Better, Rounds, Shape, Spread, turns},
    path::conntrack::Room,
    path::contestants::{Stand, Who},
    path::load::{self, LARGE, Load, SMALL},
    path::wire::Ports,
    report::{Goal, Suite},
};

/// In their order in tables; a contestant that this machine does not have is left out, and named.
const CONTESTANTS: [Who; 7] = [
    Who::Bare,
    Who::ReferenceNat,
    Who::Lb,
    Who::Route,
    Who::Nft,
    Who::Flowtable,
    Who::Ipvs,
];

/// Flows, and the name of that number. With `--quick` the last is left out.
const FLOWS: [(u32, &str); 3] = [(1 << 10, "1k"), (1 << 16, "64k"), (1_000_000, "1M")];
/// From one flow to the next, for another order than that in which they began: a prime number.
const SCATTERED: u32 = 2_654_435_761;
/// What is sent over established connections: its name, the order, bytes of data.
const KINDS: [(&str, u32, u32); 4] = [
    ("64 B, in the order of their beginning", 1, SMALL),
    ("64 B, scattered", SCATTERED, SMALL),
    ("1518 B, in the order of their beginning", 1, LARGE),
    ("1518 B, scattered", SCATTERED, LARGE),
];
/// New connections in a round, each of a flow that no round had before: fewer than a ring has places.
const NEW: u32 = 60_000;
/// The first of them: behind all that are established.
const FIRST_NEW: u32 = 1 << 20;

const METHOD: &str = "A generator makes valid TCP segments on one CPU, and wire, contestant and sink run in the same CPU's \
     soft interrupts, so that nothing waits and nothing is lost. Connections are opened by a handshake through the \
     contestant. The sink checks every segment: both checksums, length, backend and flow; and once of each connection, with all \
     of them there, that it has stayed with its backend and its SNAT port. What comes to another port counts as lost. ns are CPU time for each segment, less what \
     generator and sink take alone: receiving from the wire, the contestant's work, sending into the wire; NICs have no offloads. The \
     own work of a contestant is what it takes beyond bare. The reference NAT is an XDP program of this tree: one look-up for a packet in a table of \
     both directions, and no states, policy or expiry. Half of the flows \
     go through each of two networks, because a network has 16 SNAT addresses of 56,320 flows at most. New flows are \
     SYNs that no server answers.";

/// # Errors
///
/// When a contestant does not start, or a segment is lost or wrong.
pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let missing: Vec<_> = CONTESTANTS.iter().filter_map(|who| who.missing()).collect();
    let is_there = |who: &Who| missing.iter().all(|missing| missing.name != who.name());
    let there: Vec<Who> = CONTESTANTS.into_iter().filter(is_there).collect();
    let _room = Room::make();
    let paths: Vec<Path> = there.iter().map(|_| Path::build()).collect::<Result<_>>()?;
    let stands = there.iter().zip(&paths).map(|(who, path)| {
        Stand::build(*who, path, Ports::Stream).with_context(|| format!("set up {}", who.name()))
    });
    let mut field = Field {
        stands: stands.collect::<Result<_>>()?,
        plan,
        segments: if plan.quick { 200_000 } else { 2_000_000 },
        right: 0,
    };
    let sizes = if plan.quick { &FLOWS[..2] } else { &FLOWS };
    let (small, charts) = field.established(sizes)?;
    let new = field.new_flows()?;

    let mut goals = goals(&small, &new, sizes);
    goals.extend(field.memory()?);
    let flows = new.chart(
        "First segments of new connections",
        "ns",
        "",
        Shape::Bars,
        Some("bare"),
    );
    Ok(Suite {
        name: "packets",
        method: METHOD.to_owned(),
        charts: charts.into_iter().chain([flows]).collect(),
        checked: vec![format!(
            "{} segments, each of them right; none lost",
            field.right
        )],
        goals,
        contestants: there.iter().map(|who| who.shown()).collect::<Result<_>>()?,
        missing,
    })
}

/// All contestants side by side.
struct Field<'p> {
    stands: Vec<Stand<'p>>,
    plan: Plan<'p>,
    /// Of a measurement.
    segments: u32,
    /// Segments that were right at a sink.
    right: u64,
}

impl Field<'_> {
    /// More and more established connections; the figures of the first kind, and charts of all.
    fn established(
        &mut self,
        sizes: &[(u32, &str)],
    ) -> Result<(Rounds, Vec<crate::measure::Chart>)> {
        let columns = || sizes.iter().map(|(_, name)| *name);
        let mut kinds = KINDS.map(|_| self.empty(columns()));
        let mut before = 0;
        for (column, &(flows, name)) in sizes.iter().enumerate() {
            self.open(before, flows)?;
            before = flows;
            for round in 0..self.plan.rounds {
                for ((_, step, data), rounds) in KINDS.into_iter().zip(&mut kinds) {
                    let load = Load {
                        first: 0,
                        flows,
                        step,
                        data: Some(data),
                        segments: self.segments,
                    };
                    self.round(round, column, load, rounds)
                        .with_context(|| format!("{name} flows"))?;
                }
            }
        }
        let charts = KINDS.iter().zip(&kinds).map(|((name, ..), rounds)| {
            let title = format!("Segments of {name}");
            rounds.chart(title, "ns", "flows", Shape::Lines, Some("bare"))
        });
        let charts = charts.collect();
        let [small, ..] = kinds;
        Ok((small, charts))
    }

    fn new_flows(&mut self) -> Result<Rounds> {
        let mut rounds = self.empty(["new flows"]);
        let mut first = FIRST_NEW;
        for round in 0..self.plan.rounds {
            let load = Load::each(first, NEW, None);
            self.round(round, 0, load, &mut rounds)
                .context("new connections")?;
            first += NEW;
        }
        Ok(rounds)
    }

    /// The turns of all.
    fn round(
        &mut self,
        round: usize,
        column: usize,
        load: Load,
        rounds: &mut Rounds,
    ) -> Result<()> {
        for place in turns(round, self.stands.len()) {
            self.plan.interrupt.check()?;
            let Some(stand) = self.stands.get_mut(place) else {
                continue;
            };
            let spent = load::measure(stand, load).with_context(|| stand.who.name())?;
            self.right += u64::from(load.segments);
            if let Some(spent) = spent {
                rounds.add(round, place, column, spent);
            }
        }
        Ok(())
    }

    fn open(&mut self, from: u32, to: u32) -> Result<()> {
        for stand in &mut self.stands {
            self.plan.interrupt.check()?;
            load::open(stand, from, to)
                .with_context(|| format!("open connections through {}", stand.who.name()))?;
            load::stay(stand, to)
                .with_context(|| format!("connections through {}", stand.who.name()))?;
            self.right += u64::from(to - from) + u64::from(to);
        }
        Ok(())
    }

    fn empty<'n>(&self, columns: impl IntoIterator<Item = &'n str>) -> Rounds {
        let names = self.stands.iter().map(|stand| stand.who.name());
        Rounds::new(names, columns, Better::Less)
    }

    /// What lb's maps take, which are made for somewhat more than a million flows.
    fn memory(&self) -> Result<Option<Goal>> {
        let Some(stand) = self.stands.iter().find(|stand| stand.who == Who::Lb) else {
            return Ok(None);
        };
        let bytes = stand.map_memory()?;
        let for_a_million = bytes / f64::from(crate::path::configurations::ROOM);
        Ok(Some(Goal::new(
            "memory for 1 million ids, MB, without the maps of IPv6 and of hand-overs",
            [110.0, 92.0],
            Spread::of([for_a_million]),
        )))
    }
}

/// What the study of the peers asks for.
fn goals(small: &Rounds, new: &Rounds, sizes: &[(u32, &str)]) -> Vec<Goal> {
    let of_bare = [[0.45, 0.55], [0.38, 0.54], [0.28, 0.37]];
    let mut goals = Vec::new();
    for (column, ((_, name), wanted)) in sizes.iter().zip(of_bare).enumerate() {
        let what = format!("packets, lb / bare, {name} flows");
        goals.push(Goal::new(what, wanted, small.ratio("lb", "bare", column)));
    }
    for (column, (_, name)) in sizes.iter().enumerate() {
        let what = format!("packets, lb / nftables, {name} flows");
        let ratio = small.ratio("lb", "nftables", column);
        goals.push(Goal::new(what, [4.5, 6.0], ratio));
    }
    for (column, (_, name)) in sizes.iter().enumerate() {
        let what = format!("own work, lb / reference NAT, {name} flows");
        let ratio = small.beyond("bare", ["lb", "reference NAT"], column);
        goals.push(Goal::cost(what, ratio));
    }
    let ratio = new.ratio("lb", "nftables", 0);
    goals.push(Goal::new("new flows/s, lb / nftables", [10.0, 20.0], ratio));
    if sizes.len() == FLOWS.len() {
        let growth = small.growth("lb", 0, 2);
        goals.push(Goal::new(
            "path cost at 1M / at 1k flows",
            [2.0, 1.6],
            growth,
        ));
    }
    goals
}
