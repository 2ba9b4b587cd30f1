//! How the sessions with the peer stand, for `lb ha status`.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    decisions::Decisions,
    message::{BoxHello, BoxState},
    originals::SentCounts,
    standby::PlacedCounts,
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
    peer: BoxState,
    /// Connections that the peer carried when it was last heard as the active box, until they have ended.
    at_stake: u32,
    /// Connections of the peer that have ended.
    lost: u64,
    /// Whether the peer has served, or may have unheard, since it was last known to stand by beside the active box.
    may_have_clients: bool,
    differences: [Vec<String>; 2],
    /// What was decided at the peer, as it was said last.
    decisions: Option<Decisions>,
}

/// What a peer leaves to the active box that serves no more, or is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftByPeer {
    /// Connections that its process carried, and that have ended.
    pub connections: u32,
    /// Whether it has served meanwhile, or may have unheard, and stands by now: clients may still know addresses to be there.
    pub has_clients: bool,
}

impl Both {
    /// What the peer is, if it says so now.
    fn heard(&self) -> Option<BoxState> {
        let is_heard = self.receiving.open.is_some() && self.receiving.is_whole;
        is_heard.then_some(self.peer)
    }

    /// As [`PairProgress::is_settled`].
    fn is_settled(&self) -> bool {
        match self.receiving.open {
            Some(_) => self.receiving.is_whole && !self.peer.is_active,
            None => {
                let closed = self.receiving.closed.unwrap_or(self.begun);
                closed.elapsed() >= DEAD_TIMEOUT
            }
        }
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
            peer: BoxState::default(),
            at_stake: 0,
            lost: 0,
            may_have_clients: false,
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
        let mut both = self.both();
        both.may_have_clients = true;
        both.receiving.end(error)
    }

    /// A pass has been sent, at the cost of so many microseconds.
    pub(super) fn sent(&self, counts: SentCounts, pass_us: u64) {
        let mut both = self.both();
        both.sending.is_whole = true;
        both.sent = counts;
        both.pass_us = pass_us;
    }

    /// A pass has come, at whose begin the peer was this.
    pub(super) fn placed(&self, counts: PlacedCounts, peer: BoxState) {
        let mut both = self.both();
        if peer.is_active {
            both.at_stake = peer.load.connections;
            both.may_have_clients = true;
        }
        both.receiving.is_whole = true;
        both.placed = counts;
        both.peer = peer;
    }

    /// What the peer is, if it says so now.
    pub fn peer(&self) -> Option<BoxState> {
        self.both().heard()
    }

    /// What the peer has left to this box, which is the active one, since this was asked last.
    pub fn left(&self) -> LeftByPeer {
        let mut both = self.both();
        let stands_by = both.heard().is_some_and(|peer| !peer.is_active);
        let connections = match both.is_settled() {
            true => mem::take(&mut both.at_stake),
            false => 0,
        };
        both.lost += u64::from(connections);
        LeftByPeer {
            connections,
            has_clients: stands_by && mem::take(&mut both.may_have_clients),
        }
    }

    /// Connections of the peer that have ended.
    pub fn lost(&self) -> u64 {
        self.both().lost
    }

    /// Whether all has come that is to come from a peer which is not the active box any more: it has sent it, or it is dead.
    pub fn is_settled(&self) -> bool {
        self.both().is_settled()
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

    /// The backends that are down at the peer, if it is heard.
    pub fn down_at_peer(&self) -> Option<BTreeSet<String>> {
        let both = self.both();
        let decisions = both.decisions.as_ref().filter(|_| both.heard().is_some());
        decisions.map(|decisions| decisions.down.clone())
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
    use crate::ha::message::BoxLoad;

    #[test]
    fn all_has_come_when_a_peer_that_has_left_says_so_or_is_dead() {
        let progress = PairProgress::default();
        let peer = |is_active| BoxState {
            is_active,
            ..BoxState::default()
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

    /// A pass comes from a peer that carries so many connections.
    fn carries(progress: &PairProgress, is_active: bool, connections: u32) {
        let load = BoxLoad {
            connections,
            ..BoxLoad::default()
        };
        progress.placed(PlacedCounts::default(), BoxState { is_active, load });
    }

    #[test]
    fn connections_of_the_peer_are_lost_once_when_it_has_left() {
        let progress = PairProgress::default();
        let left = || (progress.left().connections, progress.lost());
        progress.begin_receiving(&BoxHello::ours("lb2"));
        assert_eq!(left(), (0, 0));
        carries(&progress, true, 9);
        carries(&progress, true, 7);
        assert_eq!(left(), (0, 0), "it still serves");
        // They hang.
        carries(&progress, false, 5);
        assert_eq!(left(), (7, 7));
        carries(&progress, false, 5);
        assert_eq!(left(), (0, 7));
        carries(&progress, true, 2);
        progress.end_receiving("reset".to_owned());
        assert_eq!(left(), (0, 7), "it may come again");
        progress.both().receiving.closed = Instant::now().checked_sub(DEAD_TIMEOUT);
        assert_eq!(left(), (2, 9));
        assert_eq!(left(), (0, 9));
    }

    #[test]
    fn clients_are_left_by_a_peer_that_stands_by_again() {
        let progress = PairProgress::default();
        let left = || progress.left().has_clients;
        progress.begin_receiving(&BoxHello::ours("lb2"));
        assert!(!left());
        carries(&progress, false, 0);
        assert!(!left(), "it has not served");
        carries(&progress, true, 0);
        assert!(!left(), "it serves");
        carries(&progress, false, 0);
        assert!(left());
        assert!(!left(), "they are known");
        progress.end_receiving("the peer says nothing".to_owned());
        progress.both().receiving.closed = Instant::now().checked_sub(DEAD_TIMEOUT);
        assert!(!left(), "it may serve unheard");
        progress.begin_receiving(&BoxHello::ours("lb2"));
        assert!(!left());
        carries(&progress, false, 0);
        assert!(left());

        let never_heard = PairProgress::default();
        never_heard.end_receiving("no answer".to_owned());
        never_heard.begin_receiving(&BoxHello::ours("lb2"));
        carries(&never_heard, false, 0);
        assert!(never_heard.left().has_clients);
    }

    #[test]
    fn backends_are_down_at_a_peer_that_is_heard() {
        let progress = PairProgress::default();
        let down = BTreeSet::from(["kas/a".to_owned()]);
        progress.begin_receiving(&BoxHello::ours("lb2"));
        progress.decided(Decisions {
            down: down.clone(),
            ..Decisions::default()
        });
        assert_eq!(progress.down_at_peer(), None, "no pass has come");
        progress.placed(PlacedCounts::default(), BoxState::default());
        assert_eq!(progress.down_at_peer(), Some(down));
        progress.end_receiving("reset".to_owned());
        assert_eq!(progress.down_at_peer(), None);
    }
}
