//! A line for each test that has ended, with its time and an estimate of what is left, above a bar on a terminal; the
//! slowest of all.

use std::{fs, time::Duration};

use super::process::Ended;
use crate::{progress, table};

/// How many of the slowest are printed.
const SLOWEST: usize = 20;
/// Lines of a failed test's log that are printed; all of it is in the log.
const MAX_LOG_LINES: usize = 200;

/// What has been printed so far.
pub(super) struct Progress {
    all: usize,
    done: usize,
    shown: progress::Progress,
}

impl Progress {
    /// Prints what begins.
    pub(super) fn new(all: usize, at_once: usize) -> Self {
        let mut shown = progress::Progress::new("namespace tests", all);
        shown.line(&format!("{all} namespace tests, {at_once} at a time"));
        let done = 0;
        Self { all, done, shown }
    }

    /// Says on a terminal which tests run.
    pub(super) fn runs(&self, names: &[String]) {
        self.shown.now(names.join(" "));
    }

    /// Prints the log of a test that has passed.
    pub(super) fn show(&mut self, log: &str) {
        self.shown.line(log.trim_end());
    }

    /// Prints how a test has ended, and if it failed all that explains it; `left` is the work that is left by
    /// the times that are known, `elapsed` the time since the first began.
    pub(super) fn ended(&mut self, ended: &Ended, left: Duration, elapsed: Duration) {
        self.done += 1;
        let result = if ended.passed() { "ok" } else { "FAILED" };
        let width = self.all.to_string().len();
        self.shown.advance();
        self.shown.line(&format!(
            "[{:width$}/{}] {result:6} {:6.1} s  {}{}",
            self.done,
            self.all,
            ended.time.as_secs_f64(),
            ended.name,
            rest(left, elapsed),
        ));
        if let Some(failure) = &ended.failure {
            self.shown.line(&explained(ended, failure));
        }
    }
}

/// `  (0:40 gone, about 3:20 left)`
fn rest(left: Duration, elapsed: Duration) -> String {
    let clock = |time: Duration| format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60);
    format!("  ({} gone, about {} left)", clock(elapsed), clock(left))
}

/// What a failed test has printed, what ran beside it, and the machine's load.
fn explained(ended: &Ended, failure: &str) -> String {
    let lines: Vec<&str> = ended.log.lines().collect();
    let skipped = lines.len().saturating_sub(MAX_LOG_LINES);
    let log = lines.get(skipped..).unwrap_or_default().join("\n");
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    format!(
        "---- {}: {failure}\n{log}\n---- {} (its log's first {skipped} lines are left out)\n\
         beside it: {}\nload: {}cpu pressure: {}",
        ended.name,
        ended.name,
        ended.beside.join(" "),
        read("/proc/loadavg"),
        read("/proc/pressure/cpu"),
    )
}

/// The slowest tests, a line each.
pub(super) fn slowest(ended: &[Ended]) -> Vec<String> {
    let mut slow: Vec<&Ended> = ended.iter().collect();
    slow.sort_by_key(|ended| std::cmp::Reverse(ended.time));
    let row = |ended: &&Ended| {
        vec![
            format!("{:6.1} s", ended.time.as_secs_f64()),
            ended.name.clone(),
        ]
    };
    let rows: Vec<_> = slow.iter().take(SLOWEST).map(row).collect();
    table::lines(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(name: &str, seconds: u64) -> Ended {
        Ended {
            name: name.to_owned(),
            time: Duration::from_secs(seconds),
            log: String::new(),
            failure: None,
            beside: vec!["a::b".to_owned()],
        }
    }

    #[test]
    fn the_slowest_come_first() {
        let all = [ended("short", 1), ended("long", 10)];
        assert_eq!(slowest(&all), ["  10.0 s  long", "   1.0 s  short"]);
        let many: Vec<Ended> = (0..30).map(|at| ended("one", at)).collect();
        assert_eq!(slowest(&many).len(), SLOWEST);
    }

    #[test]
    fn a_failure_comes_with_the_end_of_its_log_and_what_ran_beside_it() {
        let log: String = (0..250).map(|line| format!("line {line}\n")).collect();
        let failed = Ended {
            log,
            ..ended("x::y", 3)
        };
        let text = explained(&failed, "exit status 101");
        assert!(
            text.starts_with("---- x::y: exit status 101\nline 50\n"),
            "{text}"
        );
        assert!(text.contains("\nline 249\n---- x::y"), "{text}");
        assert!(text.contains("beside it: a::b\nload: "), "{text}");
    }

    #[test]
    fn times_are_minutes_and_seconds() {
        let text = rest(Duration::from_secs(200), Duration::from_secs(40));
        assert_eq!(text, "  (0:40 gone, about 3:20 left)");
    }
}
