//! Silence of a whole network: where none of its backends answers any more, what is lost may be the way that all checks
//! take. Then a verdict waits until its backend was checked once more.

use std::{cell::Cell, time::Instant};

/// What is known of the backends of a network together.
#[derive(Default)]
pub(super) struct NetworkSilence {
    /// How many addresses are checked.
    addresses: Cell<usize>,
    /// When the latest check began that was answered, be it by a refusal.
    answered: Cell<Option<Instant>>,
    /// Whether it was found, and logged, that no backend answers.
    is_found: Cell<bool>,
    /// When the first answer came after that.
    ended: Cell<Option<Instant>>,
}

impl NetworkSilence {
    /// From now on so many addresses are checked.
    pub(super) fn follow(&self, addresses: usize) {
        self.addresses.set(addresses);
    }

    /// A check that began at `start` was answered at `now`.
    pub(super) fn note_answer(&self, start: Instant, now: Instant) {
        self.answered.set(self.answered.get().max(Some(start)));
        if self.is_found.replace(false) {
            self.ended.set(Some(now));
        }
    }

    /// Whether a check that began at `start`, and was not answered, says nothing of a backend that has been silent
    /// `since` then: none of several addresses has answered a check that began later, which is logged once; or that was
    /// so when it began.
    pub(super) fn is_of_all(&self, since: Instant, start: Instant, network: &str) -> bool {
        if self.addresses.get() < 2 {
            return false;
        }
        let is_of_all = self.answered.get().is_none_or(|at| at <= since);
        if is_of_all && !self.is_found.replace(true) {
            tracing::warn!(
                network,
                "no backend of the network answers its checks: the verdicts wait for one more check of each; if none \
                 answers that, look at the way to them (switch, VLAN, cable)"
            );
        }
        is_of_all || self.ended.get().is_some_and(|ended| start <= ended)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NETWORK: &str = "mgmt";

    #[test]
    fn one_that_answers_later_makes_a_silence_that_of_one_backend() {
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        let silence = NetworkSilence::default();
        silence.follow(2);
        silence.note_answer(later(5), later(5));
        for (since, is_of_all) in [(4, false), (5, true), (6, true)] {
            let found = silence.is_of_all(later(since), later(7), NETWORK);
            assert_eq!(found, is_of_all, "silent since {since} s");
        }
        // An answer that took long is none of a later time.
        silence.note_answer(later(3), later(6));
        assert!(silence.is_of_all(later(5), later(7), NETWORK));
    }

    #[test]
    fn a_check_that_began_in_a_silence_of_all_is_none_of_the_time_after_it() {
        let begun = Instant::now();
        let later = |seconds| begun + Duration::from_secs(seconds);
        let silence = NetworkSilence::default();
        silence.follow(2);
        assert!(
            silence.is_of_all(begun, begun, NETWORK),
            "none has ever answered"
        );
        silence.note_answer(later(2), later(3));
        silence.note_answer(later(4), later(4));
        for (start, is_of_all) in [(2, true), (3, true), (4, false)] {
            let found = silence.is_of_all(later(1), later(start), NETWORK);
            assert_eq!(found, is_of_all, "from {start} s");
        }
    }

    #[test]
    fn the_silence_of_an_only_address_is_its_own() {
        let silence = NetworkSilence::default();
        silence.follow(1);
        assert!(!silence.is_of_all(Instant::now(), Instant::now(), NETWORK));
    }

    #[test]
    fn it_is_logged_once_until_one_answers() {
        let silence = NetworkSilence::default();
        silence.follow(3);
        let begun = Instant::now();
        for _ in 0..2 {
            silence.is_of_all(begun, begun, NETWORK);
            assert!(silence.is_found.get());
        }
        silence.note_answer(begun, begun);
        assert!(!silence.is_found.get());
    }
}
