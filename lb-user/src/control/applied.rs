//! The configuration that was applied last, as text, so that other processes know the names behind the ids.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::dataplane::pins::Pins;

/// The name of the applied configuration.
const APPLIED: &str = "applied.yaml";

/// The configuration file of the last successful start, as text.
///
/// # Errors
///
/// If the instance never started.
pub fn applied(pins: &Pins) -> Result<String> {
    let read = |path: &PathBuf| fs::read_to_string(path);
    let text = read(&before_path(pins)).or_else(|_| read(&applied_path(pins)));
    text.with_context(|| {
        format!(
            "instance {} has no applied configuration; is it up?",
            pins.instance()
        )
    })
}

/// Where the text of the applied configuration is, so that other processes know the names behind the
/// ids.
pub(crate) fn applied_path(pins: &Pins) -> PathBuf {
    pins.state().join(APPLIED)
}

/// Where versions of before had it, which a reboot empties.
pub(crate) fn before_path(pins: &Pins) -> PathBuf {
    pins.runtime().join(APPLIED)
}
