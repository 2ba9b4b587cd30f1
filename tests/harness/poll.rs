//! Waiting for something to become true, with a deadline instead of a fixed sleep.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Pause between two looks: short against every deadline here, long against the cost of a look.
const PAUSE: Duration = Duration::from_millis(20);

/// How many times as long a limit is, where the machine is so much slower: one that is emulated.
const TIMEOUT_FACTOR: &str = "LB_TEST_PATIENCE";

/// Calls `probe` until it gives a value or `limit` has passed, or as many times that as `LB_TEST_PATIENCE` says.
///
/// # Errors
///
/// The error of `probe`, at once: a probe returns `Ok(None)` for "not yet". After `limit`, an error
/// that names `what`.
pub fn until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let times = env::var(TIMEOUT_FACTOR)
        .ok()
        .and_then(|times| times.parse().ok());
    let limit = limit * times.unwrap_or(1);
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            bail!("{what}: not within {} s", limit.as_secs_f32());
        }
        thread::sleep(PAUSE);
    }
}
