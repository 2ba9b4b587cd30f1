//! `cargo xtask test`: every level, from format to real traffic. Cargo stays the user; only the
//! test binaries that need the kernel are run as root.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Result, bail};

use crate::{
    bench, check,
    cmd::Cmd,
    run, setup,
    steps::{Outcome, Steps},
    stock::Purpose,
    workspace::Workspace,
};

/// The test targets of lb-tests that need root, in the order of running.
const ROOT_TARGETS: [&str; 3] = ["packet", "verifier", "netns"];

/// What must reach a test binary through sudo, which otherwise clears the environment.
const PRESERVED: [&str; 4] = [
    "LB_BIN",
    "LB_TEST_LONG",
    "LB_TEST_REQUIRE",
    "RUST_BACKTRACE",
];

/// # Errors
/// When set-up fails; a failed test is in the exit code.
pub(crate) fn test(long: bool, yes: bool) -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Test, yes)?;
    let mut steps = Steps::default();
    check::all(&workspace, &mut steps);
    steps.run("host tests", || host_tests(&workspace, long).run());
    steps.run("harness tests", || harness_tests(&workspace).run());
    let built = steps.run("build lb", || run::build(&workspace));
    for target in ROOT_TARGETS {
        run_built(&mut steps, built, &format!("{target} tests"), || {
            root_tests(&workspace, target, long).run()
        });
    }
    let quick = ["--quick".to_owned()];
    run_built(&mut steps, built, "quick bench", || {
        bench::command(&workspace, &quick)?.run()
    });
    if !workspace.is_root() {
        steps.run("no file of root's under target", || {
            nothing_of_roots(&workspace.target)
        });
    }
    Ok(steps.finish())
}

/// A step that needs lb.
fn run_built(steps: &mut Steps, built: bool, name: &str, step: impl FnOnce() -> Result<()>) {
    if built {
        steps.run(name, step);
    } else {
        steps.run_with(name, || {
            Outcome::Failed("not run: lb was not built".to_owned())
        });
    }
}

/// The fuzz targets and property tests among them take their time in the long tier.
fn host_tests(workspace: &Workspace, long: bool) -> Cmd {
    let cargo = workspace
        .cargo()
        .args([
            "test",
            "--package",
            "lb-common",
            "--package",
            "lb-user",
            "--package",
            "xtask",
        ])
        .arg("--all-features");
    if long {
        cargo.env("LB_TEST_LONG", "1")
    } else {
        cargo
    }
}

/// The packet builder and the rest of the test vocabulary, and the bench's figures and plots, as far as they need no
/// kernel.
fn harness_tests(workspace: &Workspace) -> Cmd {
    workspace
        .cargo()
        .args(["test", "--release", "--package", "lb-tests"])
        .args(["--package", "lb-bench", "--lib", "--bins"])
}

/// One thread, because the tests share the kernel; a missing precondition is a failure.
fn root_tests(workspace: &Workspace, target: &str, long: bool) -> Cmd {
    let cargo = workspace
        .cargo()
        .args([
            "test",
            "--release",
            "--package",
            "lb-tests",
            "--test",
            target,
        ])
        // What they have measured is worth seeing, too.
        .args([
            "--",
            "--include-ignored",
            "--test-threads=1",
            "--show-output",
        ])
        .env("LB_BIN", run::lb(workspace))
        .env("LB_TEST_REQUIRE", "1")
        .env("RUST_BACKTRACE", "1");
    let cargo = if long {
        cargo.env("LB_TEST_LONG", "1")
    } else {
        cargo
    };
    if workspace.is_root() {
        return cargo;
    }
    let runner = format!("sudo --preserve-env={}", PRESERVED.join(","));
    cargo.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner)
}

/// A file of root's in the target folder would break the user's next build.
fn nothing_of_roots(target: &Path) -> Result<()> {
    let found = files_of_root(target)?;
    if let Some(first) = found.first() {
        bail!(
            "{} files of root's, the first is {}: remove them with sudo, and report the test that \
             left them",
            found.len(),
            first.display()
        );
    }
    Ok(())
}

fn files_of_root(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.uid() == 0 {
                found.push(entry.path());
            }
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(found)
}
