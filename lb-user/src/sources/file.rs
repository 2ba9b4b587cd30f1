//! The files of a configuration, as they are on the disk.

use std::{
    path::{self, Path, PathBuf},
    time::{Duration, Instant},
};

use crate::config::{self, Files, Loaded, Marks, Problems};

/// How long the files must stay as they are before they are read: an editor that writes one is done by then.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// How often they are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A file with those that it includes: what they were like when they were read, and what they are like now.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    files: Files,
    latest: Marks,
    since: Instant,
    looked: Instant,
}

impl File {
    /// Reads a file, and what it includes: the configuration, or every problem with the file and line that it is in.
    pub(crate) fn read(path: &Path) -> (Self, Result<Loaded, Problems>) {
        let (files, loaded) = config::read(path);
        let file = Self {
            path: path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            latest: files.as_read().clone(),
            files,
            since: Instant::now(),
            looked: Instant::now(),
        };
        (file, loaded)
    }

    /// Where it is, from the root.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the files are others than those that were read, and are not being written any more.
    pub(crate) fn has_changed(&mut self) -> bool {
        if self.looked.elapsed() < POLL_INTERVAL {
            return false;
        }
        self.looked = Instant::now();
        let now = self.files.marks();
        if now != self.latest {
            self.latest = now;
            self.since = Instant::now();
        }
        self.latest != *self.files.as_read() && self.since.elapsed() >= SETTLE_TIME
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let mut files = File::read(&path).0;
        assert!(!files.has_changed());
        fs::write(&part, "services: {}\n").unwrap();
        assert!(!files.has_changed(), "not at once");
        let changed = Instant::now();
        wait_for_change(&mut files);
        assert!(changed.elapsed() >= SETTLE_TIME);
        let mut files = File::read(&path).0;
        fs::remove_file(&path).unwrap();
        wait_for_change(&mut files);
    }

    #[test]
    fn a_file_that_comes_or_goes_where_one_is_included_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        let part = folder.path().join("a.part");
        fs::write(&path, "version: 1\ninclude: \"*.part\"\n").unwrap();
        let mut files = File::read(&path).0;
        fs::write(&part, "pools: {}\n").unwrap();
        wait_for_change(&mut files);
        let mut files = File::read(&path).0;
        fs::remove_file(&part).unwrap();
        wait_for_change(&mut files);
    }
}
