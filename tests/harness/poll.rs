//! Waiting for something to become true, with a deadline instead of a fixed sleep.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Pause between two looks: short against every deadline here, long against the cost of a look.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `probe` until it gives a value or `limit` has passed.
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
