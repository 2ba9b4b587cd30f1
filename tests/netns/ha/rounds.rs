//! keepalived moves the service each time the box that has it loses its power: round by round, with 1,400 flows.

use std::{
    net::UdpSocket,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    servers::{echo::EchoServer, keepalived::Keepalived},
    topology::{BoxName, MARKER, Topology, TwoBoxes},
    traffic::{
        conn_pair::Pair,
        dialer::{Dialed, Dialer, PACE},
        talks::{Busy, Talks},
    },
};

use super::{
    BUSY, BUSY_PORT, Boxes, IDLE, IDLE_PORT, PROBE, TAKEN_OVER, names, power_off::ALONE, server,
};

pub(super) const IDLE_COUNT: usize = 1000;
pub(super) const BUSY_COUNT: usize = 200;
/// Between an answer and the next question of a busy connection.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// How long a connection may hear nothing: TCP sends again after 0.2, 0.4, 0.8 and 1.6 s.
pub(super) const HEARD: Duration = Duration::from_secs(6);
/// A SYN that is sent later than this is answered. It is half of that on a machine that has the time.
const ANSWERED: Duration = Duration::from_secs(1);
/// New connections go on for so long after the box that takes over serves.
const AFTER: Duration = Duration::from_secs(1);
/// Between two looks for the marker.
const LOOK: Duration = Duration::from_millis(1);

fn rounds() -> usize {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 20,
        None => 2,
    }
}

/// The box that serves loses its power, and comes back as the other one: each time every flow lives on, and new connections
/// are answered within a second.
#[privileged_test]
fn no_flow_is_lost_through_rounds_of_power_off() -> Result<()> {
    let pair = Topology::pair()?;
    let mut run = Run::start(&pair)?;
    let mut took = Vec::new();
    for round in 0..rounds() {
        let active = BoxName::ALL[round % 2];
        let context = || format!("round {round}, without {}", active.name());
        took.push(run.power_off(active).with_context(context)?);
        run.power_on(active).with_context(context)?;
    }
    print(&took);
    Ok(())
}

/// How long after the power was off.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// The other box had the marker.
    marker: Duration,
    /// The first SYN was sent after which all were answered.
    answered: Duration,
}

/// Half of the rounds, and all of them.
fn print(took: &[Took]) {
    let column = |name, of: fn(&Took) -> Duration| {
        let mut times: Vec<_> = took.iter().map(of).collect();
        times.sort_unstable();
        let (half, most) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{name}: p50 {half:.0?}, at most {most:.0?} in {} rounds",
            times.len()
        );
    };
    column(
        "from the power-off to the marker at the other box",
        |took| took.marker,
    );
    column("to the SYN from which on all are answered", |took| {
        took.answered
    });
}

/// Both boxes with keepalived, and the flows through them.
struct Run<'t> {
    pair: &'t TwoBoxes,
    boxes: Boxes<'t>,
    keepalived: [Option<Keepalived>; 2],
    idle: Talks,
    busy: Busy,
    /// By XDP, and by the process, which has handed them over.
    named: Vec<Pair>,
    servers: [EchoServer<'t>; 2],
}

impl<'t> Run<'t> {
    fn start(pair: &'t TwoBoxes) -> Result<Self> {
        let first = Keepalived::start(pair, BoxName::Lb1)?;
        poll::until("the marker at lb1", ALONE, || {
            Ok(pair.has_marker(BoxName::Lb1)?.then_some(()))
        })
        .with_context(|| first.log())?;
        let second = Keepalived::start(pair, BoxName::Lb2)?;
        let boxes = Boxes::start_with(pair, &names::both(pair))?;
        let servers = [server(pair, IDLE_PORT)?, server(pair, BUSY_PORT)?];
        let client = pair.client();
        let busy = Talks::open(client, BUSY, BUSY_COUNT, "busy")?;
        Ok(Self {
            pair,
            named: names::open_all(pair, &boxes.first)?,
            boxes,
            keepalived: [Some(first), Some(second)],
            idle: Talks::open(client, IDLE, IDLE_COUNT, "idle")?,
            busy: busy.keep_busy(client, PAUSE)?,
            servers,
        })
    }

