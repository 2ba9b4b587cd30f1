//! Probes, by the thread, in its pass over all flows.

use lb_common::{conntrack::FlowState, maps::flow::Flow};

use super::{
    super::{
        expire::mark,
        idle::{Ticks, duration},
        reason::Cause,
        reset::{segments::FlowEnd, sender::Recipient},
    },
    KeepaliveAction,
    probe::ProbeStep,
};
use crate::flows::worker::{PASS, Worker};

impl Worker {
    /// Whether the ends of a flow that may be probed are probed in this pass.
    pub(in crate::flows) fn is_to_ask(&mut self, id: u32, word: FlowState, is_idle: bool) -> bool {
        if !word.is_doubted() {
            return is_idle || self.keepalive.is_asking(id, word);
        }
        let is_old = self.doubts.is_old(id, word);
        if !is_old {
            self.keepalive.begin_anew(id, word);
        }
        is_old
    }

    /// Does what is to be done for the ends of a flow that may be idle for `keepalive`; a dead one is
    /// marked.
    pub(in crate::flows) fn ask(
        &mut self,
        id: u32,
        word: FlowState,
        flow: &Flow,
        keepalive: Ticks,
    ) {
        self.keepalive.begin(id, word, flow);
        let now = self.clock();
        match self.keepalive.judge(id, word, flow, Some(keepalive), now) {
            KeepaliveAction::Over => {}
            KeepaliveAction::Trusted => {
                // If this fails, it has another word now: the next pass looks again.
                self.table.swap(id, word, word.trusted());
            }
            KeepaliveAction::Dead(end)
                if self.post.has_carrier(id, flow, end, &mut self.records) =>
            {
                self.marked.add(mark(&self.table, id, word, Cause::Dead));
            }
            // Nothing reaches it, and it is not known since when.
            KeepaliveAction::Dead(end) => self.keepalive.probed(id, end, false, now),
            KeepaliveAction::Ask(steps) => {
                for (end, step) in steps {
                    self.step(id, flow, end, step, now);
                }
            }
        }
    }

    fn step(&mut self, id: u32, flow: &Flow, end: FlowEnd, step: ProbeStep, now: Ticks) {
        let is_sought = match step {
            ProbeStep::Seek => {
                self.letters += 1;
                self.records.seek(id, flow, end);
                self.keepalive.sought(id, end);
                return;
            }
            ProbeStep::ProbeAgain => true,
            ProbeStep::Probe => false,
        };
        if !self.turns.may(id) {
            return;
        }
        self.letters += 1;
        let to = Recipient { end, is_sought };
        let sent = self.post.probe(id, flow, to, &mut self.records, now);
        match sent {
            Some(sent) => self.keepalive.probed(id, end, sent, now),
            None => self.turns.refuse(id),
        }
    }

    /// Ends a pass of probes.
    pub(in crate::flows) fn end_round(&mut self) {
        let now = self.clock();
        let took = self.turns.end_pass(now).map(duration);
        let keepalive = self.policy.shortest_keepalive().map(duration);
        if let (Some(took), Some(keepalive)) = (took, keepalive)
            && took > keepalive.max(PASS)
            && !self.said_late
        {
            self.said_late = true;
            tracing::warn!(
                ?took,
                ?keepalive,
                "there are more idle flows than can be probed within keepalive, so some are probed later: raise \
                 keepalive"
            );
        }
    }
}
