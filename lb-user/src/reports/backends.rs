//! `lb backends -o json`: a backend as the data plane has it, and what the control plane knows of it.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{self, BackendHealth, ControlStatus, Override},
    health::{CheckOutcome, HealthVerdict},
    model::seconds::Seconds,
    observe::{BackendLine, Observer},
};

/// The state of a backend that fails with all others of its pool, though it answers.
pub(crate) const SERVICE_DOWN: &str = "service down";

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackendsReport {
    /// Those that were chosen, in the order of the file; then those that only finish flows.
    pub backends: Vec<BackendReport>,
}

impl BackendsReport {
    /// Of an instance and what its control plane reports, or why it reports nothing.
    ///
    /// # Errors
    ///
    /// If a map cannot be read.
    pub fn new(observer: &Observer, control: Result<ControlStatus, String>) -> Result<Self> {
        let mut lines = observer.backends()?;
        let known = control.as_ref().map_or(&[][..], |status| &status.backends);
        for retired in known.iter().filter(|backend| backend.retired) {
            lines.extend(observer.retired_backend(retired.id)?);
        }
        Ok(Self {
            backends: join(lines, control.ok()),
        })
    }
}

/// One backend.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BackendReport {
    /// As the data plane has it.
    #[serde(flatten)]
    pub line: BackendLine,
    /// As in the table: the verdict of the checks, or `service down`, and what overrules it: `unreachable` if the next hop does not
    /// answer, what the operator has ordered, and `backup`.
    pub state: String,
    /// What the control plane knows; null if none reports it.
    pub health: Option<HealthReport>,
}

/// What the control plane knows of a backend.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HealthReport {
    /// Whether it is checked at all.
    checked: bool,
    /// The verdict of the checks.
    verdict: HealthVerdict,
    /// Its weight as checks, ramp and operator leave it; 0: it gets no new flows.
    #[schemars(range(min = 0))]
    effective_weight: f64,
    /// The operator's override.
    overridden: Option<Override>,
    /// The latest check.
    pub last: Option<LastCheckReport>,
    /// Since the verdict changed, if it did while this process runs.
    #[schemars(with = "Option<Seconds>")]
    since_seconds: Option<u64>,
    /// How often it changed while this process runs.
    transitions: u64,
    /// Until its flows end, if it drains and they do.
    #[schemars(with = "Option<Seconds>")]
    drain_seconds: Option<u64>,
    /// Whether it is configured no more, and only finishes its flows.
    retired: bool,
    /// Whether it gets new flows only as long as too few of the others are up.
    backup: bool,
    /// Whether it gets no new flows because it has left clients without a SYN-ACK, and its check, too, if it has one.
    unresponsive: bool,
    /// Whether it fails with all others of its pool, and answers: the service behind them is down, and not the node.
    service_down: bool,
}

/// The latest check of a backend.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LastCheckReport {
    /// How it ended.
    pub outcome: CheckOutcome,
    /// How long it took.
    took_seconds: Seconds,
    /// How long ago it ended.
    pub age_seconds: Seconds,
}

impl From<BackendHealth> for HealthReport {
    fn from(health: BackendHealth) -> Self {
        let BackendHealth {
            // In the line.
            id: _,
            pool: _,
            name: _,
            checked,
            verdict,
            effective_weight,
            overridden,
            last,
            since_seconds,
            transitions,
            drain_seconds,
            retired,
            backup,
            unresponsive,
            service_down,
        } = health;
        Self {
            checked,
            verdict,
            effective_weight: f64::from(effective_weight) / 100.0,
            overridden,
            last: last.map(LastCheckReport::from),
            since_seconds,
            transitions,
            drain_seconds,
            retired,
            backup,
            unresponsive,
            service_down,
        }
    }
}

impl From<api::LastCheck> for LastCheckReport {
    fn from(last: api::LastCheck) -> Self {
        let api::LastCheck {
            outcome,
            took_ms,
            age_ms,
        } = last;
        Self {
            outcome,
            took_seconds: Seconds::from_millis(took_ms),
            age_seconds: Seconds::from_millis(age_ms),
        }
    }
}

/// Each backend with what is known of it, by its id.
pub(crate) fn join(
    backends: Vec<BackendLine>,
    status: Option<ControlStatus>,
) -> Vec<BackendReport> {
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

#[cfg(test)]
mod tests {
    use super::{
        super::samples::{self, last, line},
        *,
    };
    use crate::api::InterfaceStatus;

    fn health(id: u32, verdict: HealthVerdict) -> BackendHealth {
        samples::backend(id, "p", verdict)
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
}
