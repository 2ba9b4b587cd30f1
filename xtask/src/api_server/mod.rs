//! The API server of Kubernetes that namespace tests run, with etcd and kubectl: in one folder of the cache, where
//! set-up builds it. Tests that need it are left out, and the table says so, where it is not.

mod build;
mod openapi;

use std::path::PathBuf;

pub(crate) use self::build::build;
use crate::{apt, pins, workspace::Workspace};

/// The variable that tells a test where the API server is; `etcd` and `kubectl` are beside it.
pub(crate) const VARIABLE: &str = "LB_KUBE_APISERVER";
/// The namespace tests that need it.
pub(crate) const TESTS: &str = "kubernetes::";

const PROGRAM: &str = "kube-apiserver";
/// What Debian has as packages, which are not installed, because it starts etcd where it is.
const PACKAGED: [&str; 2] = ["etcd", "kubectl"];

/// Whether there is an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Absent,
    Here,
    /// It is not here, and cannot be built; the reason.
    Impossible(String),
}

pub(crate) fn state(workspace: &Workspace) -> State {
    if path(workspace).is_some() {
        return State::Here;
    }
    match apt::is_usable(workspace) {
        Ok(()) => State::Absent,
        Err(reason) => State::Impossible(format!("{reason:#}")),
    }
}

/// Where it is, if it is there with all that it needs.
pub(crate) fn path(workspace: &Workspace) -> Option<PathBuf> {
    let folder = folder(workspace);
    let mut programs = PACKAGED.into_iter().chain([PROGRAM]);
    programs
        .all(|program| folder.join(program).exists())
        .then(|| folder.join(PROGRAM))
}

/// Why tests that need it are left out; nothing where it is.
pub(crate) fn absence(workspace: &Workspace) -> Option<String> {
    reason(state(workspace))
}

fn reason(state: State) -> Option<String> {
    match state {
        State::Absent => Some(format!(
            "{} is not in the cache: `cargo xtask setup` builds it",
            name()
        )),
        State::Here => None,
        State::Impossible(reason) => Some(reason),
    }
}

/// As set-up lists it.
pub(crate) fn name() -> String {
    format!("{PROGRAM} {}", pins::KUBERNETES)
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.tool_root(PROGRAM, pins::KUBERNETES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_left_out_with_the_reason() {
        assert_eq!(reason(State::Here), None);
        let absent = reason(State::Absent).unwrap();
        assert!(absent.contains("cargo xtask setup"), "{absent}");
        let no_apt = "there is no apt".to_owned();
        assert_eq!(reason(State::Impossible(no_apt.clone())), Some(no_apt));
    }
}
