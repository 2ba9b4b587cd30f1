//! The verdict at two levels: where the backends of a pool fail together, and all of them answer, the service behind them
//! is down, and no node. That is one notice, and one when it is back. Pure.
//!
//! A backend that answers and fails is held until it is known whether it is alone: until another one's check is good that
//! has begun later, or all have failed. Only the notice waits; shares follow the verdict at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::checks::VerdictChange;
use crate::health::HealthVerdict;

/// The backends that must fail together.
const MIN_BACKENDS: usize = 2;

/// What the checks of one backend have found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckedStatus {
    /// Its name in the registry.
    pub(super) name: String,
    /// Its name in the pool.
    pub(super) backend: String,
    /// The verdict.
    pub(super) verdict: HealthVerdict,
    /// Whether the latest check was answered, be it by a refusal.
    pub(super) answers: bool,
    /// When the latest check began, if it was good.
    pub(super) good_from: Option<Instant>,
    /// The latest check, in words.
    pub(super) words: String,
}

/// Something that the operator is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The verdict of one backend has changed.
    Backend(VerdictChange),
    /// The service behind a pool is down: so many of its backends answer, of so many.
    Down {
        answering: usize,
        backends: usize,
        words: String,
    },
    /// A backend of it serves again.
    Up { backend: String, words: String },
}

/// All pools whose notices wait, or whose service is down.
#[derive(Debug, Default)]
pub(super) struct ServiceVerdicts(BTreeMap<String, PoolVerdict>);

#[derive(Debug, Default)]
struct PoolVerdict {
    is_down: bool,
    /// By the names of their backends.
    held: BTreeMap<String, HeldChange>,
}

/// A change whose notice waits.
#[derive(Debug)]
struct HeldChange {
    change: VerdictChange,
    /// When the first of the checks ended that failed.
    since: Instant,
    /// When it is a notice in any case.
    until: Instant,
    /// Whether the service was down with it, so that its return is none.
    is_known: bool,
}

/// When a backend has begun to fail, and until when the others show whether they do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failing {
    pub(super) since: Instant,
    pub(super) until: Instant,
}

impl ServiceVerdicts {
    /// With the pools whose services an earlier process has found down.
    pub(super) fn adopt(down: &BTreeSet<String>) -> Self {
        let pools = down.iter().map(|pool| {
            let verdict = PoolVerdict {
                is_down: true,
                ..PoolVerdict::default()
            };
            (pool.clone(), verdict)
        });
        Self(pools.collect())
    }

    /// The pools whose services are down.
    pub(super) fn down(&self) -> BTreeSet<String> {
        let down = self.0.iter().filter(|(_, verdict)| verdict.is_down);
        down.map(|(pool, _)| pool.clone()).collect()
    }

    /// Whether the service of a pool is down.
    pub(super) fn is_down(&self, pool: &str) -> bool {
        self.0.get(pool).is_some_and(|verdict| verdict.is_down)
    }

    /// Whether notices of a pool wait.
    pub(super) fn is_open(&self, pool: &str) -> bool {
        self.0.get(pool).is_some_and(|known| !known.held.is_empty())
    }

