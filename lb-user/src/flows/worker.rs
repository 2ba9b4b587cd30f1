//! The thread: passes over the table, in batches of CPU time.

use std::{
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        event::FlowEvent,
        flow::Flow,
        snat::{FLOWS_PER_ADDRESS, base},
    },
};
use nix::time::ClockId;
use tokio::sync::oneshot;

use super::{
    ExpiryCounts, ExpiryOrder,
    doubts::Doubts,
    evict::queue::Cuts,
    expire::{ClosedFlow, Marked, Marks, mark, settle},
    idle::{Policy, Ticks, age, ticks},
    keepalive::{Keepalive, next_hops::NextHops, round_robin::Turns},
    map_cache::MapCache,
    reason::{Cause, Judge},
    reset::sender::{ResetSender, is_loud},
    stuck_claims::Claims,
    syn_repeat::{self, SynRepeats},
    usage_recount::pass::Recount,
};
use crate::{
    dataplane::{
        flows::{FlowOwners, FlowTable, UsageTable, coarse_now},
        grace,
        labels::Labels,
        maps::Maps,
    },
    flows::log::Reporter,
};

/// CPU time after which a batch ends. It is looked at every few steps, so a batch has some more.
pub(crate) const BATCH: Duration = Duration::from_micros(500);
/// Rest between two batches.
pub(crate) const BATCH_PAUSE: Duration = Duration::from_millis(2);
/// Entries that are looked at between two looks at the CPU clock, which is a system call.
pub(crate) const ENTRIES_PER_CLOCK: u32 = 512;
/// Flows that are closed between two of those.
const CLOSES: usize = 8;
/// Flows whose ends are sent something between two of those.
const FRAMES_PER_CLOCK: usize = 4;
/// Marked flows that share a grace period.
const MARKS: usize = 1 << 15;
/// A pass begins that long after the last one did, or after a part of the shortest timeout.
pub(super) const PASS: Duration = Duration::from_secs(1);
const PASSES_PER_TIMEOUT: u32 = 4;

/// The handle is gone, or the thread is to rest.
pub(crate) struct Stopped;

pub(super) struct Worker {
    pub(crate) table: FlowTable,
    pub(crate) usage: UsageTable,
    pub(crate) records: MapCache,
    pub(super) policy: Policy,
    orders: Receiver<ExpiryOrder>,
    pub(crate) cuts: Cuts,
    reporter: Reporter,
    pub(crate) counts: Arc<ExpiryCounts>,
    pub(crate) post: ResetSender,
    pub(super) keepalive: Keepalive,
    pub(super) doubts: Doubts,
    pub(super) turns: Turns,
    /// Whether it has been logged that there are too many flows to probe.
    pub(super) said_late: bool,
    /// Letters since the CPU clock was looked at.
    pub(super) letters: usize,
    pub(super) marked: Marks,
    claims: Claims,
    pub(super) syns: SynRepeats,
    recount: Recount,
    pub(crate) batch: Duration,
    pub(super) now: Ticks,
    /// Whether flows end by the clock of this box.
    serves: bool,
    /// Since when, if another box has served them before: no flow has idled here for longer.
    served_since: Option<Ticks>,
    /// Dropped when it rests, if it is to.
    rest: Option<oneshot::Sender<()>>,
}

/// What the thread works by, and what it reports to.
pub(super) struct WorkerLinks {
    pub(super) policy: Policy,
    pub(super) orders: Receiver<ExpiryOrder>,
    pub(super) next_hops: NextHops,
    pub(super) reporter: Reporter,
    pub(super) counts: Arc<ExpiryCounts>,
    pub(super) serves: bool,
}

impl Worker {
    pub(super) fn open(folder: &Path, maps: Maps, links: WorkerLinks) -> Result<Self> {
        let WorkerLinks {
            policy,
            orders,
            next_hops,
            reporter,
            counts,
            serves,
        } = links;
        let now = coarse_now()?;
        Ok(Self {
            table: FlowTable::open(folder)?,
            usage: UsageTable::open(folder)?,
            records: MapCache::new(maps, Labels::open(folder)?, next_hops),
            policy,
            orders,
            cuts: Cuts::default(),
            reporter,
            post: ResetSender::new(Arc::clone(&counts), now, serves),
            now,
            counts,
            keepalive: Keepalive::default(),
            doubts: Doubts::default(),
            turns: Turns::new(now),
            said_late: false,
            letters: 0,
            marked: Marks::default(),
            claims: Claims::default(),
            syns: SynRepeats::default(),
            // At once: an earlier process may have died between a close and what belongs to it.
            recount: Recount::due(),
            batch: Duration::ZERO,
            serves,
            served_since: None,
            rest: None,
        })
    }

    /// Works until the handle is dropped, but for the times when it is to rest.
    pub(super) fn run(mut self) {
        loop {
            self.batch = cpu_time();
            while let Ok(()) = self.pass().and_then(|began| self.pause(began)) {}
            self.finish_cuts();
            let Some(begun) = self.rest.take() else {
                return;
            };
            drop(begun);
            if !self
                .orders
                .iter()
                .any(|order| matches!(order, ExpiryOrder::GoOn))
            {
                return;
            }
            self = self.begun_anew();
        }
    }

