//! The stage that a client's connection is in, and how long it may stay there.

use std::{sync::Arc, time::Duration};

use tokio::{
    select,
    sync::watch,
    time::{Instant, sleep_until},
};

use super::wire::Note;
use crate::proxy::admission::Permit;

/// The longest that a connection waits for its next request.
const KEEP: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStage {
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

impl RequestStage {
    const fn wait(self) -> Option<Wait> {
        match self {
            Self::Silent | Self::First | Self::Head => Some(Wait::Head),
            Self::Idle => Some(Wait::Next),
            Self::Busy(_) | Self::Rest => None,
        }
    }
}

/// How long each may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpTimeouts {
    /// All of a head.
    pub(super) head: Duration,
    /// More of a body.
    pub(super) body: Duration,
    /// The beginning of an answer, and until its client has read more of it.
    pub(super) response: Duration,
    /// Whatever is waited for of a connection that no request is served on; none: no limit of its own.
    pub(super) idle: Option<Duration>,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug)]
struct Now {
    stage: RequestStage,
    /// Since when, or when the last bytes came or went.
    since: Instant,
    /// Since when its client is waited for, which is to send more of a body.
    body: Option<Instant>,
    /// The same of one that is to read more of an answer.
    room: Option<Instant>,
    /// Whether the request that is served has an answer, at least a head.
    is_answered: bool,
    /// Whether its body has ended before its end, or is none.
    is_torn: bool,
}

/// The stages of a connection, for all that change or watch them.
#[derive(Clone, Debug)]
pub(super) struct Stages(Arc<watch::Sender<Now>>);

/// What has taken too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lapse {
    /// The first byte.
    Silent,
    /// A head that had begun.
    Head,
    /// More of a body; the client has an answer already, or not.
    Body(bool),
    /// The beginning of an answer.
    Response,
    /// An answer that the client does not read, or of which no more comes.
    Answer,
    /// The next request.
    Idle,
}

/// A request that is served until this is dropped.
pub(super) struct RequestTurn(Stages);

impl Default for Stages {
    fn default() -> Self {
        let now = Now {
            stage: RequestStage::Silent,
            since: Instant::now(),
            body: None,
            room: None,
            is_answered: false,
            is_torn: false,
        };
        Self(Arc::new(watch::Sender::new(now)))
    }
}

impl Stages {
    /// The watcher is woken by another stage, and not by another time: bytes are many.
    fn change(&self, change: impl FnOnce(RequestStage, Instant) -> (RequestStage, Instant)) {
        self.0.send_if_modified(|now| {
            let before = now.stage;
            (now.stage, now.since) = change(before, now.since);
            now.stage != before
        });
    }

    /// Notes what wakes no task: the one that watches looks at it in time.
    fn note(&self, note: impl FnOnce(&mut Now)) {
        self.0.send_if_modified(|now| {
            note(now);
            false
        });
    }

    /// The head of a request is there.
    pub(super) fn asked(&self) -> RequestTurn {
        self.note(|now| (now.body, now.is_answered, now.is_torn) = (None, false, false));
        self.change(|_, _| (RequestStage::Busy(None), Instant::now()));
        RequestTurn(self.clone())
    }

    /// The request has an answer, at least a head.
    pub(super) fn answered(&self) {
        self.note(|now| now.is_answered = true);
    }

    /// More of the request's body is waited for, or is there.
    pub(super) fn waits_for_body(&self, waits: bool) {
        self.note(|now| {
            let since = now.body.unwrap_or_else(Instant::now);
            now.body = waits.then_some(since);
        });
    }

    /// The request's body has failed: the client has sent what is none, or no more.
    pub(super) fn tore_body(&self) {
        self.note(|now| now.is_torn = true);
    }

    /// Whether it has.
    pub(super) fn has_torn_body(&self) -> bool {
        self.0.borrow().is_torn
    }

    /// The backend has taken more of the request.
    pub(super) fn sent_on(&self) {
        self.change(|stage, since| match stage {
            RequestStage::Busy(_) => (stage, Instant::now()),
            stage => (stage, since),
        });
    }

    /// The request is served by this leg.
    pub(super) fn served_by(&self, leg: u32) {
        self.change(|stage, since| match stage {
            RequestStage::Busy(_) => (RequestStage::Busy(Some(leg)), since),
            stage => (stage, since),
        });
    }

    /// That leg has ended.
    pub(super) fn left_by(&self, leg: u32) {
        self.change(|stage, since| match stage {
            RequestStage::Busy(Some(server)) if server == leg => {
                (RequestStage::Busy(None), Instant::now())
            }
            stage => (stage, since),
        });
    }

    /// Whether it is this leg that serves the request.
    pub(super) fn is_served_by(&self, leg: u32) -> bool {
        self.0.borrow().stage == RequestStage::Busy(Some(leg))
    }

