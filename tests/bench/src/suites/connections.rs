//! Short connections, everything on one CPU.

use anyhow::{Context as _, Result};
use lb_tests::topology::path::Path;

use crate::{
    Plan,
    measure::{Better, Rounds, Shape, turns},
    path::conntrack::Room,
    report::{Goal, Suite},
    tcp::{
        answer::{PLAIN, Speech},
        stand::{Ask, Stand},
        way::{self, Way},
    },
};

const WAYS: [Way; 8] = [
    Way::Bare,
    Way::Lb,
    Way::Route,
    Way::Nft,
    Way::Flowtable,
    Way::Ipvs,
    Way::Haproxy,
    Way::Nginx,
];
/// Bytes of an answer.
const ANSWER: u64 = 270;
/// Connections at a time.
const CONCURRENCY: u16 = 32;
/// How long a turn takes, and with `--quick`, in milliseconds; and what comes before the first one.
const TURN: u64 = 3000;
const QUICK: u64 = 400;
const WARM: u64 = 200;

const METHOD: &str = "A client opens connections to 32 backends, 32 at a time, each from an address and port that none before had: \
     a request of 50 bytes, an answer of 270, and the server closes first. Every byte is checked; a connection that fails fails \
     the run. Client, server, wire and contestant run on one CPU, so no other CPU is woken. The CPU time of a connection \
     is that of everything: both ends, the kernel's work for them, and the contestant. The duration of the handshake is that of \
     connect() in the client, from the SYN to the SYN-ACK, and with 32 at a time most of it is waiting for the CPU. No TIME_WAIT at the server; reno; \
     TCP timestamps on.";

pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let (there, missing) = way::present(&WAYS);
    let room = Room::make();
    let paths: Vec<Path> = there.iter().map(|_| Path::build()).collect::<Result<_>>()?;
    let mut stands = stands(&there, &paths, PLAIN)?;
    let short = Short::measure(&mut stands, plan, ANSWER)?;
    let made = short.made;
    drop(room);
    Ok(Suite {
        name: "connections",
        method: METHOD.to_owned(),
        charts: short.charts(),
        checked: vec![format!(
            "{made} connections, each with the right answer; none failed"
        )],
        goals: vec![
            Goal::new(
                "connections per second of CPU, lb / HAProxy",
                [1.6, 1.7],
                short.cpu.ratio("lb", "HAProxy", 0),
            ),
            short.slowest_handshakes("lb", "HAProxy"),
        ],
        contestants: there.iter().map(|way| way.shown()).collect::<Result<_>>()?,
        missing,
    })
}

/// Each way in a path of its own, all at once.
///
/// # Errors
///
/// When one cannot be set up.
pub(crate) fn stands<'p>(
    ways: &[Way],
    paths: &'p [Path],
    speech: Speech,
) -> Result<Vec<Stand<'p>>> {
    let both = ways.iter().zip(paths);
    both.map(|(way, path)| {
        let speech = match way {
            Way::LbBoundTwo => way.speech(),
            _ => speech,
        };
        Stand::build(*way, path, speech).with_context(|| format!("set up {}", way.name()))
    })
    .collect()
}

/// What short connections took.
pub(crate) struct Short {
    rate: Rounds,
    /// Where others use the machine as well, this is what repeats.
    pub(crate) cpu: Rounds,
    pub(crate) time: Rounds,
    /// The TCP handshake alone.
    handshake: Rounds,
    /// Connections of all ways.
    pub(crate) made: u64,
}

impl Short {
    /// The turns of all on one CPU, with answers of this many bytes.
    ///
    /// # Errors
    ///
    /// When a connection fails.
    pub(crate) fn measure(stands: &mut [Stand<'_>], plan: Plan<'_>, answer: u64) -> Result<Self> {
        let names: Vec<&str> = stands.iter().map(|stand| stand.way.name()).collect();
        let mut rate = Rounds::new(names.clone(), ["32 at a time"], Better::More);
        let mut cpu = Rounds::new(names.clone(), ["32 at a time"], Better::Less);
        let times = || Rounds::new(names.clone(), ["half of all", "99 of 100"], Better::Less);
        let (mut time, mut handshake) = (times(), times());
        let ask = |millis| Ask {
            answer,
            concurrency: CONCURRENCY,
            millis,
        };
        for stand in &mut *stands {
            stand.run(ask(WARM))?;
        }
        for round in 0..plan.rounds {
            for place in turns(round, stands.len()) {
                plan.interrupt.check()?;
                let millis = if plan.quick { QUICK } else { TURN };
                let taken = stands[place].run(ask(millis))?;
                let told = taken.told;
                let connections = told.connections as f64;
                rate.add(round, place, 0, connections / told.seconds);
                cpu.add(round, place, 0, taken.whole * 1e6 / connections);
                for (rounds, times) in [(&mut time, told.whole), (&mut handshake, told.handshake)] {
                    rounds.add(round, place, 0, times.half);
                    rounds.add(round, place, 1, times.most);
                }
            }
        }
        Ok(Self {
            rate,
            cpu,
            time,
            handshake,
            made: stands.iter().map(|stand| stand.made).sum(),
        })
    }

    /// What one way's slowest handshakes but one of a hundred take beside another's.
    pub(crate) fn slowest_handshakes(&self, one: &str, other: &str) -> Goal {
        let what = format!("99 of 100 TCP handshakes take, {one} / {other}");
        // Of costs the better one is the divisor.
        Goal::cost(what, self.handshake.ratio(other, one, 1))
    }

    pub(crate) fn charts(&self) -> Vec<crate::measure::Chart> {
        let bare = Some("bare");
        vec![
            self.rate.chart("Connections", "1/s", "", Shape::Bars, bare),
            self.cpu
                .chart("CPU time of a connection", "us", "", Shape::Bars, bare),
            self.time
                .chart("Duration of a connection", "us", "", Shape::Bars, bare),
            self.handshake.chart(
                "Duration of the TCP handshake alone",
                "us",
                "",
                Shape::Bars,
                bare,
            ),
        ]
    }
}
