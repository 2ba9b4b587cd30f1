//! `lb backends`: what is in the maps, and what the control plane knows of their health; and `lb backend`,
//! which overrides it.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};

use super::{
    arguments::{self, Format, Show},
    ask::{self, RefusedCommand},
    observed, print, table,
};
use crate::{
    api::Request,
    health::CheckOutcome,
    model::ago::ago,
    observe::{BackendLine, SynCounts},
    reports::backends::{BackendReport, BackendsReport, LastCheckReport},
};

/// Those of a pool, or in a state, or all.
pub(super) fn show(pool: Option<&str>, state: Option<&str>, wide: bool, show: &Show) -> Result<()> {
    let observer = observed::open(&show.instance.name)?;
    let health = ask::health(&show.instance.name);
    let why = health.as_ref().err().cloned();
    let mut lines = BackendsReport::new(&observer, health)?.backends;
    if let Some(pool) = pool.filter(|pool| !lines.iter().any(|one| one.line.pool == *pool)) {
        return Err(RefusedCommand::usage(format!("no pool is called {pool:?}")).into());
    }
    lines.retain(|backend| {
        let is_of_pool = pool.is_none_or(|pool| backend.line.pool == pool);
        let is_in_state = state.is_none_or(|state| has_state(&backend.state, state));
        is_of_pool && is_in_state
    });
    if show.output.format == Format::Json {
        print::report(&BackendsReport { backends: lines })?;
        return why.map_or(Ok(()), |why| {
            writeln!(io::stderr(), "health is unknown: {why}").context("write to standard error")
        });
    }
    table::print_columns(columns(&lines, wide), rows(lines))?;
    match why {
        Some(why) => print::line(format_args!("\nhealth is unknown: {why}")),
        None => Ok(()),
    }
}

/// Overrides the file and the checks for a backend.
pub(super) fn change(change: arguments::OperatorChange) -> Result<()> {
    let (name, change, show) = change.parts();
    ask::order(&Request::Backend { name, change }, false, &show).map(drop)
}

/// Whether a state has this part: `up, drained` is both.
fn has_state(state: &str, wanted: &str) -> bool {
    state.split(", ").any(|part| part == wanted)
}

