//! Tools that cargo installs into the cache: the one table.

use std::path::PathBuf;

use crate::{pins, stock::Purpose, workspace::Workspace};

/// A tool of a pinned version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    binary: &'static str,
    /// More arguments of `cargo install`.
    pub(crate) arguments: &'static [&'static str],
    /// On disk, as set-up lists it.
    pub(crate) size: &'static str,
    /// Of its build with 2 cores, as set-up lists it.
    pub(crate) time: &'static str,
    purposes: &'static [Purpose],
}

const CHECKS: &[Purpose] = &[
    Purpose::Check,
    Purpose::LongTest,
    Purpose::Setup,
    Purpose::Test,
];

pub(crate) const CARGO_DENY: Tool = Tool {
    package: "cargo-deny",
    version: pins::CARGO_DENY,
    binary: "cargo-deny",
    arguments: &[],
    size: "20 MB",
    time: "4 min",
    purposes: CHECKS,
};

/// Without its server, which would watch the files.
pub(crate) const MDBOOK: Tool = Tool {
    package: "mdbook",
    version: pins::MDBOOK,
    binary: "mdbook",
    arguments: &["--no-default-features", "--features", "search"],
    size: "20 MB",
    time: "2 min",
    purposes: &[Purpose::Book],
};

/// Without the tables of British and American spelling: both are fine.
pub(crate) const TYPOS: Tool = Tool {
    package: "typos-cli",
    version: pins::TYPOS,
    binary: "typos",
    arguments: &["--no-default-features", "--features", "dict"],
    size: "30 MB",
    time: "2 min",
    purposes: CHECKS,
};

const ALL: [&Tool; 3] = [&CARGO_DENY, &MDBOOK, &TYPOS];

impl Tool {
    pub(crate) fn is_for(&self, purpose: Purpose) -> bool {
        self.purposes.contains(&purpose)
    }

    /// Where it is, once it is installed.
    pub(crate) fn path(&self, workspace: &Workspace) -> PathBuf {
        let root = workspace.tool_root(self.package, self.version);
        root.join("bin").join(self.binary)
    }

    fn starts(&self, workspace: &Workspace) -> bool {
        let path = self.path(workspace);
        workspace
            .command(&path.to_string_lossy())
            .arg("--version")
            .probe()
            .is_some()
    }
}

/// Those that are not there, or do not start.
pub(crate) fn absent(workspace: &Workspace) -> Vec<&'static Tool> {
    ALL.into_iter()
        .filter(|tool| !tool.starts(workspace))
        .collect()
}

#[cfg(test)]
pub(crate) fn all() -> Vec<&'static Tool> {
    ALL.into()
}
