//! A report as one page: no network, no scripts; the pictures are in it.

use anyhow::{Context as _, Result};
use minijinja::{Environment, context};
use serde::Serialize;

use crate::{
    measure::{Chart, Series, Shape, Spread},
    report::figure,
    report::gauge::{self, Gauge},
    report::palette::{Palette, Style},
    report::plot::Plot,
    report::text,
    report::{Goal, Report, Standing, Suite},
};

const TEMPLATE: &str = include_str!("report.html");

/// The page.
pub(crate) fn page(report: &Report) -> Result<String> {
    let palette = Palette::of(report);
    let suites = report
        .suites
        .iter()
        .map(|suite| Section::of(suite, &palette));
    let standings = report.suites.iter().flat_map(|suite| &suite.goals);
    let standings: Vec<_> = standings.map(Goal::standing).collect();
    let counts = [
        Standing::Aim,
        Standing::Must,
        Standing::Misses,
        Standing::NotMeasured,
        Standing::NoGoal,
    ]
    .map(|kind| (kind, standings.iter().filter(|one| **one == kind).count()))
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(kind, count)| (kind, kind.text(), count));
    let mut pages = Environment::new();
    pages.set_trim_blocks(true);
    pages.set_lstrip_blocks(true);
    // The name's end has all values escaped.
    pages
        .add_template("report.html", TEMPLATE)
        .context("read the page's template")?;
    let page = pages.get_template("report.html")?;
    let page = page.render(context! {
        machine => text::machine(&report.machine),
        extent => text::extent(report),
        quick => report.quick.then_some(text::QUICK),
        suites => suites.collect::<Vec<_>>(),
        counts => counts.collect::<Vec<_>>(),
        gauge_length => gauge::LENGTH,
    });
    page.context("fill in the page's template")
}

/// A suite on the page.
#[derive(Debug, Serialize)]
struct Section<'a> {
    suite: &'a Suite,
    goals: Vec<Aimed<'a>>,
    charts: Vec<Drawn<'a>>,
}

/// A goal, and where lb stands.
#[derive(Debug, Serialize)]
struct Aimed<'a> {
    what: &'a str,
    must: String,
    aim: String,
    measured: Option<(String, String)>,
    standing: Standing,
    text: &'static str,
    gauge: Option<Gauge>,
}

/// A chart, its picture and its table.
#[derive(Debug, Serialize)]
struct Drawn<'a> {
    chart: &'a Chart,
    unit: String,
    lines: bool,
    plot: Plot,
    rows: Vec<Row<'a>>,
}

/// A contestant's row.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    style: Style,
    cells: Vec<Cell>,
}

/// What there is of a column: middle and both ends, of the value and of the ratio.
#[derive(Debug, Serialize)]
struct Cell {
    value: Option<(String, String)>,
    ratio: Option<(String, String)>,
}

impl<'a> Section<'a> {
    fn of(suite: &'a Suite, palette: &Palette) -> Self {
        let charts = suite.charts.iter().map(|chart| Drawn::of(chart, palette));
        Self {
            suite,
            goals: suite.goals.iter().map(Aimed::of).collect(),
            charts: charts.collect(),
        }
    }
}

impl<'a> Aimed<'a> {
    fn of(goal: &'a Goal) -> Self {
        let standing = goal.standing();
        Self {
            what: &goal.what,
            must: text::number(goal.wanted.map(|wanted| wanted.must)),
            aim: text::number(goal.wanted.map(|wanted| wanted.aim)),
            measured: goal
                .measured
                .map(|measured| figure::parts(measured, figure::times)),
            standing,
            text: standing.text(),
            gauge: Gauge::of(goal),
        }
    }
}

impl<'a> Drawn<'a> {
    fn of(chart: &'a Chart, palette: &Palette) -> Self {
        let rows = chart.series.iter().map(|series| Row {
            name: &series.name,
            style: palette.style(&series.name),
            cells: (0..chart.columns.len())
                .map(|column| Cell::of(series, column))
                .collect(),
        });
        Self {
            chart,
            unit: figure::unit(chart),
            lines: chart.shape == Shape::Lines,
            plot: Plot::of(chart),
            rows: rows.collect(),
        }
    }
}

impl Cell {
    fn of(series: &Series, column: usize) -> Self {
        let at = |values: &[Option<Spread>]| values.get(column).copied().flatten();
        Self {
            value: at(&series.values).map(|value| figure::parts(value, figure::figure)),
            ratio: at(&series.ratios).map(|ratio| figure::parts(ratio, figure::times)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;
    use crate::report::sample;

    #[test]
    fn the_page_loads_nothing() {
        let page = page(&sample::report()).expect("a page");
        for word in [
            "http://", "https://", "<script", "<link", "<img", "url(", "@import", "src=",
        ] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn every_series_is_drawn_and_told() {
        let report = sample::report();
        let page = page(&report).expect("a page");
        let charts = || report.suites.iter().flat_map(|suite| &suite.charts);
        assert_eq!(page.matches("<figure").count(), charts().count());
        for chart in charts() {
            assert!(page.contains(&chart.title));
        }
        let series = || charts().flat_map(|chart| &chart.series);
        // A row of the table has it, and so has each picture of a value.
        for series in series() {
            assert!(
                page.contains(&format!("</svg>{}</th>", series.name)),
                "{}",
                series.name
            );
            assert!(
                page.contains(&format!("<title>{}, ", series.name)),
                "{}",
                series.name
            );
        }
        let values = series().flat_map(|series| &series.values).flatten().count();
        assert_eq!(page.matches("class=\"mark ").count(), values);
    }

    #[test]
    fn what_is_not_the_pages_own_is_escaped() {
        let mut report = sample::report();
        let evil = "<b>\"&'</b>";
        report.suites[1].contestants[0].configuration = evil.to_owned();
        report.suites[0].charts[0].title = evil.to_owned();
        report.suites[0].charts[0].series[0].name = evil.to_owned();
        report.suites[0].charts[0].columns[0] = evil.to_owned();
        let page = page(&report).expect("a page");
        assert!(!page.contains("<b>"));
        assert!(page.contains("&lt;b&gt;&quot;&amp;&#x27;&lt;&#x2f;b&gt;"));
    }

    #[test]
    fn a_quick_run_says_so() {
        let mut report = sample::report();
        assert!(!page(&report).expect("a page").contains(text::QUICK));
        report.quick = true;
        assert!(page(&report).expect("a page").contains(text::QUICK));
        report.suites.clear();
        assert!(!page(&report).expect("a page").contains("Where lb stands"));
    }

    #[test]
    #[ignore = "writes a page of made-up figures to the file LB_BENCH_PAGE, to be looked at"]
    fn a_page_to_look_at() {
        let path = env::var_os("LB_BENCH_PAGE").expect("LB_BENCH_PAGE names a file");
        fs::write(path, page(&sample::report()).expect("a page")).expect("write the page");
    }
}
