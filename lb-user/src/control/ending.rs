//! Flows that end before their time: those that a change does not let in any more, and those of a dead backend.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time,
};

use crate::{
    flows::{Done, Expiry, evict::selector::EvictSelector},
    proxy::Legs,
};

/// How long after a change no packet opens a flow by the maps of before.
const SETTLES: Duration = Duration::from_secs(5);
/// How long a change waits for the cut of the one before, which takes longer only where a great many
/// flows end.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(3);

/// See the module.
pub struct Ending {
    /// The thread that ends flows.
    pub expiry: Expiry,
    /// Connections of shared VIPs that are relayed: they end with their sockets.
    legs: Legs,
    /// When the maps were changed.
    changed: Instant,
    /// Cuts that go on.
    cuts: Vec<oneshot::Receiver<Done>>,
    /// The cut of the latest change, or of the start.
    policy: Option<oneshot::Receiver<Done>>,
}

/// A cut that goes on.
pub(super) struct CutCount {
    /// Legs that have ended.
    legs: u64,
    finished: oneshot::Receiver<Done>,
}

impl CutCount {
    /// How many flows and legs have ended, as soon as all have.
    ///
    /// # Errors
    ///
    /// If the thread that ends flows is gone.
    pub(super) async fn finish(self) -> Result<u64> {
        let done = self.finished.await;
        let done = done.context("the thread that ends flows is gone")?;
        Ok(done.flows + self.legs)
    }
}

impl Ending {
    /// Ends flows by this thread, and with them these legs.
    pub(crate) fn new(expiry: Expiry, legs: Legs) -> Self {
        Self {
            expiry,
            legs,
            changed: Instant::now(),
            cuts: Vec::new(),
            policy: None,
        }
    }

    /// The maps have been changed just now.
    pub(super) fn note_change(&mut self) {
        self.changed = Instant::now();
    }

    /// Ends flows at once.
    pub(super) fn cut(&mut self, cut: EvictSelector) {
        if !cut.is_empty() {
            self.legs.cut(&cut);
            self.cuts.push(self.expiry.cut(cut));
        }
    }

    /// Ends the flows that a change does not let in any more.
    pub(super) fn cut_by_policy(&mut self, cut: EvictSelector) {
        if !cut.is_empty() {
            self.legs.cut(&cut);
            self.policy = Some(self.cut_and_tell(cut));
        }
    }

    /// Ends flows of the data plane at once, and reports when it is done.
    fn cut_and_tell(&mut self, cut: EvictSelector) -> oneshot::Receiver<Done> {
        let done = self.expiry.cut(cut);
        // Done after it: no sweep comes before.
        self.cuts.push(self.expiry.cut(EvictSelector::default()));
        done
    }

    /// As [`Self::cut`], and reports how many have ended when it is done.
    pub(super) fn cut_and_count(&mut self, cut: EvictSelector) -> CutCount {
        CutCount {
            legs: self.legs.cut(&cut),
            finished: self.cut_and_tell(cut),
        }
    }

    /// Waits until the cut of the change before is made. It goes by the listeners and rules of then,
    /// and must not meet flows that the next change lets in.
    ///
    /// # Errors
    ///
    /// If it takes too long; nothing is changed then.
    pub(super) async fn finish_policy(&mut self) -> Result<()> {
        if let Some(cut) = &mut self.policy {
            // An error is an answer as well: the thread has ended.
            let made = time::timeout(EVICTION_TIMEOUT, cut).await.is_ok();
            ensure!(
                made,
                "the resets of the flows that the change before has cut are still being sent; nothing is \
                 changed, try again in a moment"
            );
            self.policy = None;
        }
        Ok(())
    }

    /// How many cuts are not complete.
    pub(super) fn unfinished(&mut self) -> usize {
        let goes_on =
            |cut: &mut oneshot::Receiver<Done>| cut.try_recv() == Err(TryRecvError::Empty);
        self.cuts.retain_mut(goes_on);
        self.cuts.len()
    }

    /// Whether no flow is being cut, and every packet that was on its way when the maps were changed has
    /// opened its flow.
    pub(super) fn is_settled(&mut self) -> bool {
        let unfinished = self.unfinished();
        self.changed.elapsed() >= SETTLES && unfinished == 0
    }
}
