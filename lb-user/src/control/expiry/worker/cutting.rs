//! Cuts, by the thread: they come before anything else that it does, also in the middle of a pass over
//! idle flows.

use std::time::{Duration, Instant};

use lb_common::maps::{
    snat::{FLOWS_PER_ADDRESS, base},
    usage,
};

use super::{
    super::{
        cuts::{Done, Wanted},
        post::is_loud,
        sever::{Severed, Stroke, sever},
    },
    BATCH, LOOKS, REST, Stopped, Worker, cpu_time,
};
use crate::dataplane::grace;

/// Rest between two batches while there is anything to cut: half of one CPU at most.
const SHORT: Duration = Duration::from_micros(500);
/// Severed flows that are let go in one batch.
const LET_GO: usize = 256;
/// How long resets may take when the thread is to end.
const LAST: Duration = Duration::from_secs(1);

impl Worker {
    /// Whether flows are being cut, or their ends told.
    pub(super) fn is_cutting(&self) -> bool {
        self.cuts.is_busy() || self.post.has_outgoing()
    }

    pub(super) fn shortest_rest(&self) -> Duration {
        if self.is_cutting() { SHORT } else { REST }
    }

    /// Makes the cuts that are asked for.
    pub(super) fn cut(&mut self) -> Result<(), Stopped> {
        while let Some(mut wanted) = self.cuts.begin() {
            if !wanted.cut.is_empty() {
                // Flows that packets have opened by the maps as they were before the order are there
                // now, and no packet opens another one.
                grace::wait();
                match self.records.refresh() {
                    Ok(slots) => {
                        while self.walk(&slots, &mut wanted)? {
                            self.sleep(SHORT)?;
                        }
                    }
                    Err(error) => {
                        tracing::error!("flows are not cut: {error:#}");
                        continue;
                    }
                }
                grace::wait();
                self.cuts.ripen();
            }
            say(self.cuts.end(wanted));
        }
        Ok(())
    }

    /// Severs what is to be cut of all entries; whether one has to be tried again.
    fn walk(&mut self, slots: &[u16], wanted: &mut Wanted) -> Result<bool, Stopped> {
        let mut missed = false;
        let mut now = self.clock();
        for slot in slots {
            let first = base(*slot);
            for id in first..first + u32::from(FLOWS_PER_ADDRESS) {
                match sever(&self.table, id, &wanted.cut, now) {
                    Stroke::Spared => {}
                    Stroke::Silenced => wanted.silenced += 1,
                    Stroke::Missed => missed = true,
                    Stroke::Severed(severed, network, service) => {
                        wanted.flows += 1;
                        self.note_severed(severed, network, service)?;
                    }
                }
                if id % LOOKS == 0 {
                    if cpu_time().saturating_sub(self.batch) >= BATCH {
                        self.sleep(SHORT)?;
                        self.let_go();
                    }
                    now = self.clock();
                }
            }
        }
        Ok(missed)
    }

    /// Gives back at once what a flow held, but for its id.
    fn note_severed(
        &mut self,
        severed: Severed,
        network: u16,
        service: u16,
    ) -> Result<(), Stopped> {
        self.counts.cut.add(1);
        if severed.alive.in_use() {
            self.usage.add(usage::network(network), -1);
            self.usage.add(usage::service(service), -1);
        }
        if !self.cuts.add(severed) {
            grace::wait();
            self.cuts.ripen();
            while self.let_go() {
                self.sleep(SHORT)?;
            }
        }
        Ok(())
    }

    /// Lets some of the severed flows go, and sends resets whose turn it is; whether there are more
    /// that may go.
    pub(super) fn let_go(&mut self) -> bool {
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
                self.post.bid_farewell(id, &flow, &mut self.records);
            }
        }
        self.give_back(id);
        say(self.cuts.gone());
    }

    /// Before the thread ends: no id is lost, and resets go out as far as that takes no time.
    pub(super) fn finish_cuts(&mut self) {
        if self.cuts.is_busy() {
            grace::wait();
            self.cuts.ripen();
            while let Some(severed) = self.cuts.next() {
                self.release(severed);
            }
        }
        let began = Instant::now();
        while self.post.has_outgoing() && began.elapsed() < LAST {
            std::thread::sleep(SHORT);
            let now = self.clock();
            self.post.send_outgoing(now);
        }
    }
}

/// Says what a cut has done.
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
