//! The problems of a file, collected by every stage and printed one per line.

use std::{error::Error, fmt};

use serde::Serialize;

use super::place::Place;

/// Every problem of a file, in the order of its lines; at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The problems, at least one, in the order of their lines.
    #[must_use]
    pub fn as_slice(&self) -> &[Problem] {
        &self.0
    }

    /// One problem with the file as a whole.
    pub(super) fn of_file(file: &str, words: &str) -> Self {
        Self::of_line(file, 0, words)
    }

    /// One problem with a line that could not be split into keys.
    pub(super) fn of_line(file: &str, line: usize, words: &str) -> Self {
        Self(vec![Problem {
            file: file.to_owned(),
            line,
            key: String::new(),
            words: words.to_owned(),
        }])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl Error for Problems {}

/// One problem: what was found where, and what is expected there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, as the caller named it.
    pub file: String,
    /// Line, from 1; 0 if the problem is the file as a whole.
    pub line: usize,
    /// The path of keys, such as `services.api-a.listen[0]`; empty outside of any key.
    pub key: String,
    /// What was found, and what is expected.
    pub words: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.words)
    }
}

/// The problems found so far.
#[derive(Debug)]
pub(super) struct Findings {
    file: String,
    found: Vec<(Place, String)>,
}

impl Findings {
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            found: Vec::new(),
        }
    }

    /// Notes a problem with what stands at `place`.
    pub(super) fn add(&mut self, place: &Place, words: impl Into<String>) {
        self.found.push((place.clone(), words.into()));
    }

    /// Notes the problem of `result`, if it is one, and gives the value otherwise.
    pub(super) fn check<T>(&mut self, place: &Place, result: Result<T, String>) -> Option<T> {
        result.map_err(|words| self.add(place, words)).ok()
    }

    /// The value if it is whole, that is, if there was no problem.
    pub(super) fn into_result<T>(mut self, value: Option<T>) -> Result<T, Problems> {
        if self.found.is_empty() {
            if let Some(value) = value {
                return Ok(value);
            }
            // Every stage that gives no value says why. Should one forget it, the file is still
            // refused, and the list of problems still not empty.
            self.add(&Place::root(), "this is not a configuration");
        }
        self.found
            .sort_by_key(|(place, _)| (place.line, place.column));
        let problems = self.found.into_iter().map(|(place, words)| Problem {
            file: self.file.clone(),
            line: place.line,
            key: place.key,
            words,
        });
        Err(Problems(problems.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_prints_what_is_known_of_its_place() {
        let mut problem = Problem {
            file: "lb.yaml".to_owned(),
            line: 3,
            key: "version".to_owned(),
            words: "missing".to_owned(),
        };
        assert_eq!(problem.to_string(), "lb.yaml:3: version: missing");
        problem.key.clear();
        assert_eq!(problem.to_string(), "lb.yaml:3: missing");
        problem.line = 0;
        assert_eq!(problem.to_string(), "lb.yaml: missing");
    }

    #[test]
    fn a_missing_value_is_a_problem_even_if_nobody_said_why() {
        let problems = Findings::new("f").into_result::<()>(None).unwrap_err();
        assert_eq!(problems.to_string(), "f:1: this is not a configuration");
    }
}
