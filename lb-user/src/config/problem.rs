//! The problems of a configuration, collected by every stage and printed one per line.

use std::{collections::HashSet, error::Error, fmt, mem};

use schemars::JsonSchema;
use serde::Serialize;

use super::place::{Location, MAIN};

/// Every problem of a configuration, in the order of its files and lines; at least one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The problems, at least one, in the order of their lines.
    #[must_use]
    pub fn as_slice(&self) -> &[Problem] {
        &self.0
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
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

/// What is valid, and yet hardly what was meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Warning {
    /// Which one it is, such as `slow-check`.
    pub name: &'static str,
    /// Where it is, and what is wrong with it.
    #[serde(flatten)]
    pub problem: Problem,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, problem } = self;
        write!(f, "{problem} [{name}]")
    }
}

/// The problems found so far.
#[derive(Debug)]
pub(super) struct Findings {
    /// The names of the files, as places count them.
    files: Vec<String>,
    /// Whether the files that the text names are no matter of it.
    is_text: bool,
    found: Vec<(Location, String)>,
    /// Each with its name.
    warnings: Vec<(Location, &'static str, String)>,
}

impl Findings {
    pub(super) fn new(file: &str) -> Self {
        Self {
            files: vec![file.to_owned()],
            is_text: false,
            found: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Those of a text that names files which may have changed since it was found valid.
    pub(super) fn of_text(name: &str) -> Self {
        Self {
            is_text: true,
            ..Self::new(name)
        }
    }

    /// The index of another file in places.
    pub(super) fn add_file(&mut self, name: &str) -> usize {
        self.files.push(name.to_owned());
        self.files.len() - 1
    }

    /// How many problems there are so far.
    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    /// Where `other` stands, for the words of a problem in `place`: `line 3`, or `tenants.yaml:3`.
    pub(super) fn line(&self, other: &Location, place: &Location) -> String {
        if other.file == place.file {
            format!("line {}", other.line)
        } else {
            self.file_and_line(other)
        }
    }

    /// Where `place` is, for a reader of the result without a file at hand.
    pub(super) fn file_and_line(&self, place: &Location) -> String {
        let file = self.files.get(place.file).map_or("", String::as_str);
        format!("{file}:{}", place.line)
    }

    /// Notes a problem with what stands at `place`.
    pub(super) fn add(&mut self, place: &Location, words: impl Into<String>) {
        self.found.push((place.clone(), words.into()));
    }

    /// Notes a problem with the file that is named at `place`.
    pub(super) fn add_of_file(&mut self, place: &Location, words: impl Into<String>) {
        if !self.is_text {
            self.add(place, words);
        }
    }

    /// Notes the problem of `result`, if it is one, and gives the value otherwise.
    pub(super) fn check<T>(&mut self, place: &Location, result: Result<T, String>) -> Option<T> {
        result.map_err(|words| self.add(place, words)).ok()
    }

    /// Notes that what stands at `place` is hardly what was meant.
    pub(super) fn warn(&mut self, place: &Location, name: &'static str, words: impl Into<String>) {
        self.warnings.push((place.clone(), name, words.into()));
    }

    /// The warnings, in the order of files and lines.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        let mut warnings: Vec<_> = self.warnings.iter().collect();
        warnings.sort_by_key(|(place, ..)| (place.file, place.line, place.column));
        let warnings = warnings.into_iter().map(|(place, name, words)| Warning {
            name,
            problem: self.problem(place.clone(), words.clone()),
        });
        warnings.collect()
    }

    fn problem(&self, place: Location, words: String) -> Problem {
        Problem {
            file: self.files.get(place.file).cloned().unwrap_or_default(),
            line: place.line,
            key: place.key,
            words,
        }
    }

    /// The value if it is whole, that is, if there was no problem.
    pub(super) fn into_result<T>(mut self, value: Option<T>) -> Result<T, Problems> {
        if self.found.is_empty() {
            if let Some(value) = value {
                return Ok(value);
            }
            // Every stage that gives no value says why. Should one forget it, the file is still
            // refused, and the list of problems still not empty.
            self.add(
                &Location::root(MAIN),
                "no configuration can be made of this file; please report it with the file",
            );
        }
        self.found
            .sort_by_key(|(place, _)| (place.file, place.line, place.column));
        // A default, or a node of a group, is checked for each entry that uses it.
        let mut seen = HashSet::new();
        self.found.retain(|(place, words)| {
            let Location {
                file,
                line,
                column,
                key,
            } = place;
            seen.insert((*file, *line, *column, key.clone(), words.clone()))
        });
        let found = mem::take(&mut self.found).into_iter();
        let problems = found.map(|(place, words)| self.problem(place, words));
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
    fn problems_come_in_the_order_of_files_and_each_once() {
        let mut findings = Findings::new("main.yaml");
        let other = findings.add_file("tenants.yaml");
        let at = |file: usize, line: usize| Location::of_line(file, line);
        assert_eq!(findings.line(&at(other, 3), &at(MAIN, 9)), "tenants.yaml:3");
        assert_eq!(findings.line(&at(MAIN, 3), &at(MAIN, 9)), "line 3");
        for (file, line) in [(other, 1), (MAIN, 2), (other, 1), (MAIN, 1)] {
            findings.add(&at(file, line), "wrong");
        }
        assert_eq!(
            findings.into_result(Some(())).unwrap_err().to_string(),
            "main.yaml:1: wrong\nmain.yaml:2: wrong\ntenants.yaml:1: wrong"
        );
    }

    #[test]
    fn a_missing_value_is_a_problem_even_if_nobody_said_why() {
        let problems = Findings::new("f").into_result::<()>(None).unwrap_err();
        assert_eq!(
            problems.to_string(),
            "f:1: no configuration can be made of this file; please report it with the file"
        );
    }
}
