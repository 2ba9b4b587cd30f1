//! The namespace tests: several at a time, a process each. They sleep most of their time, so that
//! one after the other they would leave most of the machine idle.

mod junit;
mod process;
mod progress;
mod schedule;

use std::{
    fs,
    num::NonZero,
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use self::{
    process::{Ended, Program},
    progress::Progress,
    schedule::{Hints, Next, Schedule},
};
use crate::{api_server, browser, workspace::Workspace};

/// The words of one run.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    pub(crate) long: bool,
    /// Prints what passing tests have printed, too; it is in their logs in any case.
    pub(crate) show_output: bool,
    /// Parts of test names; all tests if there are none.
    pub(crate) names: &'a [String],
}

/// Most tests that run at the same time: each holds a few hundred MiB of maps.
const MAX_AT_ONCE: usize = 8;

/// How many tests run at the same time: enough to keep all CPUs busy while most wait.
pub(crate) fn at_once() -> usize {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    MAX_AT_ONCE.min(cpus * 3)
}

/// Runs the tests of the binary `tests`, and prints the slowest. Their logs, times and a JUnit file are in
/// `target/netns`.
///
/// # Errors
/// Naming the tests that failed.
pub(crate) fn run(workspace: &Workspace, tests: PathBuf, options: &Options<'_>) -> Result<()> {
    let program = Program::new(workspace, tests, options.long)?;
    let mut names = chosen(program.list()?, options.names)?;
    if let Some(reason) = api_server::absence(workspace) {
        names.retain(|name| !name.starts_with(api_server::TESTS));
        ensure!(!names.is_empty(), "not run: {reason}");
    }
    if names.iter().any(|name| name.starts_with(browser::TESTS)) {
        browser::install(workspace)?;
    }
    let hints = Hints::read(&workspace.root.join("tests/netns"), &program.logs)?;
    let at_once = at_once();
    let mut progress = Progress::new(names.len(), at_once);
    let start = Instant::now();
    let ended = run_all(&program, names, &hints, at_once, |schedule, ended| {
        let Some(ended) = ended else {
            return progress.runs(&schedule.running());
        };
        progress.ended(ended, schedule.left(), start.elapsed());
        if options.show_output && ended.passed() {
            progress.show(&ended.log);
        }
    });
    drop(progress);
    report(&program, &ended, start.elapsed())
}

fn chosen(all: Vec<String>, parts: &[String]) -> Result<Vec<String>> {
    let is_chosen =
        |name: &String| parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()));
    let names: Vec<String> = all.into_iter().filter(is_chosen).collect();
    ensure!(
        !names.is_empty(),
        "no namespace test is named {}",
        parts.join(" or ")
    );
    Ok(names)
}

/// Runs all tests, each on a thread that waits for its process; calls `each` with every one that has ended,
/// and whenever others have started with none.
fn run_all(
    program: &Program<'_>,
    names: Vec<String>,
    hints: &Hints,
    at_once: usize,
    mut each: impl FnMut(&Schedule, Option<&Ended>),
) -> Vec<Ended> {
    let mut schedule = Schedule::new(names, hints, at_once);
    let mut all = Vec::new();
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while let Next::Start(name) = schedule.next() {
                let (sender, beside) = (sender.clone(), schedule.running());
                scope.spawn(move || sender.send(program.run(name, beside)));
            }
            if schedule.is_done() {
                return;
            }
            each(&schedule, None);
            let Ok(ended) = results.recv() else {
                return;
            };
            schedule.ended(&ended.name);
            each(&schedule, Some(&ended));
            all.push(ended);
        }
    });
    all
}

/// Prints the slowest tests and the result, and writes the files.
fn report(program: &Program<'_>, ended: &[Ended], time: Duration) -> Result<()> {
    eprintln!("\nthe slowest namespace tests:");
    for line in progress::slowest(ended) {
        eprintln!("  {line}");
    }
    let write = |name: &str, text: String| {
        let file = program.logs.join(name);
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    };
    write(schedule::SECONDS, schedule::seconds(ended))?;
    write("junit.xml", junit::report(ended, time))?;
    let failed: Vec<String> = ended
        .iter()
        .filter(|ended| !ended.passed())
        .map(Ended::cause)
        .collect();
    println!(
        "{} passed, {} failed",
        ended.len() - failed.len(),
        failed.len()
    );
    if !failed.is_empty() {
        bail!(
            "failed: {} (logs in {})",
            failed.join("; "),
            program.logs.display()
        );
    }
    Ok(())
}
