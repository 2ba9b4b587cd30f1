//! What became of the connections of one kind, and how long they took.

use std::{fmt, time::Duration};

use anyhow::Result;

use super::kind::Kind;

/// Connections of one kind.
#[derive(Clone, Debug)]
pub(super) struct Times {
    pub(super) kind: Kind,
    /// From the beginning to the answer, the shortest first.
    answered: Vec<Duration>,
    failures: Vec<String>,
}

impl Times {
    pub(super) fn new(kind: Kind, results: Vec<Result<Duration>>) -> Self {
        let (mut answered, mut failures) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(time) => answered.push(time),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        answered.sort_unstable();
        Self {
            kind,
            answered,
            failures,
        }
    }

    /// Whether all were answered.
    pub(super) fn is_whole(&self) -> bool {
        self.failures.is_empty()
    }

    /// Why the first one was not.
    pub(super) fn why(&self) -> &str {
        self.failures.first().map_or("", String::as_str)
    }

    fn at(&self, percent: usize) -> Duration {
        let last = self.answered.len().saturating_sub(1);
        let place = self.answered.len() * percent / 100;
        self.answered
            .get(place.min(last))
            .copied()
            .unwrap_or_default()
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.answered.len() + self.failures.len();
        write!(f, "{} of {all}", self.answered.len())?;
        if self.answered.is_empty() {
            return Ok(());
        }
        let [p50, p99, longest] = [50, 99, 100].map(|percent| self.at(percent));
        write!(f, ", p50 {p50:.1?}, p99 {p99:.1?}, longest {longest:.1?}")
    }
}
