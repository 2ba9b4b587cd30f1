//! `lb status -o json`.

use std::{collections::BTreeMap, mem};

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use super::health::Summary;
use crate::{
    api::{ClusterStatus, ConfigStatus, ControlStatus, ServiceStats, ShareUse},
    network::namespace,
    observe::{MISSING, NetworkStatus, Observer, Status},
};

/// The answer of `-o json`.
#[derive(Serialize, JsonSchema)]
pub struct StatusReport {
    /// As of `lb health`.
    pub health: Summary,
    /// As the data plane and the host have it.
    #[serde(flatten)]
    pub status: Status,
    /// Where the configuration stands; null if no control plane reports it.
    pub config: Option<ConfigStatus>,
    /// What something has taken away or changed, and could not be mended yet: of what, and why.
    pub wrong: BTreeMap<String, String>,
    /// The clusters of Kubernetes, by name.
    pub kubernetes: BTreeMap<String, ClusterStatus>,
    /// What became of the clients of each shared VIP, by the names of their services.
    pub shared: BTreeMap<String, ServiceStats>,
    /// What the clients of each network have of what shared VIPs divide among them.
    pub divided: BTreeMap<String, ShareUse>,
    /// Whether the interfaces are as a control plane in another network namespace sees them.
    #[serde(skip)]
    pub is_elsewhere: bool,
}

impl StatusReport {
    /// Of an instance and what its control plane reports, or why it reports nothing.
    ///
    /// # Errors
    ///
    /// If a map or netlink cannot be read.
    pub fn new(observer: &Observer, control: &mut Result<ControlStatus, String>) -> Result<Self> {
        let mut status = observer.status()?;
        let is_elsewhere = match control {
            Ok(control) => see_from_there(&mut status.networks, control),
            Err(_) => false,
        };
        let mut report = Self {
            health: Summary::new(&status.networks, observer.pools(), control),
            status,
            config: None,
            wrong: BTreeMap::new(),
            kubernetes: BTreeMap::new(),
            shared: BTreeMap::new(),
            divided: BTreeMap::new(),
            is_elsewhere,
        };
        if let Ok(control) = control {
            report.config = Some(control.config.clone());
            report.wrong = mem::take(&mut control.wrong);
            report.kubernetes = mem::take(&mut control.kubernetes);
            report.shared = mem::take(&mut control.shared);
            report.divided = mem::take(&mut control.divided);
        }
        Ok(report)
    }
}

/// Takes interfaces as a control plane in another namespace sees them; returns whether it is in another.
pub fn see_from_there(networks: &mut [NetworkStatus], control: &ControlStatus) -> bool {
    if control.namespace == 0 || control.namespace == namespace::own() {
        return false;
    }
    for network in networks {
        let seen = control.interfaces.get(&network.name);
        network.mode = match seen.map(|seen| seen.mode.as_str()) {
            None => MISSING,
            Some("native") => "native",
            Some(_) => "generic",
        };
        network.carrier = seen.is_some_and(|seen| seen.carrier);
    }
    true
}
