//! Names to their entries. Pure.
//!
//! An entry is for one whole name, for all names under one (`*.example.com`), or for the names that a
//! regular expression matches from end to end. The most exact comes first: the name, then the longest
//! name it is under, then the expressions in their order. Names are compared in lower case and without a
//! dot at the end, as [`ServerName`] has them.

use std::collections::HashMap;

use lb_common::server_name::ServerName;
use regex::bytes::{Regex, RegexBuilder};

/// Most memory that one expression takes compiled, and while it matches.
const MAX_EXPRESSION: usize = 256 * 1024;

/// Entries by name.
#[derive(Clone, Debug)]
pub struct ServerNameMap<T> {
    exact: HashMap<Box<str>, Vec<T>>,
    /// By the name that they are under.
    under: HashMap<Box<str>, Vec<T>>,
    expressions: Vec<(Regex, Vec<T>)>,
}

impl<T> Default for ServerNameMap<T> {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            under: HashMap::new(),
            expressions: Vec::new(),
        }
    }
}

impl<T> ServerNameMap<T> {
    /// Adds an entry for a name, or with `*.` in front for all names under it. Those have one label more,
    /// or several: the name itself is not among them. Whether it is such a pattern.
    pub fn add(&mut self, pattern: &str, what: T) -> bool {
        let (names, name) = match pattern.strip_prefix("*.") {
            Some(name) => (&mut self.under, name),
            None => (&mut self.exact, pattern),
        };
        let Ok(name) = ServerName::read(name.as_bytes()) else {
            return false;
        };
        names.entry(name.as_str().into()).or_default().push(what);
        true
    }

    /// Adds an entry for all names that `expression` matches from end to end, in whatever case.
    ///
    /// # Errors
    ///
    /// As [`whole`].
    pub fn add_expression(&mut self, expression: &str, what: T) -> Result<(), String> {
        self.expressions.push((whole(expression)?, vec![what]));
        Ok(())
    }

    /// The entries for `name`: the most exact first, and those that are as exact together.
    pub fn of<'n>(&'n self, name: &ServerName) -> impl Iterator<Item = &'n [T]> {
        let exact = self.exact.get(name.as_str()).into_iter();
        let under = parents(name.as_str()).filter_map(|parent| self.under.get(parent));
        let expressions = self.expressions.iter();
        let matching = expressions
            .filter(move |(expression, _)| expression.is_match(name.as_str().as_bytes()));
        let all = exact.chain(under).chain(matching.map(|(_, what)| what));
        all.map(Vec::as_slice)
    }
}

/// The names that `name` is under, the longest first.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    let dots = name.match_indices('.');
    dots.filter_map(|(dot, _)| name.get(dot + 1..))
}

/// The expression, anchored. By itself it must be one as well, or `a)|(b` would get out of the group
/// that it is put in.
///
/// # Errors
///
/// If it is none, or too large; in words.
pub fn whole(expression: &str) -> Result<Regex, String> {
    let compile = |expression: &str| {
        RegexBuilder::new(expression)
            .case_insensitive(true)
            // Names are ASCII.
            .unicode(false)
            .size_limit(MAX_EXPRESSION)
            .dfa_size_limit(MAX_EXPRESSION)
            .build()
            .map_err(|error| error.to_string())
    };
    compile(expression)?;
    compile(&format!(r"\A(?:{expression})\z"))
}

#[cfg(test)]
mod tests;
