//! Packets: small and large ones of many flows through one CPU, from the wire to the wire.

mod goals;

use anyhow::{Context as _, Result};

use crate::{
    Plan,
    measure::{Better, Rounds, Shape, Spread, turns},
    path::conntrack::Room,
    path::contestants::{Stand, Who},
    path::load::{self, Kind, LARGE, Load, SMALL},
    path::queues,
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
/// How many of these are measured with UDP, and with IPv6.
const OTHERS: usize = 2;
/// From one flow to the next, for another order than that in which they began: a prime number.
const SCATTERED: u32 = 2_654_435_761;
/// What is sent over established connections.
struct Sent {
    title: &'static str,
    kind: Kind,
    step: u32,
    data: u32,
    /// Of how many of [`FLOWS`].
    sizes: usize,
}

const SMALL_UDP: &str = "Datagrams of UDP, 64 B, in the order of their beginning";
const SMALL6: &str = "Segments by IPv6, 84 B, in the order of their beginning";
const KINDS: [Sent; 6] = [
    tcp(
        "Segments of 64 B, in the order of their beginning",
        1,
        SMALL,
    ),
    tcp("Segments of 64 B, scattered", SCATTERED, SMALL),
    tcp(
        "Segments of 1518 B, in the order of their beginning",
        1,
        LARGE,
    ),
    tcp("Segments of 1518 B, scattered", SCATTERED, LARGE),
    other(SMALL_UDP, Kind::Udp),
    other(SMALL6, Kind::Tcp6),
];

const fn tcp(title: &'static str, step: u32, data: u32) -> Sent {
    Sent {
        title,
        kind: Kind::Tcp,
        step,
        data,
        sizes: FLOWS.len(),
    }
}

/// With as few data as it can have.
const fn other(title: &'static str, kind: Kind) -> Sent {
    Sent {
        title,
        kind,
        step: 1,
        data: kind.small(),
        sizes: OTHERS,
    }
}

/// New connections in a round, each of a flow that no round had before: fewer than a ring has places.
const NEW: u32 = 60_000;
/// The first of them: behind all that are established.
const FIRST_NEW: u32 = 1 << 20;

const METHOD: &str = "A generator makes valid packets on one CPU, and wire, contestant and sink run in the same CPU's \
     soft interrupts, so that nothing waits and nothing is lost. Connections are opened by a handshake through the \
     contestant, those of UDP by an empty datagram each way. The sink checks every packet: checksums, length, backend and flow; and once of each connection, with all \
     of them there, that it has stayed with its backend and its SNAT port. What comes to another port counts as lost. ns are CPU time for each packet, less what \
     generator and sink take alone: receiving from the wire, the contestant's work, sending into the wire; NICs have no offloads. The \
     own work of a contestant is what it takes beyond bare. The reference NAT is an XDP program of this tree: one look-up for a packet in a table of \
     both directions, and no states, policy or expiry. Half of the flows \
     go through each of two networks. New flows are \
     SYNs that no server answers.";

/// # Errors
///
/// When a contestant does not start, or a segment is lost or wrong.
pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let missing: Vec<_> = CONTESTANTS.iter().filter_map(|who| who.missing()).collect();
    let is_there = |who: &Who| missing.iter().all(|missing| missing.name != who.name());
    let there: Vec<Who> = CONTESTANTS.into_iter().filter(is_there).collect();
    let _room = Room::make();
    let paths = queues::paths(there.len())?;
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
    let kinds = field.established(sizes)?;
    let new = field.new_flows()?;

    let charts = KINDS.iter().zip(&kinds);
    let charts = charts
        .map(|(sent, rounds)| rounds.chart(sent.title, "ns", "flows", Shape::Lines, Some("bare")));
    let mut goals = goals::goals(&kinds, &new, sizes);
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
        charts: charts.chain([flows]).collect(),
        checked: vec![format!(
            "{} packets, each of them right; none lost",
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
    /// Packets that were right at a sink.
    right: u64,
}

impl Field<'_> {
    /// More and more established connections; the figures of each kind.
    fn established(&mut self, sizes: &[(u32, &str)]) -> Result<Vec<Rounds>> {
        let columns = |count| sizes.iter().take(count).map(|(_, name)| *name);
        let mut kinds: Vec<_> = KINDS
            .iter()
            .map(|sent| self.empty(columns(sent.sizes)))
            .collect();
        let mut before = 0;
        for (column, &(flows, name)) in sizes.iter().enumerate() {
            self.open(Kind::Tcp, before, flows)?;
            if column < OTHERS {
                self.open(Kind::Udp, before, flows)?;
                self.open(Kind::Tcp6, before, flows)?;
            }
            before = flows;
            for round in 0..self.plan.rounds {
                for (sent, rounds) in KINDS.iter().zip(&mut kinds) {
                    if column >= sent.sizes {
                        continue;
                    }
                    let load = Load {
                        kind: sent.kind,
                        first: 0,
                        flows,
                        step: sent.step,
                        data: Some(sent.data),
                        segments: self.segments,
                    };
                    self.round(round, column, load, rounds)
                        .with_context(|| format!("{name} flows"))?;
                }
            }
        }
        Ok(kinds)
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

    /// The turns of all that take packets of this kind.
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
            if !stand.who.takes(load.kind) {
                continue;
            }
            let spent = load::measure(stand, load);
            let spent = spent.map_err(|error| stand.explain(error))?;
            self.right += u64::from(load.segments);
            if let Some(spent) = spent {
                rounds.add(round, place, column, spent);
            }
        }
        Ok(())
    }

    fn open(&mut self, kind: Kind, from: u32, to: u32) -> Result<()> {
        let stands = self.stands.iter_mut();
        for stand in stands.filter(|stand| stand.who.takes(kind)) {
            self.plan.interrupt.check()?;
            load::open(stand, kind, from, to)
                .with_context(|| format!("open connections ({kind:?})"))
                .and_then(|()| load::stay(stand, kind, to))
                .map_err(|error| stand.explain(error))?;
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
            [100.0, 90.0],
            Spread::of([for_a_million]),
        )))
    }
}
