//! Columns of text, padded to line up: the one table format of xtask.

/// `rows` as lines; the last column is not padded.
pub(crate) fn lines(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect();
    rows.iter()
        .map(|row| {
            let padded = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}  "));
            padded.collect::<String>().trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["ok", "kernel", "6.1"], ["stop", "BTF", "absent"]];
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.map(str::to_owned).into())
            .collect();
        assert_eq!(lines(&rows), ["ok    kernel  6.1", "stop  BTF     absent"]);
    }
}
