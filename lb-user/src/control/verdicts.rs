//! Verdicts as the operator sees them: log lines and events, of backends and of the services behind them.

use std::time::{Duration, Instant};

use super::{
    checks::VerdictChange,
    control_loop::Control,
    service_verdict::{Failing, Notice},
};
use crate::{
    api::Severity,
    config::{Health, Pool},
    health::HealthVerdict,
    model::names::backend_name,
};

/// What checks of the others may take longer than they should, on a machine that is busy.
const MAX_LATE: Duration = Duration::from_secs(1);

impl Control {
    /// Logs verdicts that have changed, but for those that may be of a service as a whole.
    pub(super) fn note_verdicts(&mut self, changes: Vec<VerdictChange>) {
        for change in changes {
            let pool = pool_of(&change.backend).to_owned();
            let failing = self.failing(&pool, &change);
            let notices = self.services.note(&pool, change, failing);
            self.notify(&pool, notices);
        }
        self.settle_services();
    }

    /// Since when a backend fails that answers, and is not the only one of its pool. One that a change is only about to
    /// add is none of the pool's yet.
    fn failing(&self, pool: &str, change: &VerdictChange) -> Option<Failing> {
        let pool = self.running.config().pool(pool)?;
        let health = pool.health.as_ref().filter(|_| pool.backends.len() > 1)?;
        let is_it = |backend| backend_name(pool, backend) == change.backend;
        pool.backends.iter().find(|backend| is_it(backend))?;
        let since = self.running.checks.failing_since(&change.backend)?;
        Some(Failing {
            since,
            until: since + health.worst_case_down() + MAX_LATE,
        })
    }

    /// Finds out of what notices wait for; whether that changed anything.
    pub(super) fn settle_services(&mut self) -> bool {
        let mut has_changed = false;
        for name in self.services.pools() {
            let pool = self.running.config().pool(&name);
            let checked = pool.and_then(|pool| Some((pool, pool.health.as_ref()?)));
            let Some((pool, health)) = checked else {
                self.services.forget(&name);
                self.below.remove(&name);
                continue;
            };
            let statuses = self.running.checks.statuses(pool);
            let now = Instant::now();
            let back_until = now + back_within(health);
            let notices = self.services.settle(&name, &statuses, back_until, now);
            has_changed |= !notices.is_empty();
            self.notify(&name, notices);
        }
        has_changed
    }

    /// Whether a backend is one of those that answer and whose service is down.
    pub(super) fn is_service_down(&self, pool: &Pool, backend: &str) -> bool {
        let known = self.running.checks.of(backend);
        self.services.is_down(&pool.name)
            && known.is_some_and(|known| known.last.is_none() || known.answers())
    }

    fn notify(&mut self, pool: &str, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Backend(change) => self.notify_of_backend(&change),
                Notice::Down {
                    answering,
                    backends,
                    words,
                } => {
                    let words = down_words(answering, backends, &words);
                    tracing::error!(pool, "{words}");
                    // That too few are up is part of it.
                    self.below.insert(pool.to_owned());
                    self.event("health", Severity::Error, &format!("pool {pool}"), &words);
                }
                Notice::Up { backend, words } => {
                    let words = format!("service up again: backend {backend}: {words}");
                    tracing::info!(pool, "{words}");
                    self.below.remove(pool);
                    self.event("health", Severity::Notice, &format!("pool {pool}"), &words);
                }
            }
        }
    }

    fn notify_of_backend(&mut self, change: &VerdictChange) {
        let VerdictChange {
            backend,
            from,
            to,
            words,
        } = change;
        let words = format!("{from} -> {to}: {words}");
        let severity = if *to == HealthVerdict::Up {
            tracing::info!(backend, "{words}");
            Severity::Notice
        } else {
            tracing::warn!(backend, "{words}");
            Severity::Warning
        };
        self.event("health", severity, &format!("backend {backend}"), &words);
    }
}

/// The pool in a backend's name in the registry.
pub(super) fn pool_of(backend: &str) -> &str {
    backend.split_once('/').map_or(backend, |(pool, _)| pool)
}

/// How long the other backends of a service have to follow the first one.
fn back_within(health: &Health) -> Duration {
    health.worst_case_up() + MAX_LATE
}

/// The message for a service that is down.
fn down_words(answering: usize, backends: usize, words: &str) -> String {
    format!("service down: {answering} of {backends} backends answer, and none serves: {words}")
}
