//! The board for Grafana, which cannot run here: its queries, as Prometheus takes them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::prometheus::{Prometheus, RULES};

const BOARD: &str = include_str!("../../../../config/grafana/lb.json");
const PAGE: &str = include_str!("../../../../docs/metrics.md");
/// Metrics of Prometheus itself.
const OF_PROMETHEUS: [&str; 2] = ["up", "ALERTS"];
/// What rates are over: the time of several scrapes.
const RATE_INTERVAL: &str = "20s";
/// The row, as it were, of the queries for the values of variables.
const VARIABLES: &str = "variables";

/// A query of the board.
struct Query {
    /// The row that its panel is in.
    row: String,
    /// With its variables filled in.
    expression: String,
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, key: &str) -> Result<&'v Vec<Value>> {
    value[key].as_array().with_context(|| format!("no {key}"))
}

/// The queries of all panels, row by row.
fn queries() -> Result<Vec<Query>> {
    let board: Value = serde_json::from_str(BOARD)?;
    let (mut row, mut queries) = (String::new(), Vec::new());
    for panel in list(&board, "panels")? {
        if panel["type"] == "row" {
            text(panel, "title").clone_into(&mut row);
            continue;
        }
        for target in list(panel, "targets")? {
            queries.push(Query {
                row: row.clone(),
                expression: filled(&board, text(target, "expr"))?,
            });
        }
    }
    for variable in variables(&board)? {
        let values = text(variable, "definition").strip_prefix("label_values(");
        let values = values.and_then(|values| values.rsplit_once(", "));
        queries.push(Query {
            row: VARIABLES.to_owned(),
            expression: filled(&board, values.context("values of a label")?.0)?,
        });
    }
    for annotation in list(&board["annotations"], "list")? {
        queries.push(Query {
            row: "annotations".to_owned(),
            expression: filled(&board, text(annotation, "expr"))?,
        });
    }
    Ok(queries)
}

/// With the variables filled in as by Grafana where everything is chosen.
fn filled(board: &Value, expression: &str) -> Result<String> {
    let mut filled = expression.replace("$__rate_interval", RATE_INTERVAL);
    for variable in variables(board)? {
        let name = text(variable, "name");
        filled = filled.replace(&format!("\"${name}\""), "\".*\"");
    }
    ensure!(!filled.contains('$'), "{expression} has another variable");
    Ok(filled)
}

/// The variables whose values are those of a label.
fn variables(board: &Value) -> Result<Vec<&Value>> {
    let all = list(&board["templating"], "list")?.iter();
    Ok(all.filter(|one| one["type"] == "query").collect())
}

/// Prometheus takes each query of the board, and those of these rows find something, but for those with one of the metrics
/// in `empty`.
pub(super) fn ensure_filled(
    prometheus: &Prometheus<'_>,
    rows: &[&str],
    empty: &[&str],
) -> Result<()> {
    let (mut missing, mut known) = (Vec::new(), BTreeSet::new());
    for Query { row, expression } in queries()? {
        let found = prometheus.query(&expression)?;
        let is_empty = names(&expression).iter().any(|name| empty.contains(name));
        let is_wanted = row == VARIABLES || rows.contains(&row.as_str());
        if is_wanted && !is_empty && found.is_empty() {
            missing.push(expression);
        }
        known.insert(row);
    }
    ensure!(rows.iter().all(|row| known.contains(*row)), "{known:?}");
    ensure!(missing.is_empty(), "nothing is found by {missing:#?}");
    Ok(())
}

/// The names of metrics in a text: words that begin like one, and are no word of a longer name.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_alphanumeric() || "_:".contains(letter)));
    let is_name = |word: &&str| word.starts_with("lb_") || word.starts_with("process_");
    words.filter(is_name).collect()
}

/// Each metric that an alert or a panel goes by is one of the page, or recorded by a rule.
#[test]
fn every_metric_of_board_and_alerts_is_one_of_lb() {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut known = BTreeSet::from(OF_PROMETHEUS.map(str::to_owned));
    for row in rows {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap_or_default().trim_end_matches('`');
        let suffix = match cells.next() {
            Some("histogram") => "_bucket",
            _ => "",
        };
        known.insert(format!("{name}{suffix}"));
    }
    let records = RULES.lines();
    let records = records.filter_map(|line| line.trim_start().strip_prefix("- record: "));
    known.extend(records.map(str::to_owned));
    let rules: Vec<&str> = RULES
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect();
    for name in names(&rules.join("\n")).union(&names(BOARD)) {
        assert!(known.contains(*name), "{name}");
    }
}

/// Grafana needs of each panel a number of its own and a place, and of each query a letter and the source of its data.
#[test]
fn every_panel_has_a_place_of_its_own_and_a_source() -> Result<()> {
    let board: Value = serde_json::from_str(BOARD)?;
    let panels = list(&board, "panels")?;
    let ids: BTreeSet<u64> = panels.iter().filter_map(|one| one["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let number = |key: &str| panel["gridPos"][key].as_u64().context("a place");
        let (left, top) = (number("x")?, number("y")?);
        let (right, bottom) = (left + number("w")?, top + number("h")?);
        ensure!(right <= 24, "{panel}");
        for place in (left..right).flat_map(|x| (top..bottom).map(move |y| (x, y))) {
            ensure!(taken.insert(place), "{} has {place:?}", panel["title"]);
        }
        if panel["type"] == "row" {
            continue;
        }
        ensure!(!text(panel, "description").is_empty(), "{panel}");
        let letters: BTreeSet<&str> = list(panel, "targets")?
            .iter()
            .filter(|target| target["datasource"]["uid"] == "${datasource}")
            .map(|target| text(target, "refId"))
            .collect();
        assert_eq!(letters.len(), list(panel, "targets")?.len(), "{panel}");
    }
    Ok(())
}
