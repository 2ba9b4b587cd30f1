//! What a control plane reports, for tests.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    api::{BackendHealth, ConfigStatus, ControlStatus},
    health::HealthVerdict,
};

/// A backend `b` that is checked, and has its whole weight.
pub(crate) fn backend(id: u32, pool: &str, verdict: HealthVerdict) -> BackendHealth {
    BackendHealth {
        id,
        pool: pool.to_owned(),
        name: "b".to_owned(),
        checked: true,
        verdict,
        effective_weight: 100,
        overridden: None,
        last: None,
        since_seconds: None,
        transitions: 0,
        drain_seconds: None,
        retired: false,
        backup: false,
        unresponsive: false,
        service_down: false,
    }
}

/// A control plane with these backends and nothing to report of the rest.
pub(crate) fn control(backends: Vec<BackendHealth>) -> ControlStatus {
    let config = ConfigStatus {
        file: PathBuf::from("/etc/lb/lb.yaml"),
        generation: 1,
        age_seconds: 0,
        confirm_seconds: None,
        stale: None,
        staleness: None,
    };
    ControlStatus {
        config,
        backends,
        shared: BTreeMap::new(),
        divided: BTreeMap::new(),
        wrong: BTreeMap::new(),
        namespace: 0,
        interfaces: BTreeMap::new(),
    }
}
