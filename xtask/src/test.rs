//! `cargo xtask test`: every level, from format to real traffic. Cargo stays the user; only the
//! test binaries that need the kernel are run as root.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    api_server,
    args::TestRequest,
    bench, check,
    cmd::{Cmd, text_of},
    kernels, netns, run, setup,
    steps::{Outcome, Steps},
    stock::Purpose,
    workspace::Workspace,
};

/// The test targets of lb-tests that need root and run in one process, in the order of running; the third
/// one, netns, runs a process for each test.
const ROOT_TARGETS: [&str; 2] = ["packet", "verifier"];

/// The variable that names what cargo runs a test binary by.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

/// What the gate should take on two CPUs with all tools and crates built, and what it must not exceed on a slow machine
/// that builds them all: that is more than half of it there.
const BUDGET: Duration = Duration::from_secs(15 * 60);
const MAX_TIME: Duration = Duration::from_secs(60 * 60);

/// What must reach a test binary through sudo, which otherwise clears the environment.
pub(crate) const PRESERVED: [&str; 6] = [
    "LB_BIN",
    api_server::VARIABLE,
    "LB_TEST_LONG",
    "LB_TEST_REPORT",
    "LB_TEST_REQUIRE",
    "RUST_BACKTRACE",
];

/// # Errors
/// When set-up fails; a failed test is in the exit code.
pub(crate) fn test(request: &TestRequest) -> Result<ExitCode> {
    let purpose = match request.long {
        true => Purpose::LongTest,
        false => Purpose::Test,
    };
    let workspace = setup::ensure(purpose, request.yes)?;
    let mut steps = Steps::default();
    if request.netns {
        let built = steps.run("build lb", || run::build(&workspace));
        netns_tests(&workspace, request, built, &mut steps);
        return Ok(steps.finish());
    }
    all(&workspace, request, &mut steps);
    if !request.long {
        steps.within(BUDGET, MAX_TIME);
    }
    Ok(steps.finish())
}

/// Every level, from what answers quickly to what takes minutes.
fn all(workspace: &Workspace, request: &TestRequest, steps: &mut Steps) {
    check::all(workspace, steps);
    steps.run("host tests", || host_tests(workspace, request.long).run());
    let built = steps.run("build lb", || run::build(workspace));
    steps.run("harness tests", || harness_tests(workspace).run());
    for target in ROOT_TARGETS {
        run_built(steps, built, &format!("{target} tests"), || {
            root_tests(workspace, target, request.long).run()
        });
    }
    if built {
        kernels::gate(workspace, steps);
    }
    netns_tests(workspace, request, built, steps);
    let quick = ["--quick".to_owned()];
    run_built(steps, built, "quick bench", || {
        bench::command(workspace, &quick)?.run()
    });
    if !workspace.is_root() {
        steps.run("no file of root's under target", || {
            nothing_of_roots(&workspace.target)
        });
    }
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

/// The fuzz targets and property tests among them take their time in the long tier. They need no eBPF object.
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
        .arg("--all-features")
        .env("AYA_BUILD_SKIP", "1")
        // Many of them wait.
        .env("RUST_TEST_THREADS", netns::at_once().to_string());
    if long {
        cargo.env("LB_TEST_LONG", "1")
    } else {
        cargo
    }
}

/// The packet builder and the rest of the test vocabulary, and the bench's figures and plots, as far as they need no
/// kernel.
fn harness_tests(workspace: &Workspace) -> Cmd {
    packages_of_tests(workspace).args(["--lib", "--bins"])
}

/// Several at a time: each waits half of its time for the kernel to let go of maps. A missing precondition is a
/// failure.
fn root_tests(workspace: &Workspace, target: &str, long: bool) -> Cmd {
    let cargo = target_of_tests(workspace, target)
        // What they have measured is worth seeing, too.
        .args(["--", "--include-ignored", "--show-output"])
        .arg(format!("--test-threads={}", netns::at_once()))
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
    cargo.env(RUNNER, runner)
}

fn netns_tests(workspace: &Workspace, request: &TestRequest, built: bool, steps: &mut Steps) {
    run_built(steps, built, "netns tests", || {
        let options = netns::Options {
            long: request.long,
            show_output: request.show_output,
            names: &request.names,
        };
        netns::run(workspace, binary_of_tests(workspace, "netns")?, &options)
    });
    if let Some(reason) = api_server::absence(workspace) {
        let name = format!("netns tests with {}", api_server::name());
        steps.run_with(&name, || Outcome::Left(reason));
    }
}

fn target_of_tests(workspace: &Workspace, target: &str) -> Cmd {
    packages_of_tests(workspace).args(["--test", target])
}

/// The same packages each time: their dependencies have the features that all of them need, and would be
/// built once more for another choice. Not lb-user, whose own tests need more; it is built as theirs.
pub(crate) fn packages_of_tests(workspace: &Workspace) -> Cmd {
    let packages = ["--package", "lb-tests", "--package", "lb-bench"];
    workspace.cargo().args(["test", "--release"]).args(packages)
}

/// Builds a test target, and asks cargo where its binary is: cargo runs it by a program that prints that.
fn binary_of_tests(workspace: &Workspace, target: &str) -> Result<PathBuf> {
    target_of_tests(workspace, target).arg("--no-run").run()?;
    let asked = target_of_tests(workspace, target).quiet_env(RUNNER, "echo");
    let output = asked.output()?;
    let text = text_of(&output);
    ensure!(
        output.status.success(),
        "find the binary of the {target} tests: {text}"
    );
    let path = text.lines().find(|line| Path::new(line).is_absolute());
    path.map(PathBuf::from)
        .with_context(|| format!("find the binary of the {target} tests: cargo said {text}"))
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
