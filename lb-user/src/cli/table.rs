//! Tables for people.

use comfy_table::{Table, presets::NOTHING};

/// Prints rows under a header, columns aligned.
pub(super) fn print<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    println!("{}", table.trim_fmt());
}
