//! `lb services -o json`: what the VIPs listen on, and how many backends are up for it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{ControlStatus, UpCount},
    observe::{Observer, ServiceLine},
};

/// The answer of `-o json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ServicesReport {
    /// What the VIPs listen on, a line for each address and port.
    pub services: Vec<ServiceReport>,
}

/// One line.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ServiceReport {
    /// As the data plane has it.
    #[serde(flatten)]
    pub line: ServiceLine,
    /// Backends of its pools that take new flows; null if no control plane reports it.
    pub backends_up: Option<usize>,
    /// Backends of its pools; null as that is.
    pub backends: Option<usize>,
    /// Those of its pools whose backends all fail, though they answer: the service behind them is down, and not their
    /// nodes.
    pub pools_down: Vec<String>,
}

impl ServicesReport {
    /// Of an instance and what its control plane reports, or why it reports nothing.
    ///
    /// # Errors
    ///
    /// If a map cannot be read.
    pub fn new(observer: &Observer, control: &Result<ControlStatus, String>) -> Result<Self> {
        let counts = control.as_ref().ok().map(ControlStatus::pools);
        let down = control.as_ref().map(ControlStatus::services_down);
        let down = down.unwrap_or_default();
        let lines = observer.services()?.into_iter();
        let services = lines.map(|line| join(line, counts.as_ref(), &down));
        Ok(Self {
            services: services.collect(),
        })
    }
}

/// A service with how many backends its pools have up.
pub fn join(
    line: ServiceLine,
    counts: Option<&BTreeMap<&str, UpCount>>,
    down: &BTreeSet<&str>,
) -> ServiceReport {
    let is_down = |pool: &&String| down.contains(pool.as_str());
    let of_pools = counts.map(|counts| {
        let pools = line
            .pools
            .iter()
            .filter_map(|pool| counts.get(pool.as_str()));
        pools.fold(UpCount::default(), |sum, count| UpCount {
            up: sum.up + count.up,
            of: sum.of + count.of,
        })
    });
    ServiceReport {
        backends_up: of_pools.map(|count| count.up),
        backends: of_pools.map(|count| count.of),
        pools_down: line.pools.iter().filter(is_down).cloned().collect(),
        line,
    }
}
