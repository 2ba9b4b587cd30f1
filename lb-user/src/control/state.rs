//! What outlives the process beside the maps: verdicts, overrides, drains, and a change that nobody has
//! confirmed yet. A file in the runtime folder, always whole.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::time::ClockId;
use serde::{Deserialize, Serialize};

use super::{drains::Drains, unconfirmed::Unconfirmed};
use crate::{admin::api::Override, health::Standing};

/// The state; backends by their names in the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// What checks have found.
    pub standings: BTreeMap<String, Standing>,
    /// What the operator says.
    pub overrides: BTreeMap<String, Override>,
    /// When the flows of a backend that gets no new ones shall end.
    pub drains: Drains,
    /// A change that nobody has confirmed yet.
    pub unconfirmed: Option<Unconfirmed>,
}

/// A time since the host was started, in milliseconds: it is not changed by anybody, and goes on while
/// the host sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Uptime(u64);

impl Uptime {
    /// Now.
    pub fn now() -> Self {
        // The clock is always there.
        let time = ClockId::CLOCK_BOOTTIME.now().map(Duration::from);
        Self(millis(time.unwrap_or_default()))
    }

    /// So much later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(millis(time)))
    }

    /// How long it is until then; zero if it is past.
    pub fn left(self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(Self::now().0))
    }

    /// Whether it is past.
    pub fn is_over(self) -> bool {
        self.left().is_zero()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl State {
    /// Reads the state that an earlier process has left in a runtime folder; an empty one if there is
    /// none, or if it cannot be read.
    pub fn load(runtime: &Path) -> Self {
        let path = path(runtime);
        let read = || -> Result<Self> {
            let text = match fs::read(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
                text => text?,
            };
            Ok(serde_json::from_slice(&text)?)
        };
        read().unwrap_or_else(|error| {
            let path = path.display();
            tracing::error!(
                "{path} cannot be read, so overrides, drains and verdicts begin anew: {error:#}"
            );
            Self::default()
        })
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; the one before stays.
    pub fn save(&self, runtime: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("write the state as JSON")?;
        write(&path(runtime), &text)
    }
}

fn path(runtime: &Path) -> PathBuf {
    runtime.join("state.json")
}

/// Writes a file so that it is never half a file: beside it, then in its place.
///
/// # Errors
///
/// If that fails; what was there before stays.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes)?.put(path)
}

/// A file that is written and waits to be put in its place.
#[derive(Debug)]
pub struct Beside(PathBuf);

/// Writes what shall be at `path`, but beside it: from then on a full disk is no danger.
///
/// # Errors
///
/// If that fails; nothing is left then.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<Beside> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Beside(beside.into());
    let name = || format!("write {}", beside.0.display());
    let mut file = File::create(&beside.0).with_context(name)?;
    file.write_all(bytes).with_context(name)?;
    file.sync_all().with_context(name)?;
    Ok(beside)
}

impl Beside {
    /// Puts it in its place.
    ///
    /// # Errors
    ///
    /// If it cannot be renamed.
    pub fn put(self, path: &Path) -> Result<()> {
        fs::rename(&self.0, path).with_context(|| format!("rename to {}", path.display()))
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Once it is in its place there is nothing.
        let _gone = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Verdict;

    fn state() -> State {
        let standing = Standing {
            verdict: Verdict::NotReady,
            against: 1,
            flaps: 2,
        };
        State {
            standings: [("p/a@n/10.0.0.1".to_owned(), standing)].into(),
            overrides: [("p/b@n/10.0.0.2".to_owned(), Override::Weight { weight: 3 })].into(),
            drains: Drains::default(),
            unconfirmed: Some(Unconfirmed {
                until: Uptime(99),
                before: "version: 1".to_owned(),
                after: "version: 1 ".to_owned(),
            }),
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(State::load(folder.path()), State::default());
        state().save(folder.path()).unwrap();
        assert_eq!(State::load(folder.path()), state());
        assert!(!folder.path().join("state.json.new").exists());
    }

    #[test]
    fn a_broken_state_is_none() {
        let folder = tempfile::tempdir().unwrap();
        for broken in ["", "{", "[]", "{\"overrides\": 3}", "\0\0"] {
            fs::write(folder.path().join("state.json"), broken).unwrap();
            assert_eq!(State::load(folder.path()), State::default(), "{broken}");
        }
    }

    #[test]
    fn a_write_that_fails_leaves_what_was() {
        let folder = tempfile::tempdir().unwrap();
        state().save(folder.path()).unwrap();
        fs::create_dir(folder.path().join("state.json.new")).unwrap();
        assert!(State::default().save(folder.path()).is_err());
        assert_eq!(State::load(folder.path()), state());
    }

    #[test]
    fn a_file_that_is_not_put_in_its_place_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write(&path, b"old").unwrap();
        drop(write_beside(&path, b"new").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(!folder.path().join("f.new").exists());
    }

    #[test]
    fn a_time_is_over_when_it_is_past() {
        let soon = Uptime::now().after(Duration::from_secs(100));
        assert!(!soon.is_over());
        assert!(soon.left() > Duration::from_secs(90));
        assert!(Uptime(0).is_over());
        assert_eq!(Uptime(0).left(), Duration::ZERO);
        assert_eq!(Uptime(5).after(Duration::MAX), Uptime(u64::MAX));
    }
}