    fn power_off(&mut self, active: BoxName) -> Result<Took> {
        let other = active.other();
        let count = IDLE_COUNT + BUSY_COUNT + self.named.len();
        self.boxes.wait_for_replicas(other, count)?;
        self.busy.take().ensure_whole()?;
        let dialer = Dialer::start(self.pair.client(), PROBE)?;
        self.boxes.wait_until_served_by(active, TAKEN_OVER)?;
        let off = Instant::now();
        self.pair.power_off(active)?;
        let marker = thread::scope(|scope| {
            let marker = scope.spawn(|| wait_for_marker(self.pair, other, off));
            self.boxes.lb_mut(active).kill()?;
            let keepalived = self.keepalived[active as usize].take();
            keepalived.context("keepalived runs")?.kill()?;
            marker.join().expect("it does not panic")
        });
        let log = || {
            self.keepalived[other as usize]
                .as_ref()
                .map(Keepalived::log)
        };
        let marker = marker.with_context(|| log().unwrap_or_default())?;
        self.boxes.wait_until_served_by(other, TAKEN_OVER)?;
        thread::sleep(AFTER);
        let answered = answered(&dialer.end()?, off)?;
        self.ensure_alive()?;
        println!(
            "{} has the marker after {marker:.0?}, answers all after {answered:.0?}",
            other.name()
        );
        Ok(Took { marker, answered })
    }

    /// Every flow carries bytes, each to its own server.
    fn ensure_alive(&mut self) -> Result<()> {
        let idle = self.idle.exchange(HEARD);
        idle.ensure_whole()?;
        let busy = self.busy.take();
        busy.ensure_whole()?;
        println!(
            "busy: {} answers, longest {:.0?}",
            busy.answers, busy.longest
        );
        ensure!(
            busy.answers > u64::try_from(BUSY_COUNT)? && busy.longest < HEARD,
            "{busy:?}"
        );
        names::ensure_alive(&self.named)?;
        for server in &self.servers {
            let mixed_up = server.mixed_up();
            ensure!(mixed_up.is_empty(), "{mixed_up:?}");
        }
        Ok(())
    }

    /// The box comes back as the one that stands by.
    fn power_on(&mut self, name: BoxName) -> Result<()> {
        self.pair.power_on(name)?;
        let config = self.boxes.group.config(names::both(self.pair), name);
        self.boxes.lb_mut(name).restart(&config)?;
        self.keepalived[name as usize] = Some(Keepalived::start(self.pair, name)?);
        Ok(())
    }
}

/// The time since `off` at which the box has the marker: then a socket can have it.
fn wait_for_marker(pair: &TwoBoxes, name: BoxName, off: Instant) -> Result<Duration> {
    pair.site(name).lb.inside(|| {
        while off.elapsed() < ALONE {
            if UdpSocket::bind((MARKER, 0)).is_ok() {
                return Ok(off.elapsed());
            }
            thread::sleep(LOOK);
        }
        anyhow::bail!("no marker within {ALONE:?}")
    })?
}

/// How long after `off` the first SYN was sent from which on all were answered. Those of a connection that was opened before, and
/// lost its box before the answer, may have none.
pub(super) fn answered(dialed: &[Dialed], off: Instant) -> Result<Duration> {
    let later = dialed.iter().filter(|dialed| dialed.begun >= off);
    let lost = later.clone().filter(|dialed| !dialed.is_by_first_syn());
    let since = |dialed: &Dialed| dialed.begun.duration_since(off);
    let last = lost.map(since).max().unwrap_or_default() + PACE;
    let after: Vec<_> = later.filter(|dialed| since(dialed) >= last).collect();
    ensure!(
        after.len() > 10 && after.iter().all(|dialed| dialed.answer.is_some()),
        "{after:?}"
    );
    ensure!(
        last < ANSWERED,
        "a SYN was lost {last:?} after the power was off"
    );
    Ok(last)
}
