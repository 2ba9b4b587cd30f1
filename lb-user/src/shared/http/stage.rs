//! The stage that a client's connection is in, and how long it may stay there.

use std::{sync::Arc, time::Duration};

use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until},
};

use super::wire::Note;
use crate::shared::pending::Ticket;

/// The longest that a connection waits for its next request, or an answer for its client.
pub(super) const KEEP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing has come yet.
    Silent,
    /// The head of the first request is on its way.
    First,
    /// That of a later one is.
    Head,
    /// A request is served, by the leg with this id if there is one.
    Busy(Option<u32>),
    /// What is left of an answer is on its way to the client.
    Rest,
    /// All requests have been answered.
    Idle,
}

/// What is waited for while nothing is done for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// All of a head.
    Head,
    /// The next request, if there is one.
    Next,
}

impl Stage {
    const fn wait(self) -> Option<Wait> {
        match self {
            Self::Silent | Self::First | Self::Head => Some(Wait::Head),
            Self::Idle => Some(Wait::Next),
            Self::Busy(_) | Self::Rest => None,
        }
    }
}

/// The stages of a connection, for all who change or watch them: the one that it is in, and since when, or
/// when the last bytes came or went.
#[derive(Clone, Debug)]
pub(super) struct Stages(Arc<watch::Sender<(Stage, Instant)>>);

/// What has taken too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lapse {
    /// The first byte.
    Silent,
    /// A head that had begun.
    Head,
    /// An answer: none comes, or the client does not read it.
    Answer,
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
    /// Who watches is told of another stage, and not of another time: bytes are many.
    fn change(&self, change: impl FnOnce(Stage, Instant) -> (Stage, Instant)) {
        self.0.send_if_modified(|current| {
            let before = current.0;
            *current = change(before, current.1);
            current.0 != before
        });
    }

    /// The head of a request is there.
    pub(super) fn asked(&self) -> Turn {
        self.change(|_, _| (Stage::Busy(None), Instant::now()));
        Turn(self.clone())
    }

    /// The request is served by this leg.
    pub(super) fn served_by(&self, leg: u32) {
        self.change(|stage, since| match stage {
            Stage::Busy(_) => (Stage::Busy(Some(leg)), since),
            stage => (stage, since),
        });
    }

    /// That leg has ended.
    pub(super) fn left_by(&self, leg: u32) {
        self.change(|stage, since| match stage {
            Stage::Busy(Some(server)) if server == leg => (Stage::Busy(None), Instant::now()),
            stage => (stage, since),
        });
    }

    /// Whether it is this leg that serves the request.
    pub(super) fn is_served_by(&self, leg: u32) -> bool {
        self.0.borrow().0 == Stage::Busy(Some(leg))
    }

    /// Whether there was no request yet.
    pub(super) fn is_first(&self) -> bool {
        matches!(self.0.borrow().0, Stage::Silent | Stage::First)
    }

    /// Waits until a head takes longer than `head`, or the next request, or an answer that no leg works at,
    /// longer than `idle` or [`KEEP`].
    pub(super) async fn lapse(&self, head: Duration, idle: Option<Duration>) -> Lapse {
        let mut stages = self.0.subscribe();
        let idle = idle.map_or(KEEP, |idle| idle.min(KEEP));
        loop {
            let (stage, since) = *stages.borrow_and_update();
            let (most, lapse) = match stage {
                Stage::Silent => (head, Lapse::Silent),
                Stage::First | Stage::Head => (head, Lapse::Head),
                Stage::Busy(None) | Stage::Rest => (idle, Lapse::Answer),
                Stage::Idle => (idle, Lapse::Idle),
                Stage::Busy(Some(_)) => {
                    // The leg has a time of its own. The sender is here.
                    let _changed = stages.changed().await;
                    continue;
                }
            };
            if since.elapsed() >= most {
                return lapse;
            }
            select! {
                () = sleep_until(since + most) => {}
                _changed = stages.changed() => {}
            }
        }
    }

    /// Waits until nothing has come or gone for `most`.
    pub(super) async fn quiet(&self, most: Duration) {
        loop {
            let end = self.0.borrow().1 + most;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }

    /// Waits until the client has to go for another one, and says what it was waited for. `admit` gives it
    /// its place each time that something else is.
    pub(super) async fn recycled(&self, admit: impl Fn(Wait) -> Ticket) -> Wait {
        let mut stages = self.0.subscribe();
        loop {
            let wait = stages.borrow_and_update().0.wait();
            let changed = stages.wait_for(|(stage, _)| stage.wait() != wait);
            let Some(wait) = wait else {
                drop(changed.await);
                continue;
            };
            let ticket = admit(wait);
            select! {
                biased;
                // Who goes on is not sent away.
                _changed = changed => {}
                () = ticket.goes() => return wait,
            }
        }
    }
}

impl Note for Stages {
    fn read(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.change(|stage, since| match stage {
            // The first head has its time from the beginning.
            Stage::Silent => (Stage::First, since),
            Stage::Idle => (Stage::Head, Instant::now()),
            Stage::First | Stage::Head => (stage, since),
            Stage::Busy(_) | Stage::Rest => (stage, Instant::now()),
        });
    }

    fn written(&self, _bytes: usize) {
        self.change(|stage, _| match stage {
            // A head that is none is answered.
            Stage::First | Stage::Head => (Stage::Rest, Instant::now()),
            stage => (stage, Instant::now()),
        });
    }

    fn flushed(&self) {
        self.change(|stage, since| match stage {
            Stage::Rest => (Stage::Idle, Instant::now()),
            stage => (stage, since),
        });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // The answer is there, but not all of it has been written.
        self.0.change(|_, _| (Stage::Rest, Instant::now()));
    }
}

#[cfg(test)]
mod tests;
