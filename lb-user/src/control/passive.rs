//! Passive health: what follows from how backends have answered the SYNs of clients. Pure: counts and time come in as
//! arguments.
//!
//! A client can fake a SYN that is not answered. So a backend that is checked is checked at once, and the check decides;
//! of one that nothing checks several clients must have had no answer, and no client one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use lb_common::maps::backend_answers::BackendAnswers;

/// How many clients a backend that nothing checks has left without an answer before it is out, by their bits.
const MIN_CLIENTS: u32 = 3;
/// How long it is out until new flows try it again; doubled each time that it does not answer them either.
const FIRST_HOLD: Duration = Duration::from_secs(10);
const MAX_HOLD: Duration = Duration::from_secs(300);

/// What is known of the backends of a configuration, by their ids.
#[derive(Debug, Default)]
pub(super) struct Passive {
    backends: BTreeMap<u32, Watched>,
    /// Those that are out.
    out: BTreeSet<u32>,
}

/// What follows for a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// One that is checked has left a SYN unanswered, or refused one.
    Suspected,
    /// Of a backend that nothing checks: it gets no new flows for so long.
    Out(Duration),
    /// It gets new flows again, to see whether it answers them.
    Trial,
    /// It has answered.
    Answers,
}

#[derive(Debug)]
struct Watched {
    /// As it was at the last look.
    answers: BackendAnswers,
    /// Clients without an answer since it has answered one.
    clients: u64,
    /// How often it was out since then.
    times_out: u32,
    /// Until when it is.
    out: Option<Instant>,
}

impl Passive {
    /// Takes in how a backend has answered until `now`, with the clients that it did not answer since the last look. The
    /// first look finds nothing: what was before is not known.
    pub(super) fn note(
        &mut self,
        id: u32,
        is_checked: bool,
        answers: BackendAnswers,
        now: Instant,
    ) -> Option<Finding> {
        let Some(known) = self.backends.get_mut(&id) else {
            self.backends.insert(id, Watched::new(answers));
            return None;
        };
        let finding = known.note(is_checked, answers, now);
        if known.out.is_some() {
            self.out.insert(id);
        } else {
            self.out.remove(&id);
        }
        finding
    }

    /// From now on there are these backends, and no others.
    pub(super) fn retain(&mut self, ids: &BTreeSet<u32>) {
        self.backends.retain(|id, _| ids.contains(id));
        self.out.retain(|id| ids.contains(id));
    }

    /// The backends that get no new flows, because they do not answer.
    pub(super) fn out(&self) -> impl Iterator<Item = u32> {
        self.out.iter().copied()
    }

    /// Whether a backend gets no new flows, because it does not answer.
    pub(super) fn is_out(&self, id: u32) -> bool {
        self.out.contains(&id)
    }
}

impl Watched {
    /// Nothing is known but what it has answered so far.
    const fn new(answers: BackendAnswers) -> Self {
        Self {
            answers,
            clients: 0,
            times_out: 0,
            out: None,
        }
    }

    fn note(&mut self, is_checked: bool, answers: BackendAnswers, now: Instant) -> Option<Finding> {
        let has_failed = failures(&answers) != failures(&self.answers);
        let has_answered = answers.last_answer != self.answers.last_answer;
        self.answers = answers;
        if is_checked {
            *self = Self::new(answers);
            return has_failed.then_some(Finding::Suspected);
        }
        if has_answered {
            let was_out = self.times_out > 0;
            *self = Self::new(answers);
            return was_out.then_some(Finding::Answers);
        }
        self.clients |= answers.clients;
        self.turn(now)
    }

    /// Takes it out, if enough clients had no answer, one where it is on trial; or puts it on trial.
    fn turn(&mut self, now: Instant) -> Option<Finding> {
        if let Some(until) = self.out {
            if now < until {
                return None;
            }
            self.out = None;
            // What came late says nothing of the trial.
            self.clients = 0;
            return Some(Finding::Trial);
        }
        let wanted = if self.times_out == 0 { MIN_CLIENTS } else { 1 };
        if self.clients.count_ones() < wanted {
            return None;
        }
        let doubled = 2_u32.saturating_pow(self.times_out);
        let hold = FIRST_HOLD.saturating_mul(doubled).min(MAX_HOLD);
        self.times_out = self.times_out.saturating_add(1);
        self.clients = 0;
        self.out = Some(now + hold);
        Some(Finding::Out(hold))
    }
}

