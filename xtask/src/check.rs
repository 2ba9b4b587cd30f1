//! `cargo xtask check`: format, lints of both sides, docs, dependencies. Nothing here needs root.

use std::process::ExitCode;

use anyhow::Result;

use crate::{
    book,
    cmd::{Cmd, text_of},
    floors, links, prose, setup,
    steps::{Outcome, Steps},
    stock::Purpose,
    tools::TYPOS,
    workspace::Workspace,
};

/// What the real build of lb-ebpf sets too; lints must see the same conditional code. Cargo takes
/// a list in this variable, and it overrides any rustflags of the host.
const EBPF_RUSTFLAGS: &str = "--cfg=bpf_target_arch=\"x86_64\"";

/// What is built for the bpf target only.
const EBPF_PACKAGES: [&str; 2] = ["lb-ebpf", "lb-test-switch"];

/// What cargo-deny prints when it cannot get the advisory database, as opposed to an advisory.
const NO_DATABASE: [&str; 3] = [
    "failed to fetch advisory database",
    "failed to load advisory database",
    "unable to fetch",
];

/// # Errors
/// When set-up fails; a failed check is in the exit code.
pub(crate) fn check() -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Check, false)?;
    let mut steps = Steps::default();
    all(&workspace, &mut steps);
    Ok(steps.finish())
}

/// Every check, in the order of how quickly it answers.
pub(crate) fn all(workspace: &Workspace, steps: &mut Steps) {
    steps.run("format", || {
        workspace.cargo().args(["fmt", "--all", "--check"]).run()
    });
    steps.run("floors", || floors::check(workspace));
    steps.run("links", || links::check(&workspace.root));
    steps.run("summary of docs", || book::check(&workspace.root));
    steps.run("words", || prose::check(&workspace.root));
    steps.run("spelling", || {
        let typos = TYPOS.path(workspace);
        let typos = workspace.command(&typos.to_string_lossy());
        typos.args(["--format", "brief"]).run()
    });
    steps.run("lints, host", || clippy_host(workspace).run());
    steps.run("lints, eBPF", || clippy_ebpf(workspace).run());
    steps.run("docs", || docs(workspace).run());
    steps.run("licences, duplicates, sources", || {
        deny(workspace).args(["licenses", "bans", "sources"]).run()
    });
    steps.run_with("advisories", || advisories(workspace));
}

fn clippy_host(workspace: &Workspace) -> Cmd {
    workspace
        .cargo()
        .args(["clippy", "--workspace", "--all-targets", "--all-features"])
        .args(of_ebpf("--exclude"))
        .args(["--", "-D", "warnings"])
        .env("AYA_BUILD_SKIP", "1")
}

fn clippy_ebpf(workspace: &Workspace) -> Cmd {
    workspace
        .cargo()
        .args(["clippy", "--target", "bpfel-unknown-none"])
        .args(of_ebpf("--package"))
        .args(["-Z", "build-std=core", "--", "-D", "warnings"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", EBPF_RUSTFLAGS)
}

/// `option` for each package of the bpf target.
fn of_ebpf(option: &str) -> impl Iterator<Item = &str> {
    EBPF_PACKAGES
        .into_iter()
        .flat_map(move |package| [option, package])
}

fn docs(workspace: &Workspace) -> Cmd {
    workspace
        .cargo()
        .args(["doc", "--no-deps", "--workspace"])
        .args(of_ebpf("--exclude"))
        .env("AYA_BUILD_SKIP", "1")
        .env("RUSTDOCFLAGS", "-Dwarnings")
}

fn deny(workspace: &Workspace) -> Cmd {
    workspace.cargo().args(["deny", "--workspace", "check"])
}

/// A known vulnerability fails; a machine that cannot reach the database reports that and goes on.
fn advisories(workspace: &Workspace) -> Outcome {
    let output = match deny(workspace).arg("advisories").announced_output() {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(format!("{error:#}")),
    };
    let text = text_of(&output);
    let outcome = judged(output.status.success(), &text);
    if !matches!(outcome, Outcome::Left(_)) {
        eprint!("{text}");
    }
    outcome
}

fn judged(success: bool, text: &str) -> Outcome {
    if success {
        Outcome::Passed
    } else if NO_DATABASE.iter().any(|words| text.contains(words)) {
        let reason = "the RustSec advisory database cannot be fetched from here (github.com)";
        Outcome::Left(reason.to_owned())
    } else {
        Outcome::Failed("see the advisories above".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_database_is_told_from_an_advisory() {
        let unreachable = "2026-01-01 [ERROR] failed to fetch advisory database https://...";
        assert!(matches!(judged(false, unreachable), Outcome::Left(_)));
        assert!(matches!(
            judged(false, "error[vulnerability]: ..."),
            Outcome::Failed(_)
        ));
        assert_eq!(judged(true, "advisories ok"), Outcome::Passed);
    }
}
