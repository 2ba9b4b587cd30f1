//! Cuts that are ordered, and those under way. Pure.
//!
//! Orders that come while a cut is made wait, merged into one; it is made next. Flows that were severed
//! wait here for their grace period, and then to be let go.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{selector::EvictSelector, terminate::Severed};

/// Severed flows that wait at most; when there are more, those that wait are let go first.
const MAX_WAITING: usize = 1 << 20;

/// What a cut has done. Of orders that were merged each gets all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Flows that were ended. No packet of them is translated any more, and their ids are free.
    pub flows: u64,
    /// Flows that were over already, and whose late packets are not translated any more either.
    pub silenced: u64,
    /// From the first order to this.
    pub took: Duration,
}

/// A cut that is to be made, or is being made.
#[derive(Debug)]
pub(super) struct QueuedCut {
    pub(super) cut: EvictSelector,
    pub(super) flows: u64,
    pub(super) silenced: u64,
    since: Instant,
    done: Vec<oneshot::Sender<Done>>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    wanted: Option<QueuedCut>,
    severed: VecDeque<Severed>,
    /// Those at the front of `severed` whose grace period is over.
    ready: usize,
    /// Flows that were ever severed, and let go.
    total: (u64, u64),
    /// Cuts that were made and have flows in `severed`: how many are `total` when the last is let go.
    made: VecDeque<(u64, QueuedCut)>,
}

impl Cuts {
    /// Takes an order.
    pub(crate) fn ask(&mut self, cut: EvictSelector, done: oneshot::Sender<Done>) {
        let wanted = self.wanted.get_or_insert_with(|| QueuedCut {
            cut: EvictSelector::default(),
            flows: 0,
            silenced: 0,
            since: Instant::now(),
            done: Vec::new(),
        });
        wanted.cut.merge(cut);
        wanted.done.push(done);
    }

    /// What is to be cut now.
    pub(super) const fn begin(&mut self) -> Option<QueuedCut> {
        self.wanted.take()
    }

    /// Whether there is anything to do.
    pub(super) fn is_busy(&self) -> bool {
        self.wanted.is_some() || !self.severed.is_empty()
    }

    /// Takes a flow that was severed; whether there is room for more.
    pub(super) fn add(&mut self, severed: Severed) -> bool {
        self.severed.push_back(severed);
        self.total.0 += 1;
        self.severed.len() < MAX_WAITING
    }

    /// A grace period has begun after the last flow was added, and is over.
    pub(super) fn ripen(&mut self) {
        self.ready = self.severed.len();
    }

    /// The pass for `wanted` is over. What it has done if all its flows are let go already.
    pub(super) fn end(&mut self, wanted: QueuedCut) -> Option<Done> {
        self.made.push_back((self.total.0, wanted));
        self.answer()
    }

    /// The next flow that may be let go.
    pub(super) fn next(&mut self) -> Option<Severed> {
        self.ready = self.ready.checked_sub(1)?;
        let next = self.severed.pop_front();
        if self.severed.is_empty() {
            // A large cut is rare; its memory is not kept.
            self.severed = VecDeque::new();
        }
        next
    }

    /// That flow is let go. What a cut has done whose last one it was.
    pub(super) fn gone(&mut self) -> Option<Done> {
        self.total.1 += 1;
        self.answer()
    }

    /// Sends their results to the callers of cuts whose flows are all let go; what the last of these has
    /// done.
    fn answer(&mut self) -> Option<Done> {
        let mut last = None;
        while self
            .made
            .front()
            .is_some_and(|(until, _)| *until <= self.total.1)
        {
            let Some((_, mut wanted)) = self.made.pop_front() else {
                break;
            };
            let done = Done {
                flows: wanted.flows,
                silenced: wanted.silenced,
                took: wanted.since.elapsed(),
            };
            for asker in mem::take(&mut wanted.done) {
                // A caller that does not wait for the result has dropped its end.
                let _unheard: Result<(), Done> = asker.send(done);
            }
            last = Some(done);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::{super::selector::EndReason, *};
    use crate::flows::idle::words::*;

    fn severed(id: u32) -> Severed {
        Severed {
            id,
            alive: established(),
            why: EndReason::Backend,
            time: 0,
        }
    }

    fn backend(id: u32) -> EvictSelector {
        EvictSelector {
            backends: [id].into(),
            ..EvictSelector::default()
        }
    }

    fn order(cuts: &mut Cuts, id: u32) -> oneshot::Receiver<Done> {
        let (done, receiver) = oneshot::channel();
        cuts.ask(backend(id), done);
        receiver
    }

    /// Makes the cut that is ordered, of these flows.
    fn make(cuts: &mut Cuts, ids: &[u32]) -> Option<Done> {
        let mut wanted = cuts.begin().unwrap();
        for id in ids {
            assert!(cuts.add(severed(*id)));
            wanted.flows += 1;
        }
        cuts.ripen();
        cuts.end(wanted)
    }

    #[test]
    fn orders_that_wait_are_one_cut_and_all_are_answered() {
        let mut cuts = Cuts::default();
        assert!(cuts.begin().is_none() && !cuts.is_busy());
        let mut askers = [order(&mut cuts, 1), order(&mut cuts, 2)];
        assert!(cuts.is_busy());
        let wanted = cuts.begin().unwrap();
        assert_eq!(wanted.cut.backends, [1, 2].into());
        assert!(cuts.begin().is_none());
        let mut later = order(&mut cuts, 3);
        let done = cuts.end(wanted).unwrap();
        assert_eq!((done.flows, done.silenced), (0, 0));
        for asker in &mut askers {
            assert_eq!(asker.try_recv().unwrap(), done);
        }
        assert!(later.try_recv().is_err(), "its cut is the next one");
        assert_eq!(cuts.begin().unwrap().cut, backend(3));
    }

    #[test]
    fn a_cut_is_done_when_its_last_flow_is_let_go() {
        let mut cuts = Cuts::default();
        let mut first = order(&mut cuts, 1);
        assert_eq!(make(&mut cuts, &[10, 11]), None);
        let mut second = order(&mut cuts, 2);
        assert_eq!(make(&mut cuts, &[20]), None);
        let mut third = order(&mut cuts, 3);
        assert_eq!(make(&mut cuts, &[]), None, "in order");
        let mut flows = Vec::new();
        while let Some(severed) = cuts.next() {
            let done = cuts.gone().map(|done| done.flows);
            let heard = [&mut first, &mut second, &mut third]
                .map(|asker| asker.try_recv().ok().map(|done| done.flows));
            flows.push((severed.id, done, heard));
        }
        let wanted = [
            (10, None, [None; 3]),
            (11, Some(2), [Some(2), None, None]),
            (20, Some(0), [None, Some(1), Some(0)]),
        ];
        assert_eq!(flows, wanted);
        assert!(!cuts.is_busy());
    }

    #[test]
    fn no_flow_is_let_go_before_its_grace_period() {
        let mut cuts = Cuts::default();
        cuts.add(severed(1));
        assert_eq!(cuts.next(), None);
        cuts.ripen();
        cuts.add(severed(2));
        assert_eq!(cuts.next().map(|severed| severed.id), Some(1));
        assert_eq!(cuts.next(), None);
        assert!(cuts.is_busy());
    }

    #[test]
    fn an_asker_that_is_gone_is_no_error() {
        let mut cuts = Cuts::default();
        drop(order(&mut cuts, 1));
        assert_eq!(make(&mut cuts, &[]).unwrap().flows, 0);
    }
}
