//! A report as tables on a terminal.

use comfy_table::{
    ContentArrangement, Table,
    presets::{NOTHING, UTF8_FULL_CONDENSED},
};

use crate::{
    machine::Machine,
    measure::{Chart, Series, Spread},
    report::figure::{self, NONE},
    report::{Report, Suite},
};

/// Columns of a table.
const WIDTH: u16 = 120;

/// Columns of a chart that fit into a table, so that no figure is broken.
const COLUMNS: usize = 5;

/// What is said of the figures of a quick run.
pub(crate) const QUICK: &str =
    "A quick run: everything is checked, and the figures are of too few packets to be quoted.";

/// All of it, with a line break at its end.
pub(crate) fn text(report: &Report) -> String {
    let mut text = head(report);
    for suite in &report.suites {
        text += &of_suite(suite);
    }
    text += &standing(report);
    text
}

/// The machine, and how quiet it was, in one line each.
pub(crate) fn machine(machine: &Machine) -> [(&'static str, String); 4] {
    let Machine {
        kernel,
        cpu,
        cpus,
        jit,
        noise,
        stolen,
    } = machine;
    let noise = format!(
        "the same work took {} longer than at its fastest (at most {}); {} of the CPU went to others",
        figure::percent(noise.median),
        figure::percent(noise.most),
        figure::percent(*stolen),
    );
    let jit = if *jit { "on" } else { "OFF" };
    [
        ("CPU", format!("{cpus} x {cpu}")),
        ("Kernel", kernel.clone()),
        ("BPF JIT", jit.to_owned()),
        ("Noise", noise),
    ]
}

/// How much was measured.
pub(crate) fn extent(report: &Report) -> String {
    let rounds = match report.rounds {
        1 => "1 round".to_owned(),
        rounds => format!("{rounds} rounds, the median of them [least-most]"),
    };
    format!("{rounds}; {} in all", figure::duration(report.seconds))
}

fn head(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in machine(&report.machine) {
        text += &format!("{name}: {value}\n");
    }
    text += &format!("Rounds: {}\n", extent(report));
    if report.quick {
        text += &format!("{QUICK}\n");
    }
    text
}

fn of_suite(suite: &Suite) -> String {
    let Suite {
        name,
        method,
        charts,
        checked,
        goals: _,
        contestants,
        missing,
    } = suite;
    let mut text = format!("\n== {name} ==\n");
    if !method.is_empty() {
        text += &format!("{}\n", paragraph(method));
    }
    for chart in charts {
        let of = chart.reference.as_ref();
        let of = of.map_or_else(String::new, |of| format!("; x: times as good as {of}"));
        let (title, unit) = (&chart.title, figure::unit(chart));
        text += &format!("\n{title} ({unit}{of})\n");
        for table in of_chart(chart) {
            text += &format!("{table}\n");
        }
    }
    let checked = checked.iter().map(|what| format!("Checked: {what}"));
    let with = contestants
        .iter()
        .map(|with| format!("With {} {}", with.name, with.version));
    let missing = missing
        .iter()
        .map(|one| format!("Missing: {}: {}", one.name, one.why));
    for told in checked.chain(with).chain(missing) {
        text += &format!("{}\n", paragraph(&told));
    }
    text
}

/// Contestant by column, ratios below the values; the columns in as many tables as they need.
fn of_chart(chart: &Chart) -> impl Iterator<Item = Table> {
    let columns: Vec<_> = chart.columns.iter().enumerate().collect();
    let parts = columns.chunks(COLUMNS).map(|part| {
        let names = part.iter().map(|(_, name)| (*name).clone());
        let rows = chart.series.iter().map(|series| {
            let cells = part.iter().map(|(column, _)| cell(series, *column));
            [series.name.clone()].into_iter().chain(cells)
        });
        table([chart.axis.to_owned()].into_iter().chain(names), rows)
    });
    parts.collect::<Vec<_>>().into_iter()
}

fn cell(series: &Series, column: usize) -> String {
    let mut cell = told(series.values.get(column).copied().flatten(), figure::figure);
    if let Some(ratio) = series.ratios.get(column).copied().flatten() {
        cell += "\nx";
        cell += &figure::spread(ratio, figure::times);
    }
    cell
}

fn told(value: Option<Spread>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| figure::spread(value, text))
}

/// What is wanted, if anything is.
pub(crate) fn number(wanted: Option<f64>) -> String {
    wanted.map_or_else(|| NONE.to_owned(), |wanted| wanted.to_string())
}

fn standing(report: &Report) -> String {
    let goals = report.suites.iter().flat_map(|suite| {
        let goals = suite.goals.iter();
        goals.map(|goal| (suite.name, goal))
    });
    let rows: Vec<_> = goals
        .map(|(suite, goal)| {
            [
                suite.to_owned(),
                goal.what.clone(),
                number(goal.wanted.map(|wanted| wanted.must)),
                number(goal.wanted.map(|wanted| wanted.aim)),
                told(goal.measured, figure::times),
                goal.standing().text().to_owned(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = ["suite", "goal", "must", "aim", "measured", "lb"].map(str::to_owned);
    format!("\nWhere lb stands\n{}\n", table(header, rows))
}

/// In lines as wide as a table.
fn paragraph(text: &str) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .add_row([text]);
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 0));
    }
    table.trim_fmt()
}

fn table<Row: IntoIterator<Item = String>>(
    header: impl IntoIterator<Item = String>,
    rows: impl IntoIterator<Item = Row>,
) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(header);
    for row in rows {
        table.add_row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn the_tables_have_all_that_was_found() {
        let report = sample::report();
        let text = text(&report);
        for suite in &report.suites {
            for chart in &suite.charts {
                assert!(text.contains(&chart.title), "{}", chart.title);
                for series in &chart.series {
                    assert!(
                        text.contains(&format!("│ {} ", series.name)),
                        "{}",
                        series.name
                    );
                }
            }
            for missing in &suite.missing {
                assert!(text.contains(&format!("{}: {}", missing.name, missing.why)));
            }
        }
        // No figure is broken.
        for line in text.lines() {
            assert_eq!(
                line.matches('[').count(),
                line.matches(']').count(),
                "{line}"
            );
        }
        for part in [
            "x1.00",
            "reaches the aim",
            "misses",
            "not measured",
            "has no goal",
            "Checked: ",
        ] {
            assert!(text.contains(part), "{part}");
        }
        assert!(!text.contains(QUICK));
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= usize::from(WIDTH))
        );
    }

    #[test]
    fn a_quick_run_says_so_before_its_figures() {
        let mut report = sample::report();
        report.quick = true;
        report.rounds = 1;
        let text = text(&report);
        let says = text.find(QUICK);
        assert!(says.is_some() && says < text.find('│'));
    }

    #[test]
    fn a_run_that_measured_nothing_is_short() {
        let mut report = sample::report();
        report.suites.clear();
        assert_eq!(text(&report).lines().count(), 5);
    }
}
