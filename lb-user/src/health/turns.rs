//! Turns: how many checks of all networks may be on their way at a time.

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::Semaphore;

/// A turn for each check that may be on its way: each backend has one at most, so there are enough for
/// all wherever a process may have twice as many files open. Who needs one then waits for nobody,
/// however many are dead and take all of their time.
pub fn turns() -> Arc<Semaphore> {
    let files = raise_limit().unwrap_or_else(|error| {
        tracing::warn!("the limit of open files stays as it is: {error}");
        FEW
    });
    let most = usize::try_from(files / 2).unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))
}

/// Open files that every process may have, if nobody says otherwise.
const FEW: u64 = 1024;

/// Raises the limit of open files to the most that this process may ask for: that.
fn raise_limit() -> nix::Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}
