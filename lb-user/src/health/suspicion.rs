//! A backend that is suspected: traffic has found it silent, or refusing, and it is checked at once.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::sleep_until};

/// The least time from one suspicion to the next that counts: a client may fake what is suspicious, and costs its
/// backend one check in this time.
const SUSPICION_INTERVAL: Duration = Duration::from_secs(1);
/// How long a suspected backend has to answer, if its checks have not less.
pub(super) const SUSPECTED_TIMEOUT: Duration = Duration::from_millis(300);

/// The suspicions of one backend.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    latest: Cell<Option<Instant>>,
    begun: Notify,
}

impl Suspicion {
    /// Has the backend checked at once, unless it just was.
    pub(super) fn begin(&self, now: Instant) {
        let latest = self.latest.get();
        if latest.is_some_and(|latest| now.saturating_duration_since(latest) < SUSPICION_INTERVAL) {
            return;
        }
        self.latest.set(Some(now));
        self.begun.notify_one();
    }

    /// Waits until a check is due; returns whether that is because of a suspicion.
    pub(super) async fn wait(&self, due: Instant) -> bool {
        tokio::select! {
            () = sleep_until(due.into()) => false,
            () = self.begun.notified() => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_suspicion_does_not_wait_and_has_a_rate() {
        let (suspicion, start) = (Suspicion::default(), Instant::now());
        let due = start + Duration::from_millis(10);
        assert!(!suspicion.wait(due).await);
        suspicion.begin(start);
        suspicion.begin(start + SUSPICION_INTERVAL / 2);
        assert!(suspicion.wait(start + Duration::from_secs(60)).await);
        assert!(!suspicion.wait(due).await, "there was one");
        suspicion.begin(start + SUSPICION_INTERVAL);
        assert!(suspicion.wait(start + Duration::from_secs(60)).await);
    }
}