    /// Without what it was in the middle of: another process has ended flows meanwhile.
    fn begun_anew(self) -> Self {
        let now = coarse_now().unwrap_or(self.now);
        Self {
            cuts: Cuts::default(),
            post: ResetSender::new(Arc::clone(&self.counts), now, self.serves),
            now,
            keepalive: Keepalive::default(),
            doubts: Doubts::default(),
            turns: Turns::new(now),
            said_late: false,
            letters: 0,
            marked: Marks::default(),
            claims: Claims::default(),
            syns: SynRepeats::default(),
            recount: Recount::due(),
            ..self
        }
    }

    /// One walk over all entries, and what follows from it.
    fn pass(&mut self) -> Result<Instant, Stopped> {
        let began = Instant::now();
        let before = (self.ended_flows(), self.counts.ids_lost.get());
        let slots = match self.records.refresh() {
            Ok(slots) => slots,
            Err(error) => {
                tracing::error!(
                    "read which SNAT addresses there are: {error:#}; idle flows are not ended, trying again"
                );
                return Ok(began);
            }
        };
        self.recount.begin(&self.usage);
        for slot in slots {
            let first = base(slot);
            for id in first..first + u32::from(FLOWS_PER_ADDRESS) {
                self.look(id);
                if id % ENTRIES_PER_CLOCK == 0 || self.letters >= FRAMES_PER_CLOCK {
                    self.letters = 0;
                    self.breathe()?;
                }
                if self.marked.len() >= MARKS {
                    self.settle()?;
                }
            }
        }
        self.settle()?;
        self.end_round();
        self.claims.end_pass();
        self.syns.end_pass();
        self.doubts.end_pass();
        let corrected = self.recount.go_on(&self.usage);
        self.counts.corrections.add(corrected);
        self.counts.passes.add(1);
        let (ended, lost) = (
            self.ended_flows() - before.0,
            self.counts.ids_lost.get() - before.1,
        );
        if ended > 0 {
            let took = began.elapsed();
            tracing::debug!(ended, ?took, counts = ?self.counts, "idle flows ended");
        }
        if lost > 0 {
            tracing::error!(
                lost,
                "SNAT ports of ended flows could not be put back: they are missing until the next start of lb"
            );
        }
        Ok(began)
    }

    fn ended_flows(&self) -> u64 {
        self.counts.expired.get() + self.counts.dead.get()
    }

    fn look(&mut self, id: u32) {
        let Some(glance) = self.table.glance(id) else {
            return;
        };
        let word = glance.word;
        self.recount.note(&self.usage, id, &glance);
        match word.state() {
            State::Free | State::Closed | State::Ended => return,
            State::Claimed => {
                let now = self.clock();
                if self.claims.note(id, word, now) {
                    tracing::warn!(
                        id,
                        "a SNAT port has been claimed for a flow for a minute, and none has come of it"
                    );
                }
                return;
            }
            State::New | State::Replied | State::Established | State::Local => {}
        }
        if !self.serves {
            return;
        }
        let (now, service) = (self.clock(), glance.service);
        let last_seen = match self.served_since {
            Some(since) if age(now, since) < age(now, glance.last_seen) => since,
            _ => glance.last_seen,
        };
        let waited = age(now, last_seen);
        if word.is_binding() && waited >= ticks(syn_repeat::MIN_WAIT) {
            self.repeat_syn(id, word, waited);
        }
        let policy = &self.policy;
        if word.is_expiring()
            || policy.is_due(word, service, last_seen, now)
            || self.keepalive.is_mute(id, word) && policy.is_due_mute(word, service, last_seen, now)
        {
            self.marked.add(mark(&self.table, id, word, Cause::Idle));
        } else if let Some(keepalive) = policy.keepalive(word, service)
            && self.is_to_ask(id, word, age(now, last_seen) >= keepalive)
            && let Some((word, flow)) = self.table.flow(id)
        {
            self.ask(id, word, &flow, keepalive);
        }
    }

    /// Waits for one grace period, then closes what is still to end.
    fn settle(&mut self) -> Result<(), Stopped> {
        for (index, marked) in (1..).zip(self.marked.after(grace::wait)) {
            let now = self.clock();
            let judge = Judge {
                policy: &self.policy,
                keepalive: &mut self.keepalive,
                now,
            };
            if !self.serves {
                // The order came in the middle of it.
                break;
            }
            let closed = settle(&self.table, &marked, |word, flow| {
                judge.confirms(marked.cause, marked.id, word, flow)
            });
            if let Some(closed) = closed {
                self.end(marked, &closed);
            }
            if index % CLOSES == 0 {
                self.breathe()?;
            }
        }
        Ok(())
    }

