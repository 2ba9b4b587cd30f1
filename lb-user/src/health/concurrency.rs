//! How many checks of all networks may be on their way at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::system::fd_limit;

/// A turn for each check that may be on its way: each backend has one at most, so there are enough for all
/// wherever a process may have eight times as many files open. A check that needs one then gets it at once,
/// however many backends are dead and take all of their time.
pub fn turns() -> Arc<Semaphore> {
    let most = fd_limit::of_checks().max(1);
    Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))
}
