//! `lb backends -o json`: a backend as the data plane has it, and what the control plane knows of it.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{self, Override},
    health::{CheckOutcome, HealthVerdict},
    model::seconds::Seconds,
    observe::BackendLine,
};

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct BackendsReport {
    /// Those that were chosen, in the order of the file; then those that only finish flows.
    pub(super) backends: Vec<BackendReport>,
}

/// One backend.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BackendReport {
    #[serde(flatten)]
    pub(super) line: BackendLine,
    /// As in the table: the verdict of the checks, or `service down`, and what overrules it: `unreachable` if the next hop does not
    /// answer, what the operator has ordered, and `backup`.
    pub(super) state: String,
    /// What the control plane knows; null if none reports it.
    pub(super) health: Option<HealthReport>,
}

/// What the control plane knows of a backend.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HealthReport {
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
    pub(super) last: Option<LastCheckReport>,
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
pub(super) struct LastCheckReport {
    /// How it ended.
    pub(super) outcome: CheckOutcome,
    /// How long it took.
    took_seconds: Seconds,
    /// How long ago it ended.
    pub(super) age_seconds: Seconds,
}

impl From<api::BackendHealth> for HealthReport {
    fn from(health: api::BackendHealth) -> Self {
        let api::BackendHealth {
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