    /// Whether there was no request yet.
    pub(super) fn is_first(&self) -> bool {
        matches!(
            self.0.borrow().stage,
            RequestStage::Silent | RequestStage::First
        )
    }

    /// Waits until the first byte has come.
    pub(super) async fn begun(&self) {
        let mut stages = self.0.subscribe();
        // The sender is here.
        let _begun = stages
            .wait_for(|now| now.stage != RequestStage::Silent)
            .await;
    }

    /// Waits until something has taken too long; what.
    pub(super) async fn lapse(&self, times: HttpTimeouts) -> Lapse {
        let mut stages = self.0.subscribe();
        // What begins to be waited for after a look lasts so long at least.
        let look = times.body.min(times.response);
        loop {
            let now = *stages.borrow_and_update();
            let mut next = Instant::now() + look;
            for (since, most, lapse) in now.waits(times).into_iter().flatten() {
                if since.elapsed() >= most {
                    return lapse;
                }
                next = next.min(since + most);
            }
            select! {
                () = sleep_until(next) => {}
                _changed = stages.changed() => {}
            }
        }
    }

    /// Waits until nothing has come or gone for `most`.
    pub(super) async fn quiet(&self, most: Duration) {
        loop {
            let end = self.0.borrow().since + most;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }

    /// Waits until the client is evicted for another one, and returns what it was waited for. `admit` gives
    /// it its place each time that something else is.
    pub(super) async fn recycled(&self, admit: impl Fn(Wait) -> Permit) -> Wait {
        let mut stages = self.0.subscribe();
        loop {
            let wait = stages.borrow_and_update().stage.wait();
            let changed = stages.wait_for(|now| now.stage.wait() != wait);
            let Some(wait) = wait else {
                drop(changed.await);
                continue;
            };
            let ticket = admit(wait);
            select! {
                biased;
                // A client that goes on is not evicted.
                _changed = changed => {}
                () = ticket.goes() => return wait,
            }
        }
    }
}

impl Now {
    /// What is waited for, since when, and how long at most.
    fn waits(self, times: HttpTimeouts) -> [Option<(Instant, Duration, Lapse)>; 2] {
        let least = |most: Duration| times.idle.map_or(most, |idle| idle.min(most));
        let Self { since, .. } = self;
        let one = match self.stage {
            RequestStage::Silent => (since, times.head, Lapse::Silent),
            RequestStage::First | RequestStage::Head => (since, times.head, Lapse::Head),
            RequestStage::Rest => (since, least(times.response), Lapse::Answer),
            RequestStage::Idle => (since, least(KEEP), Lapse::Idle),
            RequestStage::Busy(leg) => {
                return self.waits_of_request(leg, times, least(times.response));
            }
        };
        [Some(one), None]
    }

    fn waits_of_request(
        self,
        leg: Option<u32>,
        times: HttpTimeouts,
        idle: Duration,
    ) -> [Option<(Instant, Duration, Lapse)>; 2] {
        let of_body = self
            .body
            .map(|since| (since, times.body, Lapse::Body(self.is_answered)));
        let of_answer = match (self.is_answered, self.room, leg) {
            // Not the backend's fault, unless it has all that there is.
            (false, _, _) if self.body.is_some() => None,
            (false, _, _) => Some((self.since, times.response, Lapse::Response)),
            (true, room, None) => Some((room.unwrap_or(self.since), idle, Lapse::Answer)),
            (true, Some(since), Some(_)) => Some((since, times.response, Lapse::Answer)),
            // The leg has a time of its own.
            (true, None, Some(_)) => None,
        };
        [of_body, of_answer]
    }
}

impl Note for Stages {
    fn read(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.change(|stage, since| match stage {
            // The first head has its time from the beginning.
            RequestStage::Silent => (RequestStage::First, since),
            RequestStage::Idle => (RequestStage::Head, Instant::now()),
            RequestStage::First | RequestStage::Head => (stage, since),
            RequestStage::Busy(_) | RequestStage::Rest => (stage, Instant::now()),
        });
    }

    fn written(&self, _bytes: usize) {
        self.note(|now| now.room = None);
        self.change(|stage, _| match stage {
            // A head that is none is answered.
            RequestStage::First | RequestStage::Head => (RequestStage::Rest, Instant::now()),
            stage => (stage, Instant::now()),
        });
    }

    fn blocked(&self) {
        self.note(|now| now.room = Some(now.room.unwrap_or_else(Instant::now)));
    }

    fn flushed(&self) {
        self.change(|stage, since| match stage {
            RequestStage::Rest => (RequestStage::Idle, Instant::now()),
            stage => (stage, since),
        });
    }
}

impl Drop for RequestTurn {
    fn drop(&mut self) {
        // The answer is there, but not all of it has been written.
        self.0.change(|_, _| (RequestStage::Rest, Instant::now()));
    }
}

#[cfg(test)]
mod tests;