    /// The pools that are to be [settled](Self::settle).
    pub(super) fn pools(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Forgets a pool.
    pub(super) fn forget(&mut self, pool: &str) {
        self.0.remove(pool);
    }

    /// Takes in a change. `failing` is of a backend that is checked with others, and answers.
    pub(super) fn note(
        &mut self,
        pool: &str,
        change: VerdictChange,
        failing: Option<Failing>,
    ) -> Vec<Notice> {
        let known = self.0.entry(pool.to_owned()).or_default();
        let held = known.held.remove(&change.backend);
        match (change.to, failing) {
            // `settle` sees it.
            (HealthVerdict::Up, _) if known.is_down => Vec::new(),
            (HealthVerdict::Up, _) if held.as_ref().is_some_and(|held| held.is_known) => Vec::new(),
            (HealthVerdict::NotReady | HealthVerdict::Dead, Some(_)) if known.is_down => Vec::new(),
            (HealthVerdict::NotReady | HealthVerdict::Dead, Some(failing)) => {
                let is_held = held.is_some();
                let fails_now = matches!(change.from, HealthVerdict::Up | HealthVerdict::Unknown);
                if !is_held && !fails_now {
                    return vec![Notice::Backend(change)];
                }
                let held = held.unwrap_or_else(|| HeldChange {
                    change: change.clone(),
                    since: failing.since,
                    until: failing.until,
                    is_known: false,
                });
                let change = VerdictChange {
                    from: held.change.from,
                    ..change
                };
                let name = change.backend.clone();
                known.held.insert(name, HeldChange { change, ..held });
                Vec::new()
            }
            _ => {
                let held = held.map(|held| Notice::Backend(held.change));
                held.into_iter().chain([Notice::Backend(change)]).collect()
            }
        }
    }

    /// What is known of a pool now that its backends have this status. Where one of a service is back, the others have
    /// until `back_until` to follow it.
    pub(super) fn settle(
        &mut self,
        pool: &str,
        statuses: &[CheckedStatus],
        back_until: Instant,
        now: Instant,
    ) -> Vec<Notice> {
        let Some(known) = self.0.get_mut(pool) else {
            return Vec::new();
        };
        let notices = known.settle(statuses, back_until, now);
        if !known.is_down && known.held.is_empty() {
            self.0.remove(pool);
        }
        notices
    }
}

impl PoolVerdict {
    fn settle(
        &mut self,
        statuses: &[CheckedStatus],
        back_until: Instant,
        now: Instant,
    ) -> Vec<Notice> {
        if self.is_down {
            let up = statuses.iter().find(|one| one.verdict == HealthVerdict::Up);
            return up.map_or_else(Vec::new, |up| {
                vec![self.come_back(up, statuses, back_until, now)]
            });
        }
        let is_there = |name: &String| statuses.iter().any(|status| status.name == *name);
        self.held.retain(|name, _| is_there(name));
        let fails = |status: &CheckedStatus| status.verdict.is_down();
        if !statuses.iter().all(fails) {
            return self.release(|held| held.until <= now || held.is_alone(statuses));
        }
        let answers = |status: &&CheckedStatus| status.answers;
        let is_held = |status: &&CheckedStatus| self.held.contains_key(&status.name);
        let together: Vec<&CheckedStatus> = statuses.iter().filter(is_held).collect();
        if together.len() < MIN_BACKENDS || !together.iter().all(|status| status.answers) {
            return self.release(|_| true);
        }
        let words = together.first().map(|status| status.words.clone());
        self.held.clear();
        self.is_down = true;
        vec![Notice::Down {
            answering: statuses.iter().filter(answers).count(),
            backends: statuses.len(),
            words: words.unwrap_or_default(),
        }]
    }

    /// The service serves again: of backends that do not follow there will be a notice.
    fn come_back(
        &mut self,
        up: &CheckedStatus,
        statuses: &[CheckedStatus],
        until: Instant,
        since: Instant,
    ) -> Notice {
        self.is_down = false;
        let others = statuses.iter().filter(|one| one.verdict.is_down());
        self.held = others
            .map(|status| {
                let change = VerdictChange {
                    backend: status.name.clone(),
                    from: HealthVerdict::Up,
                    to: status.verdict,
                    words: status.words.clone(),
                };
                let held = HeldChange {
                    change,
                    since,
                    until,
                    is_known: true,
                };
                (status.name.clone(), held)
            })
            .collect();
        Notice::Up {
            backend: up.backend.clone(),
            words: up.words.clone(),
        }
    }

    /// Makes notices of those for which `is_due` holds.
    fn release(&mut self, mut is_due: impl FnMut(&HeldChange) -> bool) -> Vec<Notice> {
        let due = self.held.extract_if(.., |_, held| is_due(held));
        due.map(|(_, held)| Notice::Backend(held.change)).collect()
    }
}

impl HeldChange {
    /// Whether another backend serves, by a check that has begun after this one failed. One that failed at its very first
    /// check may have done so for long: then any that is up does.
    fn is_alone(&self, statuses: &[CheckedStatus]) -> bool {
        let was_first = self.change.from == HealthVerdict::Unknown;
        let serves = |status: &CheckedStatus| {
            status.good_from.is_some_and(|from| from > self.since)
                || was_first && status.verdict == HealthVerdict::Up
        };
        !self.is_known
            && statuses
                .iter()
                .any(|status| status.name != self.change.backend && serves(status))
    }
}

#[cfg(test)]
mod tests;