/// Counts wrap: they are only compared.
const fn failures(answers: &BackendAnswers) -> (u32, u32) {
    (answers.unanswered, answers.refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u32 = 7;

    /// A backend after its first look.
    struct Case {
        passive: Passive,
        answers: BackendAnswers,
        now: Instant,
    }

    impl Case {
        fn new() -> Self {
            let mut passive = Passive::default();
            let (answers, now) = (BackendAnswers::default(), Instant::now());
            assert_eq!(passive.note(ID, false, answers, now), None);
            Self {
                passive,
                answers,
                now,
            }
        }

        /// Leaves a SYN of each of these clients unanswered.
        fn fail(&mut self, clients: u64) -> Option<Finding> {
            self.answers.unanswered += clients.count_ones();
            let answers = BackendAnswers {
                clients,
                ..self.answers
            };
            self.passive.note(ID, false, answers, self.now)
        }

        fn answer(&mut self) -> Option<Finding> {
            self.answers.last_answer += 1;
            self.passive.note(ID, false, self.answers, self.now)
        }

        fn wait(&mut self, time: Duration) -> Option<Finding> {
            self.now += time;
            self.passive.note(ID, false, self.answers, self.now)
        }
    }

    #[test]
    fn several_clients_and_no_answer_take_a_backend_out() {
        let mut case = Case::new();
        assert_eq!([case.fail(1), case.fail(1), case.fail(2)], [None; 3]);
        assert_eq!(case.answer(), None, "it answers others");
        assert_eq!([case.fail(1), case.fail(2)], [None; 2]);
        assert!(!case.passive.is_out(ID));
        assert_eq!(case.fail(4), Some(Finding::Out(FIRST_HOLD)));
        assert!(case.passive.is_out(ID));
        assert_eq!(case.fail(7), None, "late ones");
        case.passive.retain(&BTreeSet::new());
        assert!(!case.passive.is_out(ID));
    }

    #[test]
    fn one_that_is_out_is_tried_after_ever_longer_times_until_it_answers() {
        let mut case = Case::new();
        let mut hold = FIRST_HOLD;
        assert_eq!(case.fail(7), Some(Finding::Out(hold)));
        for _ in 0..6 {
            assert_eq!(case.wait(hold - Duration::from_millis(1)), None);
            assert_eq!(case.wait(Duration::from_millis(1)), Some(Finding::Trial));
            assert!(!case.passive.is_out(ID));
            hold = (hold * 2).min(MAX_HOLD);
            assert_eq!(
                case.fail(1),
                Some(Finding::Out(hold)),
                "one client is enough"
            );
        }
        assert_eq!(hold, MAX_HOLD);
        assert_eq!(case.wait(hold), Some(Finding::Trial));
        assert_eq!(case.answer(), Some(Finding::Answers));
        assert_eq!(case.fail(3), None, "as before");
        assert_eq!(case.fail(4), Some(Finding::Out(FIRST_HOLD)));
        assert_eq!(
            case.answer(),
            Some(Finding::Answers),
            "also while it is out"
        );
        assert!(!case.passive.is_out(ID));
    }

    #[test]
    fn a_backend_that_is_checked_is_suspected_at_once_and_never_out() {
        let (mut passive, now) = (Passive::default(), Instant::now());
        let mut answers = BackendAnswers {
            unanswered: 5,
            refused: u32::MAX,
            ..BackendAnswers::default()
        };
        assert_eq!(
            passive.note(ID, true, answers, now),
            None,
            "what was before"
        );
        assert_eq!(passive.note(ID, true, answers, now), None);
        answers.unanswered += 1;
        answers.clients = u64::MAX;
        assert_eq!(
            passive.note(ID, true, answers, now),
            Some(Finding::Suspected)
        );
        answers.refused = answers.refused.wrapping_add(1);
        assert_eq!(
            passive.note(ID, true, answers, now),
            Some(Finding::Suspected)
        );
        assert!(!passive.is_out(ID));
    }
}
