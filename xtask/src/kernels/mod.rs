//! Other kernels, each in a machine of QEMU: does lb load, carry connections, and pass its tests there?
//!
//! The gate boots the oldest one for about a minute; `cargo xtask test --kernels` boots all of them, for longer.

mod apt;
mod guest;
mod image;
mod machine;
mod modules;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use self::{apt::Release, guest::Report, image::Image};
use crate::{
    run, setup,
    steps::{Outcome, Steps},
    stock::Purpose,
    table,
    workspace::Workspace,
};

/// A kernel that is booted.
struct Kernel {
    /// As `6.1`; the newest that there is without.
    series: Option<&'static str>,
    /// Debian's suites that have it.
    suites: &'static [&'static str],
    /// What the guest does, in parts: the words of tests/kernels/guest.sh.
    steps: &'static [&'static [&'static str]],
}

/// The steps of the gate.
const BRIEF: [&str; 11] = [
    "verifier",
    "load",
    "tcp",
    "bind",
    "hand-over",
    "down",
    "load-virtio",
    "tcp-virtio",
    "bind-virtio",
    "hand-over-virtio",
    "down-virtio",
];
/// Those that `--kernels` does behind them.
const SUITES: [&str; 3] = ["packet", "netns", "lab"];
const WHOLE: [&[&str]; 2] = [&BRIEF, &SUITES];

/// The oldest kernel that lb is seen to run on.
const FLOOR: Kernel = Kernel {
    series: Some("6.1"),
    suites: &["bookworm", "bookworm-security"],
    steps: &WHOLE,
};

const KERNELS: [Kernel; 4] = [
    // Below the floor: refused with the reason.
    Kernel {
        series: Some("5.10"),
        suites: &["bullseye", "bullseye-security"],
        steps: &[&["refuse"]],
    },
    FLOOR,
    Kernel {
        series: Some("6.12"),
        suites: &["trixie", "trixie-security"],
        steps: &WHOLE,
    },
    Kernel {
        series: None,
        suites: &["trixie-backports", "sid", "experimental"],
        steps: &WHOLE,
    },
];

/// Before a machine is taken for stuck: several times what it takes where nothing else runs.
const BRIEF_TIMEOUT: Duration = Duration::from_secs(900);
const WHOLE_TIMEOUT: Duration = Duration::from_secs(3600);

impl Kernel {
    fn name(&self) -> String {
        format!("Linux {}", self.series.unwrap_or("(the newest)"))
    }
}

/// Boots the oldest kernel, for a minute.
pub(crate) fn gate(workspace: &Workspace, steps: &mut Steps) {
    let kernel = Kernel {
        steps: &[&BRIEF],
        ..FLOOR
    };
    steps.run_with(&kernel.name(), || {
        let release = match apt::release(workspace, &kernel, apt::Age::Any) {
            Ok(release) => release,
            Err(reason) => return Outcome::Left(format!("{reason:#}")),
        };
        let booted = boot(workspace, &kernel, &release, BRIEF_TIMEOUT);
        outcome(booted.and_then(|(report, _)| report.judged(&kernel.steps.concat())))
    });
}

/// `cargo xtask test --kernels`: boots all of them, and prints a table.
///
/// # Errors
/// When set-up fails; what fails in a guest is in the exit code.
pub(crate) fn all(yes: bool) -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Test, yes)?;
    let mut steps = Steps::default();
    let mut rows = vec![guest::TITLES.map(str::to_owned).into()];
    if steps.run("build lb", || run::build(&workspace)) {
        for kernel in &KERNELS {
            steps.run_with(&kernel.name(), || {
                let release = match apt::release(&workspace, kernel, apt::Age::Newest) {
                    Ok(release) => release,
                    Err(reason) => return Outcome::Left(format!("{reason:#}")),
                };
                let booted = boot(&workspace, kernel, &release, WHOLE_TIMEOUT);
                outcome(booted.and_then(|(report, time)| {
                    rows.push(report.row(&release.package, time));
                    report.judged(&kernel.steps.concat())
                }))
            });
        }
    }
    eprintln!();
    for line in table::lines(&rows) {
        eprintln!("{line}");
    }
    Ok(steps.finish())
}

fn outcome(result: Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Passed,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Boots a kernel and lets it do its steps; how long that took, too.
fn boot(
    workspace: &Workspace,
    kernel: &Kernel,
    release: &Release,
    timeout: Duration,
) -> Result<(Report, Duration)> {
    let image = Image::make(workspace, release, &kernel.steps.concat())?;
    let begin = Instant::now();
    let said = machine::run(workspace, release, &image, timeout)?;
    let report = Report::read(&said.output);
    eprint!("{}", said.output);
    if !report.is_whole {
        bail!(
            "{} did not come to the end of its steps (after {} s, of {} at most); the end of its console:\n{}",
            release.package,
            begin.elapsed().as_secs(),
            timeout.as_secs(),
            said.console_end()
        );
    }
    if let Some(complaint) = said.complaint() {
        bail!("the kernel's own log complains: {complaint}");
    }
    Ok((report, begin.elapsed()))
}
