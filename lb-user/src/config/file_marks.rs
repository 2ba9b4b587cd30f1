//! Which files a configuration was read from, and what they were like then.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::files::matches;

/// What distinguishes one state of a file from another: its inode, when it was changed (seconds and nanoseconds), its
/// size in bytes. None where there is no file.
type Mark = Option<(u64, i64, i64, u64)>;

/// The states of some files.
pub(crate) type Marks = BTreeMap<PathBuf, Mark>;

/// The files of a configuration. Each was looked at before it was read: one that is changed meanwhile differs from then on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    /// The main one; none for a text.
    main: PathBuf,
    /// What it includes.
    globs: Vec<String>,
    as_read: Marks,
}

impl Files {
    /// The main file, before it is read.
    pub(super) fn of(main: &Path) -> Self {
        let mut files = Self {
            main: main.to_owned(),
            ..Self::default()
        };
        files.as_read = files.marks();
        files
    }

    /// The main file includes what these stand for; they are not read yet.
    pub(super) fn include(&mut self, globs: Vec<String>) {
        self.globs = globs;
        for (path, mark) in self.marks() {
            self.as_read.entry(path).or_insert(mark);
        }
    }

    /// What they were like when they were read.
    pub(crate) const fn as_read(&self) -> &Marks {
        &self.as_read
    }

    /// What they are like now, with those that have come since.
    pub(crate) fn marks(&self) -> Marks {
        let included = self.globs.iter();
        let included = included.filter_map(|glob| matches(&self.main, glob).ok());
        let paths = [self.main.clone()].into_iter().chain(included.flatten());
        paths.map(|path| (path.clone(), mark(&path))).collect()
    }
}

fn mark(path: &Path) -> Mark {
    let data = fs::metadata(path).ok()?;
    Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))
}
