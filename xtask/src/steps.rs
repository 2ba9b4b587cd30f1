//! Steps that do not stop each other, and the table at their end.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::table;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Failed(String),
    /// It could not be tried; the reason is no fault of the tree.
    Left(String),
    Passed,
}

/// The steps so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<(String, Outcome, Duration)>,
}

impl Steps {
    /// Runs a step that passes or fails.
    pub(crate) fn run(&mut self, name: &str, step: impl FnOnce() -> Result<()>) -> bool {
        self.run_with(name, || match step() {
            Ok(()) => Outcome::Passed,
            Err(error) => Outcome::Failed(format!("{error:#}")),
        })
    }

    /// Runs a step that decides for itself; returns whether it passed.
    pub(crate) fn run_with(&mut self, name: &str, step: impl FnOnce() -> Outcome) -> bool {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let outcome = step();
        match &outcome {
            Outcome::Passed => {}
            Outcome::Failed(reason) => eprintln!("xtask: {name}: {reason}"),
            Outcome::Left(reason) => eprintln!("xtask: {name}: left out: {reason}"),
        }
        let passed = outcome == Outcome::Passed;
        self.done.push((name.to_owned(), outcome, start.elapsed()));
        passed
    }

    /// Adds what all steps have taken, beside what they should; more than `most` is a failure.
    pub(crate) fn within(&mut self, budget: Duration, most: Duration) {
        let time = self.done.iter().map(|(_, _, time)| *time).sum();
        let minutes = |time: Duration| format!("{:.1}", time.as_secs_f64() / 60.0);
        let (budgeted, limit) = (minutes(budget), minutes(most));
        let outcome = match time {
            time if time <= most => Outcome::Passed,
            _ => Outcome::Failed(format!("all of it may take {limit} minutes at most")),
        };
        let name = format!("{} of {budgeted} minutes", minutes(time));
        self.done.push((name, outcome, time));
    }

    /// Prints the table, with what failed at its end, where it is seen; the exit code is 1 if any step failed.
    pub(crate) fn finish(self) -> ExitCode {
        eprintln!();
        for line in table::lines(&self.rows()) {
            eprintln!("{line}");
        }
        if self.failed() {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }

    fn failed(&self) -> bool {
        self.done
            .iter()
            .any(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
    }

    /// A row for each step, failed ones last.
    fn rows(&self) -> Vec<Vec<String>> {
        let row = |(name, outcome, time): &(String, Outcome, Duration)| {
            let (result, reason) = match outcome {
                Outcome::Failed(reason) => ("FAILED", reason.as_str()),
                Outcome::Left(reason) => ("left out", reason.as_str()),
                Outcome::Passed => ("passed", ""),
            };
            let time = format!("{:7.1} s", time.as_secs_f64());
            // The whole reason, with the command, was printed when the step ended.
            let first = reason.lines().next().unwrap_or_default();
            let reason = first.rsplit("`: ").next().unwrap_or(first).to_owned();
            vec![result.to_owned(), time, name.clone(), reason]
        };
        let (failed, others): (Vec<_>, Vec<_>) = self
            .done
            .iter()
            .partition(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)));
        others.into_iter().chain(failed).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failed_step_does_not_stop_the_next_and_is_remembered() {
        let mut steps = Steps::default();
        assert!(!steps.run("first", || bail!("`cargo x`: exit status 1\nin detail")));
        assert!(steps.run("second", || Ok(())));
        assert!(steps.failed());
        let rows = steps.rows();
        let cells = |row: usize, cell: usize| rows.get(row).and_then(|row| row.get(cell)).cloned();
        assert_eq!(cells(0, 0).as_deref(), Some("passed"));
        assert_eq!(cells(1, 0).as_deref(), Some("FAILED"));
        assert_eq!(cells(1, 3).as_deref(), Some("exit status 1"));
    }

    #[test]
    fn more_time_than_there_may_be_is_a_failure() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        let mut steps = Steps {
            done: vec![("all".to_owned(), Outcome::Passed, minutes(16))],
        };
        steps.within(minutes(15), minutes(16));
        assert!(!steps.failed());
        assert_eq!(steps.rows()[1][2], "16.0 of 15.0 minutes");
        steps.done.truncate(1);
        steps.within(minutes(15), minutes(15));
        assert!(steps.failed());
    }

    #[test]
    fn a_step_that_cannot_be_tried_is_no_failure() {
        let mut steps = Steps::default();
        steps.run_with("network", || Outcome::Left("no network".to_owned()));
        assert!(!steps.failed());
    }
}
