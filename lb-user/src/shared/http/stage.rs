//! The stage that a client's connection is in, and how long it may stay there.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::shared::pending::Ticket;

/// The longest that a connection waits for its next request.
pub(super) const KEEP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing has come yet.
    Silent,
    /// The head of the first request is on its way.
    First,
    /// That of a later one is.
    Head,
    /// A request is served.
    Busy,
    /// All requests have been answered.
    Idle,
}

/// The stages of a connection, for all who change or watch them.
#[derive(Clone, Debug)]
pub(super) struct Stages(Arc<watch::Sender<(Stage, Instant)>>);

/// What has taken too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lapse {
    /// The first byte.
    Silent,
    /// A head that had begun.
    Head,
    /// The next request.
    Idle,
}

/// A request that is served until this is dropped.
pub(super) struct Turn(Stages);

impl Default for Stages {
    fn default() -> Self {
        let now = (Stage::Silent, Instant::now());
        Self(Arc::new(watch::Sender::new(now)))
    }
}

impl Stages {
    fn change(&self, change: impl FnOnce(Stage, Instant) -> Option<(Stage, Instant)>) {
        self.0.send_if_modified(|current| {
            let next = change(current.0, current.1);
            next.map(|next| *current = next).is_some()
        });
    }

    /// Bytes have come.
    pub(super) fn heard(&self) {
        self.change(|stage, since| match stage {
            // The first head has its time from the beginning.
            Stage::Silent => Some((Stage::First, since)),
            Stage::Idle => Some((Stage::Head, Instant::now())),
            Stage::First | Stage::Head | Stage::Busy => None,
        });
    }

    /// Bytes have gone.
    pub(super) fn told(&self) {
        self.change(|stage, _| (stage == Stage::Idle).then(|| (stage, Instant::now())));
    }

    /// The head of a request is there.
    pub(super) fn asked(&self) -> Turn {
        self.change(|_, _| Some((Stage::Busy, Instant::now())));
        Turn(self.clone())
    }

    /// Whether there was no request yet.
    pub(super) fn is_first(&self) -> bool {
        matches!(self.0.borrow().0, Stage::Silent | Stage::First)
    }

    /// Waits until a head takes longer than `head`, or the next request longer than `idle` or [`KEEP`].
    pub(super) async fn lapse(&self, head: Duration, idle: Option<Duration>) -> Lapse {
        let mut stages = self.0.subscribe();
        let idle = idle.map_or(KEEP, |idle| idle.min(KEEP));
        loop {
            let (stage, since) = *stages.borrow_and_update();
            let (most, lapse) = match stage {
                Stage::Silent => (head, Lapse::Silent),
                Stage::First | Stage::Head => (head, Lapse::Head),
                Stage::Idle => (idle, Lapse::Idle),
                Stage::Busy => {
                    // The sender is here.
                    let _changed = stages.changed().await;
                    continue;
                }
            };
            select! {
                () = sleep_until(since + most) => return lapse,
                _changed = stages.changed() => {}
            }
        }
    }

    /// Waits until the client has to go for another one, which may happen before its first request alone.
    pub(super) async fn recycled(&self, ticket: Ticket) {
        let mut stages = self.0.subscribe();
        let asks = stages.wait_for(|(stage, _)| !matches!(stage, Stage::Silent | Stage::First));
        select! {
            () = ticket.goes() => return,
            _asked = asks => {}
        }
        drop(ticket);
        pending().await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.change(|_, _| Some((Stage::Idle, Instant::now())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Duration = Duration::from_millis(80);
    const IDLE: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn each_stage_has_its_time() {
        let stages = Stages::default();
        let start = Instant::now();
        assert_eq!(stages.lapse(HEAD, None).await, Lapse::Silent);
        assert!((HEAD..IDLE).contains(&start.elapsed()));
        stages.heard();
        assert_eq!(stages.lapse(HEAD, None).await, Lapse::Head);
        assert!(stages.is_first());
        let turn = stages.asked();
        assert!(!stages.is_first());
        let busy = tokio::time::timeout(2 * IDLE, stages.lapse(HEAD, Some(HEAD))).await;
        assert!(busy.is_err());
        drop(turn);
        let start = Instant::now();
        assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Idle);
        assert!(start.elapsed() >= IDLE);
        stages.told();
        stages.heard();
        assert_eq!(stages.lapse(HEAD, Some(KEEP)).await, Lapse::Head);
    }
}
