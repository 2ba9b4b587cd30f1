//! Tables for people.

use anyhow::Result;
use comfy_table::{Table, presets::NOTHING};

use super::print;

/// Prints rows under a header, columns aligned.
pub(super) fn print<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Result<()> {
    print::line(text(header, rows))
}

/// Rows under a header, columns aligned, as lines of text.
pub(super) fn text<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table.trim_fmt()
}
