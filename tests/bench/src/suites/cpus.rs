//! Packets on several CPUs at once: each has a generator, its own flows and its own queue of each NIC.

use anyhow::{Context as _, Result};
use lb_tests::oracle::observe::xdp_packets;

use crate::{
    Plan,
    measure::{Better, Rounds, Shape, turns},
    path::{
        conntrack::Room,
        contestants::{Stand, Who},
        load::{self, Kind, Load, SMALL},
        queues,
        several::Several,
        wire::Ports,
    },
    report::{Goal, Suite},
};

const CONTESTANTS: [Who; 7] = [
    Who::Bare,
    Who::ReferenceNat,
    Who::Lb,
    Who::Route,
    Who::Nft,
    Who::Flowtable,
    Who::Ipvs,
];
/// Flows of all CPUs together.
const FLOWS: u32 = 1 << 16;
/// New connections of all CPUs in a turn, each of a flow that no turn had before; and the first of them.
const NEW: u32 = 60_000;
const FIRST_NEW: u32 = 1 << 20;
const LB: &str = "lb";

const METHOD: &str = "As packets, on 1, 2, 4 CPUs and so on, up to what the machine has: each sends its own part of 64k \
     established flows of 64 B in their order, or its own new connections, at the same time as the others, and wire, contestant and sink run \
     in the soft interrupts of that CPU, in its own queue of every NIC. The rate of a CPU is by its CPU time for a packet, less what \
     generator and sink take alone on as many CPUs; shown is the sum of all. What they share, tables, locks and caches, is what keeps \
     two from twice as much. Packets by queue are counted by the driver of the NIC that the clients are behind. Every packet is checked.";

/// # Errors
///
/// When a contestant does not start, or a packet is lost or wrong.
pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let missing: Vec<_> = CONTESTANTS.iter().filter_map(|who| who.missing()).collect();
    let is_there = |who: &Who| missing.iter().all(|missing| missing.name != who.name());
    let there: Vec<Who> = CONTESTANTS.into_iter().filter(is_there).collect();
    let _room = Room::make();
    let cpus = in_order()?;
    let counts = counts(cpus.len());
    let paths = queues::paths(there.len())?;
    let mut stands = Vec::new();
    for (who, path) in there.iter().zip(&paths) {
        let stand = Stand::build(*who, path, Ports::Stream);
        let mut stand = stand.with_context(|| format!("set up {}", who.name()))?;
        load::open(&mut stand, Kind::Tcp, 0, FLOWS)
            .and_then(|()| load::stay(&mut stand, Kind::Tcp, FLOWS))
            .map_err(|error| stand.explain(error))?;
        stands.push(stand);
    }
    let mut field = Field {
        stands,
        plan,
        right: 0,
        first: FIRST_NEW,
    };
    let measured = field.measure(&cpus, &counts)?;
    Ok(Suite {
        name: "cpus",
        method: METHOD.to_owned(),
        charts: measured.charts(),
        checked: vec![format!(
            "{} packets, each of them right; none lost",
            field.right
        )],
        goals: measured.goals(&counts),
        contestants: there.iter().map(|who| who.shown()).collect::<Result<_>>()?,
        missing,
    })
}

/// The CPUs, of which one alone is the second, as elsewhere.
fn in_order() -> Result<Vec<usize>> {
    let mut cpus = queues::cpus()?;
    if cpus.len() > 1 {
        cpus.swap(0, 1);
    }
    Ok(cpus)
}

/// How many CPUs send: 1, 2, 4, and so on.
fn counts(cpus: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|bit| 1 << bit);
    powers.take_while(|count| *count <= cpus).collect()
}

/// All contestants side by side.
struct Field<'p> {
    stands: Vec<Stand<'p>>,
    plan: Plan<'p>,
    /// Packets that were right at a sink.
    right: u64,
    /// The next new flow.
    first: u32,
}

/// Rates by the number of CPUs, and how even the queues were.
struct Measured {
    established: Rounds,
    new: Rounds,
    even: Rounds,
}

