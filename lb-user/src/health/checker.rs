//! The checker: a thread in a network's cell that keeps asking the network's backends.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher as _, Hasher as _, RandomState},
    mem,
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use tokio::{
    sync::{Semaphore, SemaphorePermit, mpsc, watch},
    task::{self, AbortHandle, LocalSet},
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    CheckOutcome, CheckTarget, HealthVerdict, Report,
    all_silent::NetworkSilence,
    carrier_gate::{CARRIER_POLL_INTERVAL, CarrierGate},
    check::{Checked, check},
    pace::ThreadLag,
    probe::{self, Probe},
    state::Course,
    suspicion::{SUSPECTED_TIMEOUT, Suspicion},
};
use crate::network::{carrier::Carrier, cell_thread, neighbour::Side};

/// Suspected backends that wait for their thread at most.
const MAX_SUSPECTS: usize = 4096;
/// How long a neighbour has to answer a solicitation, before it is checked again.
const RESOLVES: Duration = Duration::from_millis(300);

/// What the checks of all networks share.
#[derive(Clone, Debug)]
pub struct Commons {
    /// Where every result is sent.
    pub reports: mpsc::UnboundedSender<Report>,
    /// One for each check that may be on its way.
    pub turns: Arc<Semaphore>,
}

/// The checks of one network. They end with it.
#[derive(Debug)]
pub struct Checker {
    targets: Option<watch::Sender<Vec<CheckTarget>>>,
    /// Where to send the ids of backends that are suspected.
    suspects: mpsc::Sender<u32>,
    carrier: Carrier,
    thread: Option<JoinHandle<()>>,
}

impl Checker {
    /// Starts the thread that checks the backends of `network` from `side`, and out of `nic`, an index in the
    /// calling thread's namespace; it has neighbours resolved anew through `neighbours`. It has nothing to do
    /// until [`Self::set`].
    ///
    /// # Errors
    ///
    /// If the cell cannot be entered, or the thread not be started.
    pub fn start(
        side: Side,
        nic: u32,
        network: &str,
        commons: Commons,
        neighbours: mpsc::Sender<IpAddr>,
    ) -> Result<Self> {
        let carrier = Carrier::open(nic).context("ask for the carrier of a NIC")?;
        let line = CarrierGate::new(network.to_owned(), carrier.clone());
        let (targets, wanted) = watch::channel(Vec::new());
        let (suspects, suspected) = mpsc::channel(MAX_SUSPECTS);
        let wanted = Wanted {
            targets: wanted,
            suspects: suspected,
        };
        let (name, cell) = (network.to_owned(), side.cell);
        let work = move |runtime| {
            LocalSet::new().block_on(&runtime, run(name, line, wanted, commons, neighbours));
        };
        let thread = format!("health-{network}");
        let thread = cell_thread::start_listener(thread, cell.as_deref(), work)
            .with_context(|| format!("check the backends of network {network}"))?;
        Ok(Self {
            targets: Some(targets),
            suspects,
            carrier,
            thread: Some(thread),
        })
    }

    /// From now on checks go out of the NIC with this index.
    pub fn follow(&self, nic: u32) {
        self.carrier.follow(nic);
    }

    /// Checks a backend at once, if it is up: it has left a client without an answer.
    pub fn suspect(&self, backend: u32) {
        // One that finds no room is suspected again with the next client.
        let _full = self.suspects.try_send(backend);
    }

