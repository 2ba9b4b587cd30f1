//! What outlives the process beside the maps: verdicts, drains, a change that is not confirmed yet, and the network
//! namespace, in the runtime folder; overrides, which outlive a reboot, in the state folder. Each is a file, always
//! whole, and a copy of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self},
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::time::ClockId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{confirm::Unconfirmed, drains::Drains};
use crate::{
    api::Overrides,
    dataplane::pins::Pins,
    health::Standing,
    system::files::{Beside, change_beside, write_beside},
};

/// The state; backends by their names in the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// What checks have found.
    pub standings: BTreeMap<String, Standing>,
    /// The pools whose services are down, though their backends answer.
    pub services_down: BTreeSet<String>,
    /// What the operator has set. In a file of its own.
    #[serde(skip)]
    pub overrides: Overrides,
    /// When the flows of a backend that gets no new ones shall end.
    pub drains: Drains,
    /// A change that the operator has not confirmed yet.
    pub unconfirmed: Option<Unconfirmed>,
    /// The network namespace of the process, as the inode of its file (namespaces(7)); 0 if it is not known.
    pub namespace: u64,
}

/// The file in the runtime folder. Versions of before had overrides there as well: then they are the latest.
#[derive(Default, Deserialize)]
struct Runtime {
    #[serde(flatten)]
    state: State,
    overrides: Option<Overrides>,
}

/// The names of the two files.
const STATE: &str = "state.json";
const OVERRIDES: &str = "overrides.json";

/// A time since the host was started, in milliseconds: setting the clock does not change it, and it goes on
/// while the host sleeps.
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
    /// Reads the state that an earlier process of an instance has left: each file, or its copy if the file cannot
    /// be read; an empty one if there is none of the two.
    pub fn load(pins: &Pins) -> Self {
        Self::load_from(&pins.runtime(), &pins.state())
    }

    fn load_from(runtime: &Path, lasting: &Path) -> Self {
        let Runtime { state, overrides } = read_either(runtime, STATE).unwrap_or_default();
        if let Some(moved) = &overrides
            && let Err(error) = keep(moved, lasting)
        {
            tracing::error!("overrides of backends do not outlive a reboot: {error:#}");
        }
        let overrides = overrides.or_else(|| read_either(lasting, OVERRIDES));
        Self {
            overrides: overrides.unwrap_or_default(),
            ..state
        }
    }

    /// The operators' overrides of backends of an instance, also from before a reboot.
    pub fn of_operators(pins: &Pins) -> Overrides {
        Self::load(pins).overrides
    }

    /// The network namespace of the process that wrote it last, as in [`Self::namespace`].
    pub fn namespace_of(pins: &Pins) -> u64 {
        let state: Option<Self> = read_either(&pins.runtime(), STATE);
        state.unwrap_or_default().namespace
    }

    /// Writes it, and its copies: of the same, so that neither knows a change that waits to be confirmed and
    /// the other does not.
    ///
    /// # Errors
    ///
    /// If a file cannot be written; those before stay.
    pub fn save(&self, pins: &Pins) -> Result<()> {
        self.save_to(&pins.runtime(), &pins.state())
    }

    fn save_to(&self, runtime: &Path, lasting: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).context("write the state as JSON")?;
        let mut all = changed(&self.overrides, lasting)?;
        for path in paths(runtime, STATE) {
            all.push((write_beside(&path, &text)?, path));
        }
        all.into_iter()
            .try_for_each(|(beside, path)| beside.put(&path))
    }
}

/// Writes overrides where they outlive a reboot: an older process has left them where they do not.
fn keep(overrides: &Overrides, lasting: &Path) -> Result<()> {
    fs::create_dir_all(lasting).with_context(|| format!("create {}", lasting.display()))?;
    changed(overrides, lasting)?
        .into_iter()
        .try_for_each(|(beside, path)| beside.put(&path))
}

/// Overrides as they are to be in their files, beside those that are otherwise.
fn changed(overrides: &Overrides, lasting: &Path) -> Result<Vec<(Beside, PathBuf)>> {
    let text = serde_json::to_vec_pretty(overrides).context("write overrides as JSON")?;
    let paths = paths(lasting, OVERRIDES);
    let mut all = Vec::new();
    // Of none there need be no file.
    if !overrides.is_empty() || paths.iter().any(|path| path.exists()) {
        for path in paths {
            // They change seldom, and the disk is slow.
            if let Some(beside) = change_beside(&path, &text)? {
                all.push((beside, path));
            }
        }
    }
    Ok(all)
}

