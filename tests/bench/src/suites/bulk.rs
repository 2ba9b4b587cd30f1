//! Long connections, with a CPU that is the load balancer's own.

use anyhow::Result;
use lb_tests::topology::path::Path;

use crate::{
    Plan,
    measure::{Better, Chart, Rounds, Shape, turns},
    path::conntrack::Room,
    report::{Goal, Suite},
    suites::connections::stands,
    tcp::{
        answer::PLAIN,
        stand::{Ask, Stand},
        way::{self, Way},
    },
};

const WAYS: [Way; 9] = [
    Way::Bare,
    Way::Lb,
    Way::Route,
    Way::Nft,
    Way::Flowtable,
    Way::Ipvs,
    Way::Haproxy,
    Way::HaproxySplice,
    Way::Nginx,
];
/// Streams at a time, with the name of that number.
const STREAMS: [(u16, &str); 2] = [(1, "1 stream"), (8, "8 streams")];
/// Bytes of all streams in a turn, with `--quick`, and before the first one.
const TURN: u64 = 1 << 30;
const QUICK: u64 = 1 << 26;
const WARM: u64 = 1 << 24;

const METHOD: &str = "A client downloads 1 GiB over 1 connection, or over 8 at a time, and checks every byte. The load balancer has a CPU of \
     its own: the NAPIs of its NICs have threads there, and its process is bound to it; both ends and the wire are on \
     another CPU. Frames have the size of the wire and full checksums when they reach its NICs, which have no offloads: the kernel \
     and the proxies compute checksums and cut segments in software. Gbit/s per core is by the \
     CPU time of these threads, of the process and of the CPU's ksoftirqd; the ends are what limits Gbit/s themselves. \
     Buffers have 1 MB over all streams. The time of the whole path is that, and both ends and the wire, which copies \
     what a kernel sends into it, and not what a program of XDP sends. Other work on \
     the machine makes bare and lb dearer by more than half, and proxies hardly: this suite wants a quiet one.";

pub(crate) fn measure(plan: Plan<'_>) -> Result<Suite> {
    let (there, missing) = way::present(&WAYS);
    let room = Room::make();
    let paths: Vec<Path> = there.iter().map(|_| Path::build()).collect::<Result<_>>()?;
    let mut stands = stands(&there, &paths, PLAIN)?;
    let long = Long::measure(&mut stands, plan)?;
    drop(room);
    Ok(Suite {
        name: "bulk",
        method: METHOD.to_owned(),
        charts: long.charts("bare"),
        checked: vec![format!("{} MB, all of it right", long.megabytes())],
        goals: long.goals(),
        contestants: there.iter().map(|way| way.shown()).collect::<Result<_>>()?,
        missing,
    })
}

/// What long connections took.
pub(crate) struct Long {
    rate: Rounds,
    /// By the CPU time of the load balancer.
    pub(crate) own: Rounds,
    whole: Rounds,
    again: Rounds,
    bytes: u64,
}

impl Long {
    /// Gives every carrier a CPU of its own; then the turns of all.
    ///
    /// # Errors
    ///
    /// When a connection fails, or there is only one CPU.
    pub(crate) fn measure(stands: &mut [Stand<'_>], plan: Plan<'_>) -> Result<Self> {
        let names: Vec<&str> = stands.iter().map(|stand| stand.way.name()).collect();
        let rounds = |better| Rounds::new(names.clone(), STREAMS.map(|(_, name)| name), better);
        let mut long = Self {
            rate: rounds(Better::More),
            own: rounds(Better::More),
            whole: rounds(Better::Less),
            again: rounds(Better::Less),
            bytes: 0,
        };
        for stand in &mut *stands {
            stand.part()?;
            stand.run(ask(1, WARM))?;
        }
        let all = if plan.quick { QUICK } else { TURN };
        for round in 0..plan.rounds {
            for (column, (streams, _)) in STREAMS.into_iter().enumerate() {
                for place in turns(round, stands.len()) {
                    plan.interrupt.check()?;
                    let stand = &mut stands[place];
                    stand.cap_buffers(streams)?;
                    let taken = stand.run(ask(streams, all))?;
                    let gigabits = 8e-9 * taken.told.bytes as f64;
                    long.rate
                        .add(round, place, column, gigabits / taken.told.seconds);
                    long.own.add(round, place, column, gigabits / taken.carrier);
                    long.whole.add(round, place, column, taken.whole / gigabits);
                    long.again
                        .add(round, place, column, taken.again as f64 / gigabits);
                    long.bytes += taken.told.bytes;
                }
            }
        }
        Ok(long)
    }

    pub(crate) fn charts(&self, reference: &str) -> Vec<Chart> {
        let reference = Some(reference);
        vec![
            self.own.chart(
                "Download per core of the load balancer",
                "Gbit/s",
                "",
                Shape::Bars,
                reference,
            ),
            self.rate
                .chart("Download", "Gbit/s", "", Shape::Bars, reference),
            self.whole.chart(
                "CPU time of the whole path",
                "s/Gbit",
                "",
                Shape::Bars,
                reference,
            ),
            self.again
                .chart("Segments sent again", "1/Gbit", "", Shape::Bars, None),
        ]
    }

    /// What was carried, in units of 1e6 bytes.
    pub(crate) const fn megabytes(&self) -> u64 {
        self.bytes / 1_000_000
    }

    /// HAProxy in the form that is better for it.
    fn goals(&self) -> Vec<Goal> {
        let columns = STREAMS.into_iter().enumerate();
        let goals = columns.map(|(column, (_, streams))| {
            let forms = [Way::Haproxy, Way::HaproxySplice];
            let ratios = forms.map(|form| self.own.ratio("lb", form.name(), column));
            let least = ratios.into_iter().flatten();
            Goal::new(
                format!("bulk per core, lb / the better form of HAProxy, {streams}"),
                [4.0, 5.0],
                least.min_by(|one, other| one.median.total_cmp(&other.median)),
            )
        });
        goals.collect()
    }
}

fn ask(streams: u16, bytes: u64) -> Ask {
    Ask {
        answer: bytes / u64::from(streams),
        concurrency: streams,
        millis: 0,
    }
}
