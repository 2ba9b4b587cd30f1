//! The pace: whether the thread that checks was late itself. A check that got too little of its time, because
//! the process had no CPU or was stopped, is no verdict on any backend.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use super::carrier_gate::CARRIER_POLL_INTERVAL;

/// A check that has lost that part of its time is none: a backend has had as much as its usual answers take.
const PART: u32 = 4;

/// How late the thread was, in all.
pub(super) struct ThreadLag {
    /// When it is to be looked at next.
    due: Cell<Instant>,
    lost: Cell<Duration>,
    /// Whether it was logged that checks are late.
    said: Cell<bool>,
}

impl ThreadLag {
    /// Kept, as of `now`.
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            due: Cell::new(now),
            lost: Cell::new(Duration::ZERO),
            said: Cell::new(false),
        }
    }

    /// There was no look for a while, and none was due.
    pub(super) fn begin(&self, now: Instant) {
        self.due.set(now + CARRIER_POLL_INTERVAL);
    }

    /// The thread runs; to be called at least every [`CARRIER_POLL_INTERVAL`]. All the time that it was late until now.
    pub(super) fn look(&self, now: Instant) -> Duration {
        let late = now.saturating_duration_since(self.due.get());
        self.lost.set(self.lost.get() + late);
        self.due.set(now + CARRIER_POLL_INTERVAL);
        self.lost.get()
    }

    /// Whether a check that may take so long had its time, if so much was lost before it began. Logs it once
    /// where it had not.
    pub(super) fn was_kept(&self, before: Duration, timeout: Duration, network: &str) -> bool {
        let lost = self.look(Instant::now()).saturating_sub(before);
        let was_kept = lost < timeout / PART;
        if !was_kept && !self.said.replace(true) {
            tracing::error!(
                network,
                late_ms = lost.as_millis(),
                "checks are late because lb gets too little CPU: the verdicts of backends stay as they are; \
                 give it more (CPUWeight= of the unit, cgroup limits)"
            );
        }
        if was_kept {
            self.said.set(false);
        }
        was_kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    #[test]
    fn who_runs_in_time_loses_nothing() {
        let mut now = Instant::now();
        let pace = ThreadLag::new(now);
        pace.begin(now);
        for _ in 0..100 {
            now += CARRIER_POLL_INTERVAL;
            assert_eq!(pace.look(now), Duration::ZERO);
        }
    }

    #[test]
    fn what_is_lost_is_what_the_thread_was_late() {
        let begun = Instant::now();
        let pace = ThreadLag::new(begun);
        pace.begin(begun);
        let late = Duration::from_millis(250);
        assert_eq!(pace.look(begun + CARRIER_POLL_INTERVAL + late), late);
        assert_eq!(
            pace.look(begun + 2 * CARRIER_POLL_INTERVAL + 2 * late),
            2 * late
        );
        // Looks in between show that it runs.
        assert_eq!(
            pace.look(begun + 2 * CARRIER_POLL_INTERVAL + 2 * late),
            2 * late
        );
        pace.begin(begun + 100 * CARRIER_POLL_INTERVAL);
        assert_eq!(
            pace.look(begun + 101 * CARRIER_POLL_INTERVAL),
            2 * late,
            "it was not to look"
        );
    }

    #[test]
    fn a_check_without_its_time_is_none() {
        for (ago, was_kept) in [
            (CARRIER_POLL_INTERVAL, true),
            (CARRIER_POLL_INTERVAL + TIMEOUT / 2, false),
        ] {
            let now = Instant::now();
            let Some(begun) = now.checked_sub(ago) else {
                return;
            };
            let pace = ThreadLag::new(begun);
            pace.begin(begun);
            assert_eq!(pace.was_kept(Duration::ZERO, TIMEOUT, "n"), was_kept);
            // What was lost before a check began is not its own loss.
            let before = pace.look(Instant::now());
            assert!(pace.was_kept(before, TIMEOUT, "n"));
        }
    }
}
