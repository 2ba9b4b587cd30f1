//! The files of a configuration, as they are on the disk.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::config::{self, Loaded, Problems};

/// How long the files must stay as they are before they are read: an editor that writes one is done by then.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// How often they are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What distinguishes one state of a file from another: where it is, when it was changed, its size.
type Mark = Option<(u64, i64, i64, u64)>;

/// A file with those that it includes: what they were like when they were applied, and what they are like now.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    applied: BTreeMap<PathBuf, Mark>,
    latest: BTreeMap<PathBuf, Mark>,
    since: Instant,
    looked: Instant,
}

impl File {
    /// Looks at a file that is being applied.
    pub(crate) fn look(path: &Path) -> Self {
        let applied = marks(path);
        Self {
            path: path.to_owned(),
            latest: applied.clone(),
            applied,
            since: Instant::now(),
            looked: Instant::now(),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration.
    ///
    /// # Errors
    ///
    /// Every problem, with the file and line that it is in.
    pub(crate) fn load(&self) -> Result<Loaded, Problems> {
        config::load_text(&self.path)
    }

    /// Whether the files are others than those that were looked at first, and are not being written any more.
    pub(crate) fn has_changed(&mut self) -> bool {
        if self.looked.elapsed() < POLL_INTERVAL {
            return false;
        }
        self.looked = Instant::now();
        let now = marks(&self.path);
        if now != self.latest {
            self.latest = now;
            self.since = Instant::now();
        }
        self.latest != self.applied && self.since.elapsed() >= SETTLE_TIME
    }
}

fn marks(file: &Path) -> BTreeMap<PathBuf, Mark> {
    let mark = |path: &Path| {
        let data = fs::metadata(path).ok()?;
        Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))
    };
    let files = config::files(file).into_iter();
    files.map(|path| (path.clone(), mark(&path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for_change(files: &mut File) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !files.has_changed() {
            assert!(Instant::now() < deadline, "no change is seen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_change_is_seen_when_it_has_come_to_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        let part = folder.path().join("part.yaml");
        fs::write(&path, "version: 1\ninclude: part.yaml\n").unwrap();
        fs::write(&part, "pools: {}\n").unwrap();
        let mut files = File::look(&path);
        assert!(!files.has_changed());
        fs::write(&part, "services: {}\n").unwrap();
        assert!(!files.has_changed(), "not at once");
        let changed = Instant::now();
        wait_for_change(&mut files);
        assert!(changed.elapsed() >= SETTLE_TIME);
        let mut files = File::look(&path);
        fs::remove_file(&path).unwrap();
        wait_for_change(&mut files);
    }
}
