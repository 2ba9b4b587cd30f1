//! Tables for people.

use anyhow::Result;
use comfy_table::{Table, presets::NOTHING};

use super::{color, print};

/// Prints rows under a header, columns aligned.
pub(super) fn print<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Result<()> {
    print::line(text(header, rows))
}

/// As [`print`], with those columns alone that are shown.
pub(super) fn print_columns<const N: usize>(
    columns: [(&str, bool); N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Result<()> {
    print::line(text_columns(columns, rows))
}

/// As [`text`], with those columns alone that are shown.
pub(super) fn text_columns<const N: usize>(
    columns: [(&str, bool); N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    let header = columns.iter().filter(|(_, is_shown)| *is_shown);
    let header = header.map(|&(name, _)| name);
    table.load_style(NOTHING).set_header(header.clone());
    for row in rows {
        let shown = row.into_iter().zip(columns);
        let shown = shown.filter(|(_, (_, is_shown))| *is_shown);
        table.add_row(shown.map(|(cell, _)| cell));
    }
    let text = table.trim_fmt();
    if color::is_on() {
        return color::table(&text, header);
    }
    text
}

/// Rows under a header, columns aligned, as lines of text.
pub(super) fn text<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    text_columns(header.map(|name| (name, true)), rows)
}