/// A file of a folder, or its copy if it cannot be read.
fn read_either<T: DeserializeOwned>(folder: &Path, name: &str) -> Option<T> {
    let [file, copy] = paths(folder, name);
    match (read(&file), read(&copy)) {
        (Ok(Some(state)), _) | (Ok(None), Ok(Some(state))) => Some(state),
        (Err(error), Ok(Some(state))) => {
            let (file, copy) = (file.display(), copy.display());
            tracing::error!(
                "{file} cannot be read, so its copy {copy} is taken, which may lack the latest overrides and \
                 verdicts: {error:#}"
            );
            Some(state)
        }
        (Err(error), _) | (Ok(None), Err(error)) => {
            let file = file.display();
            tracing::error!(
                "neither {file} nor its copy can be read, so overrides and verdicts begin anew: {error:#}"
            );
            None
        }
        (Ok(None), Ok(None)) => None,
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    Ok(Some(serde_json::from_slice(&text)?))
}

/// The file, and its copy.
fn paths(folder: &Path, name: &str) -> [PathBuf; 2] {
    [name.to_owned(), format!("{name}.copy")].map(|name| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Override;
    use crate::{config::Kept, health::HealthVerdict};

    fn state() -> State {
        let standing = Standing {
            verdict: HealthVerdict::NotReady,
            against: 1,
            flaps: 2,
            good_ms: 0,
        };
        State {
            standings: [("p/a@n/10.0.0.1".to_owned(), standing)].into(),
            services_down: ["p".to_owned()].into(),
            overrides: [("p/b@n/10.0.0.2".to_owned(), Override::Weight { weight: 3 })].into(),
            drains: Drains::default(),
            unconfirmed: Some(Unconfirmed {
                until: Uptime(99),
                before: Kept::Text("version: 1".to_owned()),
                after: Kept::Text("version: 1 ".to_owned()),
                file: Some(PathBuf::from("/etc/lb/lb.yaml")),
            }),
            namespace: 4_026_531_840,
        }
    }

    /// In one folder.
    fn load(folder: &Path) -> State {
        State::load_from(folder, folder)
    }

    impl State {
        fn saved(&self, folder: &Path) -> Result<()> {
            self.save_to(folder, folder)
        }
    }

    /// A reboot empties the runtime folder.
    #[test]
    fn overrides_outlive_a_reboot_and_nothing_else() {
        let [runtime, lasting] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [runtime, lasting] = [runtime.path(), lasting.path()];
        State::default().save_to(runtime, lasting).unwrap();
        assert_eq!(fs::read_dir(lasting).unwrap().count(), 0);
        state().save_to(runtime, lasting).unwrap();
        assert_eq!(State::load_from(runtime, lasting), state());
        for path in paths(runtime, STATE) {
            fs::remove_file(path).unwrap();
        }
        let left = State {
            overrides: state().overrides,
            ..State::default()
        };
        assert_eq!(State::load_from(runtime, lasting), left);
        // A file of which a half is left, and its copy.
        let [file, _] = paths(lasting, OVERRIDES);
        fs::write(&file, "{").unwrap();
        assert_eq!(State::load_from(runtime, lasting), left);
        State::default().save_to(runtime, lasting).unwrap();
        assert_eq!(State::load_from(runtime, lasting), State::default());
    }

    /// A version of before that ran last has all of it in one file.
    #[test]
    fn overrides_are_moved() {
        let [runtime, lasting] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [runtime, lasting] = [runtime.path(), lasting.path()];
        let [file, _] = paths(runtime, STATE);
        let old = r#"{ "overrides": { "p/b": { "override": "weight", "weight": 3 } } }"#;
        let old = old.replace(
            r#"{ "override": "weight", "weight": 3 }"#,
            &serde_json::to_string(&Override::Weight { weight: 3 }).unwrap(),
        );
        fs::write(file, old).unwrap();
        let [stale, _] = paths(lasting, OVERRIDES);
        fs::write(stale, "{}").unwrap();
        let loaded = State::load_from(runtime, lasting);
        let moved: Overrides = [("p/b".to_owned(), Override::Weight { weight: 3 })].into();
        assert_eq!(loaded.overrides, moved);
        // Also if nothing changes until the reboot.
        fs::remove_file(runtime.join(STATE)).unwrap();
        assert_eq!(State::load_from(runtime, lasting).overrides, moved);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(folder.path()), State::default());
        state().saved(folder.path()).unwrap();
        assert_eq!(load(folder.path()), state());
        assert!(!folder.path().join("state.json.new").exists());
    }

    /// As the release before wrote it.
    #[test]
    fn a_state_that_does_not_name_the_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let text =
            r#"{"unconfirmed": {"until": 99, "before": "version: 1", "after": "version: 1 "}}"#;
        fs::write(folder.path().join("state.json"), text).unwrap();
        let unconfirmed = load(folder.path()).unconfirmed.unwrap();
        assert_eq!(unconfirmed.file, None);
        assert_eq!(unconfirmed.until, Uptime(99));
    }

    const BROKEN: [&str; 5] = ["", "{", "[", "{\"overrides\": 3}", "\0\0"];

    #[test]
    fn of_a_broken_state_the_copy_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let [file, copy] = paths(folder.path(), STATE);
        let other = State {
            unconfirmed: None,
            ..state()
        };
        for broken in BROKEN {
            other.saved(folder.path()).unwrap();
            state().saved(folder.path()).unwrap();
            fs::write(&copy, broken).unwrap();
            assert_eq!(load(folder.path()), state(), "{broken}");
            state().saved(folder.path()).unwrap();
            fs::write(&file, broken).unwrap();
            assert_eq!(load(folder.path()), state(), "{broken}");
            other.saved(folder.path()).unwrap();
            assert_eq!(load(folder.path()), other, "it is whole again");
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(load(folder.path()), other, "the file is gone");
    }

    #[test]
    fn without_a_whole_copy_a_broken_state_is_none() {
        for broken in BROKEN {
            let folder = tempfile::tempdir().unwrap();
            let [file, copy] = paths(folder.path(), STATE);
            fs::write(file, broken).unwrap();
            assert_eq!(load(folder.path()), State::default(), "{broken}");
            fs::write(copy, broken).unwrap();
            assert_eq!(load(folder.path()), State::default(), "{broken}");
        }
    }

    #[test]
    fn a_write_that_fails_leaves_what_was() {
        for name in ["state.json.new", "state.json.copy.new"] {
            let folder = tempfile::tempdir().unwrap();
            state().saved(folder.path()).unwrap();
            fs::create_dir(folder.path().join(name)).unwrap();
            assert!(State::default().saved(folder.path()).is_err());
            assert_eq!(load(folder.path()), state(), "{name}");
        }
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