/// The columns; in the table that is not wide those alone that say more than the others.
fn columns(lines: &[BackendReport], wide: bool) -> [(&'static str, bool); 11] {
    let any = |holds: fn(&BackendLine) -> bool| lines.iter().any(|backend| holds(&backend.line));
    // The share says it, too.
    let is_weighted = any(|line| line.weight != 1);
    [
        ("POOL", true),
        ("BACKEND", true),
        ("ADDRESS", wide || any(|line| line.name != line.address)),
        ("WEIGHT", wide || is_weighted),
        ("SHARE", true),
        ("STATE", true),
        ("LAST CHECK", true),
        ("NEXT HOP", wide || any(|line| line.next_hop.is_none())),
        ("UNANSWERED", wide),
        ("REFUSED", wide),
        ("REDISPATCHED", wide),
    ]
}

fn rows(lines: Vec<BackendReport>) -> Vec<[String; 11]> {
    let rows = lines.into_iter().map(
        |BackendReport {
             line,
             state,
             health,
         }| {
            let last = health.and_then(|health| health.last);
            let count = |count: fn(SynCounts) -> u32| {
                let syns = line.syns.map(count);
                syns.map_or_else(|| "-".to_owned(), |count| count.to_string())
            };
            let syns = [
                count(|syns| syns.unanswered),
                count(|syns| syns.refused),
                count(|syns| syns.redispatched),
            ];
            let [unanswered, refused, redispatched] = syns;
            [
                line.pool,
                line.name,
                line.address,
                line.weight.to_string(),
                share(line.share),
                state,
                last.map_or_else(|| "-".to_owned(), |last| last_check(&last)),
                line.next_hop.unwrap_or_else(|| "not resolved".to_owned()),
                unanswered,
                refused,
                redispatched,
            ]
        },
    );
    rows.collect()
}

/// A part of the new flows of a pool, from percent.
fn share(percent: f64) -> String {
    if percent > 0.0 && percent < 1.0 {
        "<1 %".to_owned()
    } else {
        format!("{percent:.0} %")
    }
}

fn last_check(last: &LastCheckReport) -> String {
    let LastCheckReport {
        outcome:
            CheckOutcome::Good(words) | CheckOutcome::NotReady(words) | CheckOutcome::Dead(words),
        age_seconds,
        ..
    } = last;
    format!("{words}, {} ago", ago(age_seconds.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{BackendHealth, ControlStatus},
        health::HealthVerdict,
        reports::{
            backends::join,
            samples::{self, last, line},
        },
    };

    fn health(id: u32, verdict: HealthVerdict) -> BackendHealth {
        samples::backend(id, "p", verdict)
    }

    fn control(backends: Vec<BackendHealth>) -> Option<ControlStatus> {
        Some(samples::control(backends))
    }

    #[test]
    fn a_row_has_its_part_of_the_pool() {
        let up = [1, 2, 3, 4].map(|id| health(id, HealthVerdict::Up));
        let mut known = control(up.to_vec());
        known.as_mut().unwrap().backends[0].last = Some(last());
        let mut lines = vec![line(Some(1)), line(Some(2)), line(Some(3)), line(Some(4))];
        for (line, share) in lines.iter_mut().zip([66.7, 33.31, 0.0, 100.0]) {
            line.share = share;
        }
        lines[0].syns = Some(SynCounts {
            unanswered: 5,
            refused: 0,
            redispatched: 4,
        });
        lines[3].pool = "q".to_owned();
        lines[3].next_hop = Some("02:00:00:00:00:01".to_owned());
        let rows = rows(join(lines, known));
        let shares: Vec<&str> = rows.iter().map(|row| row[4].as_str()).collect();
        assert_eq!(shares, ["67 %", "33 %", "0 %", "100 %"]);
        assert_eq!(
            rows[0],
            [
                "p",
                "b",
                "10.0.0.2:80",
                "1",
                "67 %",
                "up",
                "200 OK, 2s ago",
                "not resolved",
                "5",
                "0",
                "4",
            ]
        );
        assert_eq!(rows[3][7..9], ["02:00:00:00:00:01", "-"]);
    }

    #[test]
    fn a_small_share_is_not_none() {
        assert_eq!(share(0.01), "<1 %");
        assert_eq!(share(0.0), "0 %");
        assert_eq!(share(1.0), "1 %");
        assert_eq!(share(100.0), "100 %");
    }

    #[test]
    fn a_table_that_is_not_wide_has_a_column_where_it_says_more() {
        let shown = |line: BackendLine, wide| {
            let columns = columns(&join(vec![line], None), wide).into_iter();
            let shown = columns.filter(|(_, is_shown)| *is_shown);
            shown.map(|(name, _)| name).collect::<Vec<_>>().join(" ")
        };
        let plain = BackendLine {
            name: "10.0.0.2:80".to_owned(),
            next_hop: Some("02:00:00:00:00:01".to_owned()),
            ..line(None)
        };
        let least = "POOL BACKEND SHARE STATE LAST CHECK";
        let all = "POOL BACKEND ADDRESS WEIGHT SHARE STATE LAST CHECK NEXT HOP";
        assert_eq!(shown(plain.clone(), false), least);
        let wide = format!("{all} UNANSWERED REFUSED REDISPATCHED");
        assert_eq!(shown(plain, true), wide);
        assert_eq!(shown(line(None), false), all.replace("WEIGHT ", ""));
        let weighted = BackendLine {
            weight: 3,
            ..line(None)
        };
        assert_eq!(shown(weighted, false), all);
    }

    #[test]
    fn a_state_has_parts() {
        for part in ["up", "drained"] {
            assert!(has_state("up, drained", part), "{part}");
        }
        assert!(!has_state("not ready", "ready") && !has_state("dead", "up"));
    }

    #[test]
    fn without_a_control_plane_there_are_still_rows() {
        let rows = rows(join(vec![line(Some(1))], None));
        assert_eq!(
            rows,
            [[
                "p",
                "b",
                "10.0.0.2:80",
                "1",
                "33 %",
                "unknown",
                "-",
                "not resolved",
                "-",
                "-",
                "-",
            ]]
        );
    }
}