    /// Checks these from now on, and no others. A target that is as before goes on as before; another
    /// begins with what was saved of it. Of those that are checked no more, reports may come until the thread has seen it, which does not wait for any check.
    pub fn set(&self, targets: Vec<CheckTarget>) {
        if let Some(sender) = &self.targets {
            // The receiver lives as long as the thread, which only the drop ends.
            sender.send_replace(targets);
        }
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        // The thread sees that no targets will come any more, and drops its checks.
        drop(self.targets.take());
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// What a checker is to do.
struct Wanted {
    targets: watch::Receiver<Vec<CheckTarget>>,
    suspects: mpsc::Receiver<u32>,
}

/// What all checks of the network share.
struct NetworkChecks {
    network: String,
    line: CarrierGate,
    pace: ThreadLag,
    silence: NetworkSilence,
    commons: Commons,
    /// Where to have a neighbour resolved anew.
    neighbours: mpsc::Sender<IpAddr>,
    /// Whether it was logged that checks wait for others.
    said: Cell<bool>,
}

impl NetworkChecks {
    /// A turn, which is free at once unless the process may have too few files open.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let turns = &self.commons.turns;
        if let Ok(turn) = turns.try_acquire() {
            return Some(turn);
        }
        if !self.said.replace(true) {
            tracing::warn!(
                network = self.network,
                "checks are late: so many at a time need more open files than lb may have; raise LimitNOFILE of \
                 the unit"
            );
        }
        turns.acquire().await.ok()
    }
}

/// A check that was begun.
struct BegunCheck {
    start: Instant,
    /// When its last connection was begun: it may take two.
    connect: Instant,
    /// What the thread had lost of its time before.
    late: Duration,
    timeout: Duration,
}

/// The silence of one backend.
#[derive(Default)]
struct Silence {
    /// When the first of the checks in a row began that had no answer at all.
    since: Option<Instant>,
    /// Whether a verdict has waited for one more.
    has_waited: bool,
}

impl NetworkChecks {
    /// Whether a check says anything of the backend, and not of this host or of the way that all checks take.
    fn counts(
        &self,
        checked: &Checked,
        attempt: &BegunCheck,
        course: &Course,
        silence: &mut Silence,
    ) -> bool {
        let &BegunCheck {
            start,
            connect,
            late,
            timeout,
        } = attempt;
        if checked.is_answered {
            self.silence.note_answer(connect, Instant::now());
            *silence = Silence::default();
        }
        if !matches!(checked.outcome, CheckOutcome::Dead(_)) {
            return true;
        }
        if !self.line.has_held_since(start) || !self.pace.was_kept(late, timeout, &self.network) {
            return false;
        }
        if checked.is_answered {
            return true;
        }
        let since = *silence.since.get_or_insert(start);
        let waits = !silence.has_waited
            && course.is_about_to_die()
            && self.silence.is_of_all(since, start, &self.network);
        silence.has_waited |= waits;
        !waits
    }
}

/// A target that is being checked.
struct RunningCheck {
    target: Rc<CheckTarget>,
    suspicion: Rc<Suspicion>,
    work: AbortHandle,
}

impl Drop for RunningCheck {
    fn drop(&mut self) {
        self.work.abort();
    }
}

/// Follows the targets until there is no sender of them any more.
async fn run(
    network: String,
    line: CarrierGate,
    mut wanted: Wanted,
    commons: Commons,
    neighbours: mpsc::Sender<IpAddr>,
) {
    let shared = Rc::new(NetworkChecks {
        network,
        line,
        pace: ThreadLag::new(Instant::now()),
        silence: NetworkSilence::default(),
        commons,
        neighbours,
        said: Cell::new(false),
    });
    let mut running = BTreeMap::new();
    let mut looks = interval(CARRIER_POLL_INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            changed = wanted.targets.changed() => {
                if changed.is_err() { return; }
                let targets = wanted.targets.borrow_and_update().clone();
                let before = mem::take(&mut running);
                if before.is_empty() { shared.pace.begin(Instant::now()); }
                running = follow(before, targets, &shared);
            }
            Some(backend) = wanted.suspects.recv() => begin_at_once(&running, backend),
            _ = looks.tick(), if !running.is_empty() => {
                shared.line.look();
                shared.pace.look(Instant::now());
            }
        }
    }
}

/// Has the check of a backend begin at once.
fn begin_at_once(running: &BTreeMap<u32, RunningCheck>, backend: u32) {
    let is_of = |check: &&RunningCheck| {
        let mut backends = check.target.backends();
        backends.any(|id| id == backend)
    };
    if let Some(check) = running.values().find(is_of) {
        check.suspicion.begin(Instant::now());
    }
}

/// Begins what is new, and ends what is not wanted any more.
fn follow(
    mut before: BTreeMap<u32, RunningCheck>,
    targets: Vec<CheckTarget>,
    shared: &Rc<NetworkChecks>,
) -> BTreeMap<u32, RunningCheck> {
    let mut running = BTreeMap::new();
    for target in targets {
        let backend = target.backend;
        let known = before.remove(&backend);
        let is_same = |known: &RunningCheck| is_same(&known.target, &target);
        let now = match known.filter(is_same) {
            Some(known) => known,
            None => begin(target, shared),
        };
        running.insert(backend, now);
    }
    let addresses = running.values().map(|one| one.target.address.ip());
    let addresses: BTreeSet<IpAddr> = addresses.collect();
    shared.silence.follow(addresses.len());
    running
}