impl Field<'_> {
    fn measure(&mut self, cpus: &[usize], counts: &[usize]) -> Result<Measured> {
        let names = || self.stands.iter().map(|stand| stand.who.name());
        let rounds = || {
            Rounds::new(
                names(),
                counts.iter().map(ToString::to_string),
                Better::More,
            )
        };
        let mut measured = Measured {
            established: rounds(),
            new: rounds(),
            even: rounds(),
        };
        for round in 0..self.plan.rounds {
            for (column, &count) in counts.iter().enumerate() {
                let cpus = &cpus[..count];
                let mut several = Several::new(cpus)?;
                self.turns((round, column), cpus, &mut several, &mut measured)?;
            }
        }
        Ok(measured)
    }

    fn turns(
        &mut self,
        (round, column): (usize, usize),
        cpus: &[usize],
        several: &mut Several,
        measured: &mut Measured,
    ) -> Result<()> {
        let each = if self.plan.quick { 100_000 } else { 1_000_000 };
        let segments = each * u32::try_from(cpus.len())?;
        let established = Load {
            segments,
            ..Load::each(0, FLOWS, Some(SMALL))
        };
        let new = Load::each(self.first, NEW, None);
        self.first += NEW;
        for place in turns(round, self.stands.len()) {
            self.plan.interrupt.check()?;
            let stand = &mut self.stands[place];
            let before = xdp_packets(&stand.path.lb, "eth0")?;
            let rate = several.measure(stand, established);
            let rate = rate.map_err(|error| stand.explain(error))?;
            let after = xdp_packets(&stand.path.lb, "eth0")?;
            let fresh = several.measure(stand, new);
            let fresh = fresh.map_err(|error| stand.explain(error))?;
            self.right += u64::from(segments) + u64::from(NEW);
            let even = evenness(cpus, &before, &after);
            let all = [
                (&mut measured.established, rate),
                (&mut measured.new, fresh),
                (&mut measured.even, even),
            ];
            for (rounds, value) in all {
                if let Some(value) = value {
                    rounds.add(round, place, column, value);
                }
            }
        }
        Ok(())
    }
}

/// What the queue of one of these CPUs had least, as a share of what one had most.
fn evenness(cpus: &[usize], before: &[u64], after: &[u64]) -> Option<f64> {
    let came = cpus.iter().map(|&cpu| {
        let came = after.get(cpu)?.checked_sub(*before.get(cpu)?)?;
        Some(came as f64)
    });
    let came: Vec<f64> = came.collect::<Option<_>>()?;
    let most = came.iter().copied().fold(0.0, f64::max);
    let least = came.iter().copied().fold(f64::INFINITY, f64::min);
    (most > 0.0).then(|| least / most)
}

impl Measured {
    fn charts(&self) -> Vec<crate::measure::Chart> {
        let chart = |rounds: &Rounds, title: &str, unit, reference| {
            rounds.chart(title, unit, "CPUs", Shape::Lines, reference)
        };
        let bare = Some("bare");
        vec![
            chart(&self.established, "Packets of 64 B, 64k flows", "1/s", bare),
            chart(&self.new, "New connections", "1/s", bare),
            chart(
                &self.even,
                "Packets by queue of a NIC, least / most",
                "share",
                None,
            ),
        ]
    }

    /// How many times as much more CPUs carry as one.
    fn goals(&self, counts: &[usize]) -> Vec<Goal> {
        let mut goals = Vec::new();
        for (what, rounds) in [("packets", &self.established), ("new flows", &self.new)] {
            for (column, count) in counts.iter().enumerate().skip(1) {
                for who in [LB, "reference NAT"] {
                    let what = format!("{what}, {count} CPUs / 1, {who}");
                    goals.push(Goal::gain(what, rounds.growth(who, 0, column)));
                }
            }
        }
        if let Some((column, count)) = counts.iter().enumerate().next_back() {
            let what = format!("packets by queue, least / most, {count} CPUs, lb");
            goals.push(Goal::gain(what, self.even.of(LB, column)));
        }
        goals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_doubled_up_to_what_there_is() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(7), [1, 2, 4]);
    }

    #[test]
    fn evenness_is_of_the_queues_that_were_used() {
        let even = |cpus: &[usize]| evenness(cpus, &[10, 0, 5], &[110, 50, 5]);
        assert_eq!(even(&[0]), Some(1.0));
        assert_eq!(even(&[1, 0]), Some(0.5));
        assert_eq!(even(&[0, 2]), Some(0.0));
        assert_eq!(even(&[2]), None);
        assert_eq!(even(&[0, 9]), None);
    }
}
