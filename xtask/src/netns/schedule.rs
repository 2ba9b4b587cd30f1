//! Which test runs next: the longest first, so that no long one is left for the end; those that share
//! something beyond their own namespaces one at a time, and those that want the machine alone last.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};

use super::process::Ended;

/// The group of tests beside which nothing runs.
const ALONE: &str = "alone";
/// What a test takes of which nothing is known, in seconds.
const UNKNOWN: f64 = 2.0;
/// The file of groups, see its own comment.
const GROUPS: &str = "groups.txt";
/// The file of times: `seconds name` in each line.
pub(super) const SECONDS: &str = "seconds.txt";

/// What is known of tests before they run.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Beginnings of names, and the group of such tests.
    groups: Vec<(String, String)>,
    seconds: BTreeMap<String, f64>,
}

impl Hints {
    /// Reads the groups and times of the tree, and the times of the last run here.
    ///
    /// # Errors
    /// When the tree's files cannot be read, or a line is not understood.
    pub(super) fn read(tree: &Path, last_run: &Path) -> Result<Self> {
        let text = |folder: &Path, name: &str| {
            let file = folder.join(name);
            fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
        };
        let last = text(last_run, SECONDS).unwrap_or_default();
        let seconds = text(tree, SECONDS)? + &last;
        Self::parse(&text(tree, GROUPS)?, &seconds)
    }

    fn parse(groups: &str, seconds: &str) -> Result<Self> {
        let mut hints = Self::default();
        for (group, names) in pairs(groups)? {
            hints.groups.push((names.to_owned(), group.to_owned()));
        }
        for (seconds, name) in pairs(seconds)? {
            let seconds = seconds
                .parse()
                .with_context(|| format!("the seconds of test {name}: `{seconds}`"))?;
            hints.seconds.insert(name.to_owned(), seconds);
        }
        Ok(hints)
    }

    /// The group of a test: that of the longest beginning of its name that has one.
    fn group(&self, name: &str) -> Option<&str> {
        let fitting = self
            .groups
            .iter()
            .filter(|(begin, _)| name.starts_with(begin));
        let longest = fitting.max_by_key(|(begin, _)| begin.len());
        longest.map(|(_, group)| group.as_str())
    }

    fn seconds(&self, name: &str) -> f64 {
        self.seconds.get(name).copied().unwrap_or(UNKNOWN)
    }
}

/// The two words of each line that is neither empty nor a comment.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (first, second) = line
                .split_once(char::is_whitespace)
                .with_context(|| format!("`{line}` is not two words"))?;
            Ok((first, second.trim()))
        })
        .collect()
}

/// The times of these tests, as [`Hints`] reads them.
pub(super) fn seconds(ended: &[Ended]) -> String {
    let mut lines: Vec<String> = ended
        .iter()
        .map(|ended| format!("{:.1} {}\n", ended.time.as_secs_f64(), ended.name))
        .collect();
    lines.sort();
    lines.concat()
}

/// A test that waits or runs.
#[derive(Debug)]
struct Test {
    name: String,
    group: Option<String>,
    seconds: f64,
}

/// What may be done now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Start(String),
    /// Until one of those that run has ended; or all is done.
    Wait,
}

/// Tests that wait, in the order of starting, and those that run.
#[derive(Debug)]
pub(super) struct Schedule {
    waiting: Vec<Test>,
    running: Vec<Test>,
    at_once: usize,
}