/// Whether a target is checked as before, and for the same backends; what was saved is only for the beginning.
fn is_same(one: &CheckTarget, other: &CheckTarget) -> bool {
    one.backends().eq(other.backends()) && one.is_alike(other)
}

fn begin(target: CheckTarget, shared: &Rc<NetworkChecks>) -> RunningCheck {
    let (target, suspicion) = (Rc::new(target), Rc::<Suspicion>::default());
    let work = keep_asking(Rc::clone(&target), Rc::clone(&suspicion), Rc::clone(shared));
    RunningCheck {
        target,
        suspicion,
        work: task::spawn_local(work).abort_handle(),
    }
}

/// Checks one target on its schedule, and when it is suspected, never twice at a time.
async fn keep_asking(target: Rc<CheckTarget>, suspicion: Rc<Suspicion>, shared: Rc<NetworkChecks>) {
    let probe = probe::of(&target.health.check).map_err(|error| format!("{error:#}"));
    let mut course = Course::new(&target.health, &target.saved, Instant::now());
    let mut due = course.first(Instant::now(), chance());
    let mut could_ask = true;
    let mut was_sought = false;
    let mut silence = Silence::default();
    loop {
        let is_suspected = suspicion.wait(due).await;
        if is_suspected && course.standing().verdict != HealthVerdict::Up {
            continue;
        }
        let limit = match is_suspected {
            true => target.health.timeout.min(SUSPECTED_TIMEOUT),
            false => target.health.timeout,
        };
        let Some(_turn) = shared.turn().await else {
            return;
        };
        let start = Instant::now();
        let (mut connect, mut late) = (start, shared.pace.look(start));
        let mut asked = ask(&target, probe.as_deref(), limit).await;
        let is_silent = matches!(
            asked,
            Ok(Checked {
                was_silent: true,
                ..
            })
        );
        if is_silent && course.standing().verdict == HealthVerdict::Up {
            // It may only be at another MAC: it is dead if it does not answer there either.
            let _full = shared.neighbours.try_send(target.next_hop);
            if !was_sought && (is_suspected || course.is_about_to_leave()) {
                sleep(RESOLVES).await;
                connect = Instant::now();
                late = shared.pace.look(connect);
                asked = ask(&target, probe.as_deref(), limit).await;
            }
        }
        was_sought = is_silent;
        let attempt = BegunCheck {
            start,
            connect,
            late,
            timeout: limit,
        };
        match asked {
            Ok(checked) if !shared.counts(&checked, &attempt, &course, &mut silence) => {}
            Ok(Checked {
                outcome,
                took,
                is_answered,
                agreed,
                open,
                ..
            }) => {
                could_ask = true;
                let changed = course.note(outcome.verdict(), Instant::now());
                for backend in target.backends() {
                    let report = Report {
                        backend,
                        address: target.address,
                        is_suspected,
                        outcome: outcome.clone(),
                        is_answered,
                        took,
                        agreed,
                        changed,
                        standing: course.standing().clone(),
                    };
                    if shared.commons.reports.send(report).is_err() {
                        return;
                    }
                }
                open.close().await;
            }
            Err(error) => {
                if could_ask {
                    tracing::warn!(
                        network = shared.network,
                        backend = %target.address,
                        "not checked, because of this host: its verdict stays; trying again: {error:#}"
                    );
                }
                could_ask = false;
            }
        }
        due = course.next(start, Instant::now(), chance());
    }
}

/// Checks within `limit`, if there is a probe.
async fn ask(
    target: &CheckTarget,
    probe: Result<&dyn Probe, &String>,
    limit: Duration,
) -> Result<Checked> {
    let probe = probe.map_err(|error| anyhow!("{error}"))?;
    check(target, probe, limit).await
}

/// A number from 0 to below 1, of no use to cryptography.
fn chance() -> f64 {
    let bits = RandomState::new().build_hasher().finish() >> 11;
    #[expect(
        clippy::cast_precision_loss,
        reason = "53 bits, as many as the mantissa has"
    )]
    let bits = bits as f64;
    bits / (1_u64 << 53) as f64
}
