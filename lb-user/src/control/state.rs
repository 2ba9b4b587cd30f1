//! What outlives the process beside the maps: verdicts, overrides, drains, and a change that nobody has
//! confirmed yet. A file in the runtime folder, always whole, and a copy of it.

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
    /// Reads the state that an earlier process has left in a runtime folder: the file, or its copy if the
    /// file cannot be read; an empty one if there is none of the two.
    pub fn load(runtime: &Path) -> Self {
        let [file, copy] = paths(runtime);
        match (Self::read(&file), Self::read(&copy)) {
            (Ok(Some(state)), _) | (Ok(None), Ok(Some(state))) => state,
            (Err(error), Ok(Some(state))) => {
                let (file, copy) = (file.display(), copy.display());
                tracing::error!(
                    "{file} cannot be read, so its copy {copy} is taken, which may lack what was noted \
                     last: {error:#}"
                );
                state
            }
            (Err(error), _) | (Ok(None), Err(error)) => {
                let file = file.display();
                tracing::error!(
                    "neither {file} nor its copy can be read, so overrides, drains and verdicts begin \
                     anew: {error:#}"
                );
                Self::default()
            }
            (Ok(None), Ok(None)) => Self::default(),
        }
    }

    fn read(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        Ok(Some(serde_json::from_slice(&text)?))
    }

    /// Writes it, and its copy: of the same, so that neither knows a change that waits to be confirmed and
    /// the other does not.
    ///
    /// # Errors
    ///
    /// If a file cannot be written; those before stay.
    pub fn save(&self, runtime: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("write the state as JSON")?;
        let [file, copy] = paths(runtime);
        let beside = write_beside(&file, &text)?;
        let beside_copy = write_beside(&copy, &text)?;
        beside.put(&file)?;
        beside_copy.put(&copy)
    }
}

/// The file, and its copy.
fn paths(runtime: &Path) -> [PathBuf; 2] {
    ["state.json", "state.json.copy"].map(|name| runtime.join(name))
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
    // What an earlier process has left half written; what somebody has put there to lead elsewhere is not
    // followed.
    match fs::remove_file(&beside.0) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).with_context(name),
        _ => {}
    }
    let mut file = File::create_new(&beside.0).with_context(name)?;
    file.write_all(bytes).with_context(name)?;
    file.sync_all().with_context(name)?;
    Ok(beside)
}

/// As [`write_beside`]; nothing if that is what is there already, so that it needs no room.
///
/// # Errors
///
/// As for [`write_beside`].
pub fn change_beside(path: &Path, bytes: &[u8]) -> Result<Option<Beside>> {
    // A link is none of ours, whatever it leads to.
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    let is_there = is_file && fs::read(path).is_ok_and(|there| there == bytes);
    (!is_there).then(|| write_beside(path, bytes)).transpose()
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

    const BROKEN: [&str; 5] = ["", "{", "[", "{\"overrides\": 3}", "\0\0"];

    #[test]
    fn of_a_broken_state_the_copy_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let [file, copy] = paths(folder.path());
        let other = State {
            unconfirmed: None,
            ..state()
        };
        for broken in BROKEN {
            other.save(folder.path()).unwrap();
            state().save(folder.path()).unwrap();
            fs::write(&copy, broken).unwrap();
            assert_eq!(State::load(folder.path()), state(), "{broken}");
            state().save(folder.path()).unwrap();
            fs::write(&file, broken).unwrap();
            assert_eq!(State::load(folder.path()), state(), "{broken}");
            other.save(folder.path()).unwrap();
            assert_eq!(State::load(folder.path()), other, "it is whole again");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(State::load(folder.path()), other, "the file is gone");
    }

    #[test]
    fn without_a_whole_copy_a_broken_state_is_none() {
        for broken in BROKEN {
            let folder = tempfile::tempdir().unwrap();
            let [file, copy] = paths(folder.path());
            fs::write(file, broken).unwrap();
            assert_eq!(State::load(folder.path()), State::default(), "{broken}");
            fs::write(copy, broken).unwrap();
            assert_eq!(State::load(folder.path()), State::default(), "{broken}");
        }
    }

    #[test]
    fn a_write_that_fails_leaves_what_was() {
        for name in ["state.json.new", "state.json.copy.new"] {
            let folder = tempfile::tempdir().unwrap();
            state().save(folder.path()).unwrap();
            fs::create_dir(folder.path().join(name)).unwrap();
            assert!(State::default().save(folder.path()).is_err());
            assert_eq!(State::load(folder.path()), state(), "{name}");
        }
    }

    #[test]
    fn what_is_there_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        assert!(change_beside(&path, b"one").unwrap().is_some());
        write(&path, b"one").unwrap();
        assert!(change_beside(&path, b"one").unwrap().is_none());
        assert!(change_beside(&path, b"on").unwrap().is_some());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(change_beside(&link, b"one").unwrap().is_some());
    }

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, victim] = ["f", "victim"].map(|name| folder.path().join(name));
        fs::write(&victim, "mine").unwrap();
        for name in ["f", "f.new"] {
            std::os::unix::fs::symlink(&victim, folder.path().join(name)).unwrap();
        }
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert!(!path.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
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