impl Schedule {
    pub(super) fn new(names: Vec<String>, hints: &Hints, at_once: usize) -> Self {
        let mut waiting: Vec<Test> = names
            .into_iter()
            .map(|name| Test {
                group: hints.group(&name).map(str::to_owned),
                seconds: hints.seconds(&name),
                name,
            })
            .collect();
        waiting.sort_by(|a, b| {
            let key = |test: &Test| (test.is_alone(), -test.seconds);
            key(a)
                .partial_cmp(&key(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        Self {
            waiting,
            running: Vec::new(),
            at_once,
        }
    }

    /// The next test that may start; it counts as running from now on.
    pub(super) fn next(&mut self) -> Next {
        if self.running.len() >= self.at_once || self.running.iter().any(Test::is_alone) {
            return Next::Wait;
        }
        let may_start = |test: &Test| match &test.group {
            Some(group) if group == ALONE => self.running.is_empty(),
            Some(_) => self.running.iter().all(|other| other.group != test.group),
            None => true,
        };
        let Some(at) = self.waiting.iter().position(may_start) else {
            return Next::Wait;
        };
        let test = self.waiting.remove(at);
        let name = test.name.clone();
        self.running.push(test);
        Next::Start(name)
    }

    pub(super) fn ended(&mut self, name: &str) {
        self.running.retain(|test| test.name != name);
    }

    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// The names of those that run.
    pub(super) fn running(&self) -> Vec<String> {
        self.running.iter().map(|test| test.name.clone()).collect()
    }

    /// How long the others take by what is known of them, shared by as many as run at once.
    pub(super) fn left(&self) -> Duration {
        let tests = self.waiting.iter().chain(&self.running);
        let seconds = tests.map(|test| match test.is_alone() {
            true => test.seconds,
            false => test.seconds / self.at_once as f64,
        });
        Duration::from_secs_f64(seconds.sum())
    }
}

impl Test {
    fn is_alone(&self) -> bool {
        self.group.as_deref() == Some(ALONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: &str = "
# a comment
alone   million::
disk    full::      # why
alone   full::slow
";
    const SECONDS: &str = "1 a::short\n9 a::long\n30 million::all\n3 full::one\n3 full::two\n";

    fn schedule(names: &[&str], at_once: usize) -> Schedule {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Schedule::new(names, &Hints::parse(GROUPS, SECONDS).unwrap(), at_once)
    }

    fn start(name: &str) -> Next {
        Next::Start(name.to_owned())
    }

    #[test]
    fn the_longest_begins_and_those_that_are_alone_come_last() {
        let mut schedule = schedule(&["million::all", "a::short", "b::unknown", "a::long"], 2);
        assert_eq!(schedule.next(), start("a::long"));
        assert_eq!(schedule.next(), start("b::unknown"));
        assert_eq!(schedule.next(), Next::Wait, "two at once");
        schedule.ended("a::long");
        assert_eq!(schedule.next(), start("a::short"));
        schedule.ended("a::short");
        assert_eq!(
            schedule.next(),
            Next::Wait,
            "one that is alone waits for the others"
        );
        schedule.ended("b::unknown");
        assert_eq!(schedule.next(), start("million::all"));
        assert_eq!(schedule.running(), ["million::all"]);
        assert!(!schedule.is_done());
        schedule.ended("million::all");
        assert_eq!(schedule.next(), Next::Wait);
        assert!(schedule.is_done());
    }

    #[test]
    fn of_a_group_one_runs_at_a_time_and_others_beside_it() {
        let mut schedule = schedule(&["full::one", "full::two", "full::slow", "a::short"], 4);
        assert_eq!(schedule.next(), start("full::one"));
        assert_eq!(schedule.next(), start("a::short"));
        assert_eq!(schedule.next(), Next::Wait);
        schedule.ended("full::one");
        assert_eq!(schedule.next(), start("full::two"));
        schedule.ended("full::two");
        schedule.ended("a::short");
        assert_eq!(
            schedule.next(),
            start("full::slow"),
            "its longer beginning counts"
        );
        assert_eq!(schedule.next(), Next::Wait, "nothing starts beside it");
    }

    #[test]
    fn what_is_left_is_shared_by_those_at_once() {
        let schedule = schedule(&["a::long", "a::short", "million::all"], 2);
        assert_eq!(schedule.left(), Duration::from_secs(35));
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        let error = Hints::parse("alone\n", "").unwrap_err();
        assert_eq!(error.to_string(), "`alone` is not two words");
        let error = Hints::parse("", "soon a::b\n").unwrap_err();
        assert_eq!(error.to_string(), "the seconds of test a::b: `soon`");
    }
}
