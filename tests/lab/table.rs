//! A table of claims: what each one expects, what was seen, and whether it holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

/// Columns of the table.
const WIDTH: u16 = 120;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    what: String,
    expected: String,
    seen: String,
    pub(crate) holds: bool,
}

/// What was seen, and whether it is what was expected.
pub(crate) type Seen = Result<(String, bool)>;

/// The printed form.
pub(crate) fn table(rows: Vec<Row>) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(["what", "expected", "seen", "ok"]);
    for Row {
        what,
        expected,
        seen,
        holds,
    } in rows
    {
        let mark = if holds { "yes" } else { "NO" };
        table.add_row([&what, &expected, &seen, mark]);
    }
    table
}

/// One line; what cannot be observed does not hold.
pub(crate) fn row(what: &str, expected: &str, seen: Seen) -> Row {
    let (seen, holds) = seen.unwrap_or_else(|error| (format!("{error:#}"), false));
    Row {
        what: what.to_owned(),
        expected: expected.to_owned(),
        seen,
        holds,
    }
}

/// How often each word came.
#[derive(Debug, Default)]
pub(crate) struct Count(BTreeMap<String, usize>);

impl Count {
    /// The words.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn add(&mut self, word: String) {
        *self.0.entry(word).or_default() += 1;
    }

    pub(crate) fn kinds(&self) -> usize {
        self.0.len()
    }
}

impl Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self
            .0
            .iter()
            .map(|(word, times)| format!("{word}: {times}"));
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

/// Values in one line.
pub(crate) fn join(values: &BTreeSet<impl Display>) -> String {
    values
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
