//! `lb backends`: what is in the maps, and what the control plane knows of their health; and `lb backend`,
//! which overrides it.

pub(super) mod report;

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, Write as _},
};

use anyhow::{Context as _, Result};

use self::report::{BackendReport, BackendsReport, HealthReport, LastCheckReport};
use super::{
    arguments::{self, Format, Show},
    ask::{self, RefusedCommand},
    print::{self, ago},
    table,
};
use crate::{
    api::{BackendHealth, ControlStatus, Override, Request},
    health::{CheckOutcome, HealthVerdict},
    observe::{BackendLine, Observer, SynCounts},
};

/// The state of a backend that fails with all others of its pool, though it answers.
pub(super) const SERVICE_DOWN: &str = "service down";

/// Those of a pool, or in a state, or all.
pub(super) fn show(pool: Option<&str>, state: Option<&str>, wide: bool, show: &Show) -> Result<()> {
    let observer = Observer::open(&show.instance.name)?;
    let health = ask::health(&show.instance.name);
    let mut backends = observer.backends()?;
    let known = health.as_ref().map_or(&[][..], |status| &status.backends);
    for retired in known.iter().filter(|backend| backend.retired) {
        backends.extend(observer.retired_backend(retired.id)?);
    }
    let (status, why) = match health {
        Ok(status) => (Some(status), None),
        Err(why) => (None, Some(why)),
    };
    if let Some(pool) = pool.filter(|pool| !backends.iter().any(|line| line.pool == *pool)) {
        return Err(RefusedCommand::usage(format!("no pool is called {pool:?}")).into());
    }
    let mut lines = join(backends, status);
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

/// Each backend with what is known of it, by its id.
fn join(backends: Vec<BackendLine>, status: Option<ControlStatus>) -> Vec<BackendReport> {
    let (known, interfaces) = status
        .map(|status| (status.backends, status.interfaces))
        .unwrap_or_default();
    let interfaces = interfaces.into_values();
    let unreachable: BTreeSet<u32> = interfaces.flat_map(|one| one.unreachable).collect();
    let known = known.into_iter();
    let mut known: HashMap<u32, BackendHealth> =
        known.map(|backend| (backend.id, backend)).collect();
    let lines = backends.into_iter().map(|line| {
        let health = line.id.and_then(|id| known.remove(&id));
        let state = |health: &BackendHealth| state(health, unreachable.contains(&health.id));
        BackendReport {
            state: health.as_ref().map_or_else(|| "unknown".to_owned(), state),
            line,
            health: health.map(HealthReport::from),
        }
    });
    lines.collect()
}

/// The verdict of the checks, or that the service behind the pool is down, and what overrules it: a next hop that does not answer, and the operator.
fn state(health: &BackendHealth, is_unreachable: bool) -> String {
    let mut state = match (health.checked, health.verdict) {
        (false, _) => "unchecked",
        (true, HealthVerdict::Unknown) => "unknown",
        (true, HealthVerdict::Up) => "up",
        (true, HealthVerdict::NotReady | HealthVerdict::Dead) if health.service_down => {
            SERVICE_DOWN
        }
        (true, HealthVerdict::NotReady) => "not ready",
        (true, HealthVerdict::Dead) => "dead",
    }
    .to_owned();
    if is_unreachable {
        state.push_str(", unreachable");
    }
    if health.unresponsive {
        state.push_str(", unresponsive");
    }
    match health.overridden {
        Some(Override::Drain) => state.push_str(", drained"),
        Some(Override::Disable) => state.push_str(", disabled"),
        Some(Override::Weight { weight }) => state.push_str(&format!(", weight {weight}")),
        Some(Override::Enable) | None => {}
    }
    if health.backup {
        state.push_str(", backup");
    }
    if health.retired {
        state.push_str(", removed");
    }
    state
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
    use super::{super::samples, *};
    use crate::api::{InterfaceStatus, LastCheck};

    fn health(id: u32, verdict: HealthVerdict) -> BackendHealth {
        samples::backend(id, "p", verdict)
    }

    fn line(id: Option<u32>) -> BackendLine {
        BackendLine {
            id,
            name: "b".to_owned(),
            pool: "p".to_owned(),
            address: "10.0.0.2:80".to_owned(),
            weight: 1,
            share: 33.4,
            next_hop: None,
            syns: None,
            counts: None,
        }
    }

    fn last() -> LastCheck {
        LastCheck {
            outcome: CheckOutcome::Good("200 OK".to_owned()),
            took_ms: 3,
            age_ms: 2100,
        }
    }

    fn control(backends: Vec<BackendHealth>) -> Option<ControlStatus> {
        Some(samples::control(backends))
    }

    #[test]
    fn a_state_is_what_checks_and_operators_say() {
        for (verdict, words) in [
            (HealthVerdict::Unknown, "unknown"),
            (HealthVerdict::Up, "up"),
            (HealthVerdict::NotReady, "not ready"),
            (HealthVerdict::Dead, "dead"),
        ] {
            assert_eq!(state(&health(1, verdict), false), words);
            let of_service = BackendHealth {
                service_down: true,
                ..health(1, verdict)
            };
            let is_failing = matches!(words, "not ready" | "dead");
            let wanted = if is_failing { "service down" } else { words };
            assert_eq!(state(&of_service, false), wanted);
            let unreachable = format!("{words}, unreachable");
            assert_eq!(state(&health(1, verdict), true), unreachable);
        }
        let of = |overridden, retired| {
            let health = BackendHealth {
                overridden,
                retired,
                ..health(1, HealthVerdict::Up)
            };
            state(&health, false)
        };
        assert_eq!(of(Some(Override::Drain), false), "up, drained");
        assert_eq!(of(Some(Override::Disable), false), "up, disabled");
        assert_eq!(
            of(Some(Override::Weight { weight: 7 }), false),
            "up, weight 7"
        );
        assert_eq!(of(None, true), "up, removed");
        let backup = BackendHealth {
            backup: true,
            ..health(1, HealthVerdict::Up)
        };
        assert_eq!(state(&backup, false), "up, backup");
        let unchecked = BackendHealth {
            checked: false,
            ..health(1, HealthVerdict::Unknown)
        };
        assert_eq!(state(&unchecked, false), "unchecked");
        let unresponsive = BackendHealth {
            unresponsive: true,
            ..unchecked.clone()
        };
        assert_eq!(state(&unresponsive, false), "unchecked, unresponsive");
        let drained = BackendHealth {
            overridden: Some(Override::Drain),
            ..unchecked
        };
        assert_eq!(state(&drained, true), "unchecked, unreachable, drained");
    }

    #[test]
    fn a_backend_behind_a_silent_next_hop_is_unreachable() {
        let up = [1, 2].map(|id| health(id, HealthVerdict::Up));
        let mut known = samples::control(up.to_vec());
        let interface = InterfaceStatus {
            mode: "native".to_owned(),
            carrier: true,
            unreachable: [2].into(),
        };
        known.interfaces.insert("mgmt".to_owned(), interface);
        let lines = join(vec![line(Some(1)), line(Some(2))], Some(known));
        let states: Vec<&str> = lines.iter().map(|line| line.state.as_str()).collect();
        assert_eq!(states, ["up", "up, unreachable"]);
    }

    #[test]
    fn backends_and_their_health_meet_by_id() {
        let up = BackendHealth {
            last: Some(last()),
            ..health(1, HealthVerdict::Up)
        };
        let known = control(vec![health(2, HealthVerdict::Dead), up]);
        let lines = join(
            vec![line(Some(1)), line(Some(2)), line(Some(3)), line(None)],
            known,
        );
        let states: Vec<&str> = lines.iter().map(|line| line.state.as_str()).collect();
        assert_eq!(states, ["up", "dead", "unknown", "unknown"]);
        let mut json = serde_json::to_value(&lines).unwrap();
        assert_eq!(json[1]["address"], "10.0.0.2:80");
        assert_eq!(json[1]["health"]["verdict"], "dead");
        assert_eq!(json[3]["share"], 33.4);
        assert!(json[3]["health"].is_null() && json[3]["next_hop"].is_null());
        assert_eq!(
            json[0]["health"].take(),
            serde_json::json!({
                "checked": true,
                "verdict": "up",
                "effective_weight": 1.0,
                "overridden": null,
                "last": {
                    "outcome": { "result": "good", "words": "200 OK" },
                    "took_seconds": 0.003,
                    "age_seconds": 2.1,
                },
                "since_seconds": null,
                "transitions": 0,
                "drain_seconds": null,
                "retired": false,
                "backup": false,
                "unresponsive": false,
                "service_down": false,
            })
        );
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
