//! How the sessions with the peer stand, for `lb ha status`.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    decisions::Decisions,
    message::BoxHello,
    originals::SentCounts,
    standby::{PeerState, PlacedCounts},
};
use crate::api::ha::{ReceivingStatus, SendingStatus, SessionStatus};

/// How long after the end of the session a peer is taken for dead that does not begin another one.
const DEAD_TIMEOUT: Duration = Duration::from_secs(3);

/// Where both sessions write down how they stand.
#[derive(Clone, Debug)]
pub struct PairProgress(Arc<Mutex<Both>>);

#[derive(Debug)]
struct Both {
    /// When the process began to dial its peer.
    begun: Instant,
    sending: Session,
    /// Why the last connection was no session of the peer.
    refused: Option<String>,
    sent: SentCounts,
    pass_us: u64,
    receiving: Session,
    placed: PlacedCounts,
    /// What the peer was when its last pass began.
    peer: PeerState,
    differences: [Vec<String>; 2],
    /// What was decided at the peer, as it was said last.
    decisions: Option<Decisions>,
}

impl Both {
    /// What the peer is, if it says so now.
    fn heard(&self) -> Option<PeerState> {
        let is_heard = self.receiving.open.is_some() && self.receiving.is_whole;
        is_heard.then_some(self.peer)
    }
}

/// One session.
#[derive(Debug, Default)]
struct Session {
    /// Since when there is one, and the peer's greeting.
    open: Option<(Instant, BoxHello)>,
    /// Whether a whole pass has been made in it.
    is_whole: bool,
    /// When the last one ended.
    closed: Option<Instant>,
    /// Why it did, or none was begun.
    error: Option<String>,
}

impl Session {
    fn begin(&mut self, peer: &BoxHello) {
        *self = Self {
            open: Some((Instant::now(), peer.clone())),
            is_whole: false,
            closed: None,
            error: None,
        };
    }

    fn end(&mut self, error: String) -> bool {
        let is_new = self.open.is_some() || self.error.as_ref() != Some(&error);
        let closed = self.open.take().map(|_| Instant::now());
        *self = Self {
            open: None,
            is_whole: false,
            closed: closed.or(self.closed),
            error: Some(error),
        };
        is_new
    }

    fn status(&self) -> SessionStatus {
        let open = self.open.as_ref();
        SessionStatus {
            since_seconds: open.map(|(since, _)| since.elapsed().as_secs()),
            peer_version: open.map(|(_, hello)| hello.build.clone()),
            complete: self.is_whole,
            error: self.error.clone(),
        }
    }
}

impl Default for PairProgress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Both {
            begun: Instant::now(),
            sending: Session::default(),
            refused: None,
            sent: SentCounts::default(),
            pass_us: 0,
            receiving: Session::default(),
            placed: PlacedCounts::default(),
            peer: PeerState::default(),
            differences: Default::default(),
            decisions: None,
        })))
    }
}

impl PairProgress {
    fn both(&self) -> MutexGuard<'_, Both> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_sending(&self, peer: &BoxHello) {
        self.both().sending.begin(peer);
    }

    pub(super) fn begin_receiving(&self, peer: &BoxHello) {
        let mut both = self.both();
        both.receiving.begin(peer);
        both.decisions = None;
    }

    pub(super) fn end_sending(&self, error: String) {
        self.both().sending.end(error);
    }

    /// Why there is no session, or another one; whether that is to be logged: the same has not been before.
    pub(super) fn refuse(&self, words: &str) -> bool {
        let mut both = self.both();
        let is_new = both.refused.as_deref() != Some(words);
        both.refused = Some(words.to_owned());
        if both.sending.open.is_none() {
            both.sending.error = Some(words.to_owned());
        }
        is_new
    }

    /// Whether the end of the session is to be logged: the same has not been before.
    pub(super) fn end_receiving(&self, error: String) -> bool {
        self.both().receiving.end(error)
    }

    /// A pass has been sent, at the cost of so many microseconds.
    pub(super) fn sent(&self, counts: SentCounts, pass_us: u64) {
        let mut both = self.both();
        both.sending.is_whole = true;
        both.sent = counts;
        both.pass_us = pass_us;
    }

    /// A pass has come, at whose begin the peer was this.
    pub(super) fn placed(&self, counts: PlacedCounts, peer: PeerState) {
        let mut both = self.both();
        both.receiving.is_whole = true;
        both.placed = counts;
        both.peer = peer;
    }

    /// What the peer is, if it says so now.
    pub fn peer(&self) -> Option<PeerState> {
        self.both().heard()
    }

    /// Whether all has come that is to come from a peer which is not the active box any more: it has sent it, or it is dead.
    pub fn is_settled(&self) -> bool {
        let both = self.both();
        match both.receiving.open {
            Some(_) => both.receiving.is_whole && !both.peer.is_active,
            None => {
                let closed = both.receiving.closed.unwrap_or(both.begun);
                closed.elapsed() >= DEAD_TIMEOUT
            }
        }
    }

    /// What one box has and the other does not: there, and here.
    pub(super) fn differ(&self, differences: [Vec<String>; 2]) {
        self.both().differences = differences;
    }

    /// What was decided at the peer, all of it.
    pub(super) fn decided(&self, decisions: Decisions) {
        self.both().decisions = Some(decisions);
    }

    /// What was decided at the peer, if it is the active box and said so a moment ago.
    pub fn decisions_of_active(&self) -> Option<Decisions> {
        let both = self.both();
        let decisions = both.decisions.as_ref();
        let is_active = both.heard().is_some_and(|peer| peer.is_active);
        decisions.filter(|_| is_active).cloned()
    }

    /// Both sessions, and what one box has and the other does not: there, and here.
    pub fn status(&self) -> (SendingStatus, ReceivingStatus, [Vec<String>; 2]) {
        let both = self.both();
        let sending = SendingStatus {
            session: both.sending.status(),
            flows: both.sent.flows,
            ends: both.sent.ends,
            pass_us: both.pass_us,
        };
        let receiving = ReceivingStatus {
            session: both.receiving.status(),
            ready: both.placed.ready,
            later: both.placed.later,
            unknown: both.placed.unknown,
            waiting: both.placed.waiting,
            ended: both.placed.ended,
        };
        (sending, receiving, both.differences.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_has_come_when_a_peer_that_has_left_says_so_or_is_dead() {
        let progress = PairProgress::default();
        let peer = |is_active| PeerState {
            is_active,
            carried: 3,
        };
        assert!(!progress.is_settled(), "it has not been dialled for long");
        progress.begin_receiving(&BoxHello::ours("lb2"));
        assert!(!progress.is_settled());
        assert_eq!(progress.peer(), None, "no pass has come");
        progress.placed(PlacedCounts::default(), peer(true));
        assert_eq!(progress.peer(), Some(peer(true)));
        assert!(!progress.is_settled(), "it is still active");
        progress.placed(PlacedCounts::default(), peer(false));
        assert!(progress.is_settled());
        assert!(progress.end_receiving("reset".to_owned()));
        assert!(!progress.end_receiving("reset".to_owned()), "said already");
        assert!(!progress.is_settled(), "it may come again");
        assert_eq!(progress.peer(), None);
        let (_, receiving, _) = progress.status();
        assert_eq!(receiving.session.error.as_deref(), Some("reset"));
        assert!(!receiving.session.complete);
    }
}
