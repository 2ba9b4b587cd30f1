//! Cuts, by the thread: they come before anything else that it does, also in the middle of a pass over
//! idle flows.

use std::time::{Duration, Instant};

use anyhow::Result;
use lb_common::maps::snat::{FLOWS_PER_ADDRESS, base};

use super::{
    super::reset::sender::is_loud,
    queue::{Done, QueuedCut},
    terminate::{Severed, Termination, sever},
};
use crate::{
    dataplane::{flows::FlowOwners, grace},
    flows::worker::{BATCH, BATCH_PAUSE, ENTRIES_PER_CLOCK, Stopped, Worker, cpu_time},
};

/// Rest between two batches while there is anything to cut: half of one CPU at most.
const SHORT: Duration = Duration::from_micros(500);
/// Severed flows that are let go in one batch.
const LET_GO: usize = 256;
/// How long until what could not be read is read again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long resets may take when the thread is to end.
const LAST: Duration = Duration::from_secs(1);

impl Worker {
    /// Whether flows are being cut, or resets of cut ones wait.
    pub(crate) fn is_cutting(&self) -> bool {
        self.cuts.is_busy() || self.post.has_outgoing()
    }

    pub(crate) fn shortest_rest(&self) -> Duration {
        if self.is_cutting() {
            SHORT
        } else {
            BATCH_PAUSE
        }
    }

    /// Makes the cuts that are ordered, also when the thread is to end: then without a rest, and the largest
    /// table is walked in about a second.
    pub(crate) fn cut(&mut self) {
        while let Some(mut wanted) = self.cuts.begin() {
            if !wanted.cut.is_empty() {
                // Flows that packets have opened by the maps as they were before the order are there
                // now, and no packet opens another one.
                grace::wait();
                let read = |worker: &mut Self| worker.records.refresh();
                let Some(slots) = insist(self, read, |worker| worker.sleep(RETRY_INTERVAL)) else {
                    // The next start cuts what it does not let in.
                    continue;
                };
                while self.walk(&slots, &mut wanted) {
                    self.nap();
                }
                grace::wait();
                self.cuts.ripen();
            }
            say(self.cuts.end(wanted));
        }
    }

    /// Sleeps, but not any more when the thread is to end.
    fn nap(&mut self) {
        let _stopped: Result<(), Stopped> = self.sleep(SHORT);
    }

    /// Severs what is to be cut of all entries; whether one has to be tried again.
    fn walk(&mut self, slots: &[u16], wanted: &mut QueuedCut) -> bool {
        let mut missed = false;
        let mut now = self.clock();
        for slot in slots {
            let first = base(*slot);
            for id in first..first + u32::from(FLOWS_PER_ADDRESS) {
                let labels = self.records.labels();
                match sever(&self.table, labels, id, &wanted.cut, now) {
                    Termination::Spared => {}
                    Termination::Silenced => wanted.silenced += 1,
                    Termination::Missed => missed = true,
                    Termination::Severed(severed, owners) => {
                        wanted.flows += 1;
                        self.note_severed(severed, &owners);
                    }
                }
                if id % ENTRIES_PER_CLOCK == 0 {
                    if cpu_time().saturating_sub(self.batch) >= BATCH {
                        self.nap();
                        self.let_go();
                    }
                    now = self.clock();
                }
            }
        }
        missed
    }

    /// Gives back at once what a flow held, but for its id.
    fn note_severed(&mut self, severed: Severed, owners: &FlowOwners) {
        self.counts.cut.add(1);
        if severed.alive.in_use() {
            self.usage.count(severed.id, owners, -1);
        }
        if !self.cuts.add(severed) {
            grace::wait();
            self.cuts.ripen();
            while self.let_go() {
                if self.sleep(SHORT).is_err() {
                    self.let_all_go();
                    break;
                }
            }
        }
    }

    /// Lets some of the severed flows go, and sends resets whose turn it is; whether there are more
    /// that may go.
    pub(crate) fn let_go(&mut self) -> bool {
        let mut left = LET_GO;
        while left > 0 && self.post.has_room() {
            let Some(severed) = self.cuts.next() else {
                break;
            };
            self.release(severed);
            left -= 1;
        }
        if self.post.has_outgoing() {
            let now = self.clock();
            self.post.send_outgoing(now);
        }
        left == 0 || !self.post.has_room()
    }

    /// Reports a severed flow and makes its resets; then its id is free.
    fn release(&mut self, severed: Severed) {
        let Severed {
            id,
            alive,
            why,
            time,
        } = severed;
        if let Some(flow) = severed.flow(&self.table) {
            self.report(id, &flow, why.event(), time);
            if is_loud(alive) {
                self.post.make_resets(id, &flow, &mut self.records);
            } else if let Some(binding) = self.records.awaited(id, alive) {
                self.post.refuse(id, &flow, &binding, &mut self.records);
            }
        }
        self.give_back(id);
        say(self.cuts.gone());
    }

    /// Lets all of the severed flows go, also those whose resets have no room.
    fn let_all_go(&mut self) {
        while let Some(severed) = self.cuts.next() {
            self.release(severed);
        }
    }

    /// Before the thread ends: no cut and no id is lost, and resets go out as far as that takes no time.
    pub(crate) fn finish_cuts(&mut self) {
        self.cut();
        if self.cuts.is_busy() {
            grace::wait();
            self.cuts.ripen();
            self.let_all_go();
        }
        let began = Instant::now();
        while self.post.has_outgoing() && began.elapsed() < LAST {
            std::thread::sleep(SHORT);
            let now = self.clock();
            self.post.send_outgoing(now);
        }
    }
}

/// Attempts something until it succeeds, with a rest in between, and logs once that it does not. None only if
/// the thread is to end.
fn insist<W, T>(
    worker: &mut W,
    mut attempt: impl FnMut(&mut W) -> Result<T>,
    mut rest: impl FnMut(&mut W) -> Result<(), Stopped>,
) -> Option<T> {
    let mut said = false;
    loop {
        match attempt(worker) {
            Ok(done) => return Some(done),
            Err(error) if !said => {
                said = true;
                tracing::error!("cut flows: {error:#}; trying again");
            }
            Err(_) => {}
        }
        if rest(worker).is_err() {
            tracing::error!("the process ends before it could cut flows: the next start cuts them");
            return None;
        }
    }
}

/// Logs what a cut has done.
fn say(done: Option<Done>) {
    if let Some(Done {
        flows,
        silenced,
        took,
    }) = done
        && flows + silenced > 0
    {
        tracing::info!(flows, silenced, ?took, "flows cut");
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    /// What comes of something that fails so often, where there is time for so many rests; and how
    /// often it was attempted.
    fn insisted(failures: u32, rests: u32) -> (Option<u32>, u32) {
        let mut counts = (0, 0);
        let attempt = |(attempts, _): &mut (u32, u32)| {
            *attempts += 1;
            if *attempts <= failures {
                bail!("no memory");
            }
            Ok(*attempts)
        };
        let rest = |(_, rested): &mut (u32, u32)| {
            *rested += 1;
            if *rested > rests {
                Err(Stopped)
            } else {
                Ok(())
            }
        };
        let result = insist(&mut counts, attempt, rest);
        (result, counts.0)
    }

    #[test]
    fn what_fails_is_attempted_again_until_the_end() {
        assert_eq!(insisted(0, 0), (Some(1), 1));
        assert_eq!(insisted(3, 9), (Some(4), 4));
        assert_eq!(insisted(3, 1), (None, 2));
    }
}