    /// What follows from a close that we have won. The id goes back last: from then on another flow
    /// may be written into the entry.
    fn end(&mut self, marked: Marked, closed: &ClosedFlow) {
        let ClosedFlow { alive, flow } = closed;
        if alive.is_local() {
            // No flow: its begin was not reported, so its end is not.
            self.give_back(marked.id);
            return;
        }
        let is_dead = matches!(marked.cause, Cause::Dead);
        let count = if is_dead {
            &self.counts.dead
        } else {
            &self.counts.expired
        };
        count.add(1);
        let time = self.clock();
        if alive.in_use() {
            self.usage.count(marked.id, &FlowOwners::from(flow), -1);
        }
        self.report(marked.id, flow, marked.cause.event(), time);
        if is_loud(*alive) {
            self.post
                .queue_resets(marked.id, FlowState::from_raw(flow.word), is_dead);
        } else if let Some(binding) = self.records.awaited(marked.id, *alive) {
            self.post
                .refuse(marked.id, flow, &binding, &mut self.records);
        }
        self.give_back(marked.id);
    }

    /// Reports a flow that has ended, with its last word.
    pub(crate) fn report(&self, id: u32, flow: &Flow, kind: u32, time: Ticks) {
        if let Some(page) = self.records.page(id) {
            self.reporter.report(FlowEvent {
                flow: *flow,
                id,
                kind,
                snat: page.address,
                port: flow.snat_port.get().into(),
                time,
                client: self.records.labels().client6(id, flow).unwrap_or_default(),
                ..FlowEvent::default()
            });
        }
    }

    /// Puts the id of a flow that has ended back into its queue.
    pub(crate) fn give_back(&mut self, id: u32) {
        if !self.records.free(id) {
            self.counts.ids_lost.add(1);
            tracing::error!(
                id,
                "the SNAT port of an ended flow could not be put back: it is missing until the next start of lb"
            );
        }
    }

    /// Rests until the next pass; meanwhile resets go out.
    fn pause(&mut self, began: Instant) -> Result<(), Stopped> {
        let part = self.policy.shortest() / PASSES_PER_TIMEOUT;
        let next = began + PASS.min(part);
        loop {
            self.rest(self.shortest_rest())?;
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if !self.post.is_busy() && !self.is_cutting() {
                self.rest(left)?;
            }
        }
    }

    /// Ends the batch if it has had its CPU time.
    fn breathe(&mut self) -> Result<(), Stopped> {
        if cpu_time().saturating_sub(self.batch) < BATCH {
            return Ok(());
        }
        self.rest(self.shortest_rest())
    }

    /// Ends the batch: sleeps, cuts if that is ordered, and begins the next one with the resets whose turn it
    /// is.
    fn rest(&mut self, time: Duration) -> Result<(), Stopped> {
        self.sleep(time)?;
        self.cut();
        self.let_go();
        for _ in 0..FRAMES_PER_CLOCK {
            let now = self.clock();
            if !self.post.reset_next(&self.table, &mut self.records, now) {
                break;
            }
        }
        Ok(())
    }

    /// Ends the batch: sleeps, or until there is an order.
    pub(crate) fn sleep(&mut self, time: Duration) -> Result<(), Stopped> {
        let spent = u64::try_from(cpu_time().saturating_sub(self.batch).as_micros());
        self.counts.cpu_us.add(spent.unwrap_or(u64::MAX));
        self.counts
            .longest_batch_us
            .raise(spent.unwrap_or(u64::MAX));
        match self.orders.recv_timeout(time) {
            Ok(ExpiryOrder::Policy(policy)) => self.policy = policy,
            Ok(ExpiryOrder::Follow(networks)) => self.records.follow(networks),
            Ok(ExpiryOrder::Cut(cut, done)) => self.cuts.ask(*cut, done),
            Ok(ExpiryOrder::Rest(begun)) => {
                self.rest = Some(begun);
                return Err(Stopped);
            }
            // It does not rest.
            Ok(ExpiryOrder::GoOn) => {}
            Ok(ExpiryOrder::Serve(serves)) => self.serve(serves),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Stopped),
        }
        self.batch = cpu_time();
        Ok(())
    }

    /// Ends flows by the clock of this box, or forgets all that it was about to do by it.
    fn serve(&mut self, serves: bool) {
        if serves == self.serves {
            return;
        }
        self.serves = serves;
        self.served_since = serves.then_some(self.now);
        self.post = ResetSender::new(Arc::clone(&self.counts), self.now, serves);
        self.keepalive = Keepalive::default();
        self.doubts = Doubts::default();
        self.turns = Turns::new(self.now);
        self.marked = Marks::default();
        self.syns = SynRepeats::default();
    }

    /// The data plane's time, read without a system call.
    pub(crate) fn clock(&mut self) -> Ticks {
        // The clock is always there; were it not, time would stand still and nothing expire.
        self.now = coarse_now().unwrap_or(self.now);
        self.now
    }
}

/// CPU time of this thread.
pub(crate) fn cpu_time() -> Duration {
    // The clock of one's own thread is always there.
    let time = ClockId::CLOCK_THREAD_CPUTIME_ID.now();
    time.map(Duration::from).unwrap_or_default()
}
