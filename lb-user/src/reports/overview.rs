//! Everything at a glance: what the page of `admin.http` and `lb top` show.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    backends::{BackendReport, BackendsReport},
    events::EventReport,
    rates::FlowRates,
    services::{ServiceReport, ServicesReport},
    status::StatusReport,
};
use crate::{
    api::{ControlStatus, Event, RefusedName},
    events::file::time,
    observe::{DropLine, Observer},
};

/// The latest events that it has.
pub const MAX_EVENTS: usize = 100;

/// What is looked at, as each command answers it with `-o json`.
#[derive(Serialize, JsonSchema)]
pub struct Overview {
    /// When, as RFC 3339 has it, in UTC.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// As `lb status`.
    pub status: StatusReport,
    /// As `lb services`.
    pub services: Vec<ServiceReport>,
    /// As `lb backends`.
    pub backends: Vec<BackendReport>,
    /// As `lb drops`, with what came since the look before.
    pub drops: Vec<DropLine>,
    /// As `lb drops --names`.
    pub names: Vec<RefusedName>,
    /// As `lb events`: the latest 100, oldest first.
    pub events: Vec<EventReport>,
    /// What has come since the look before; null of the first look, and of one a minute after the one before.
    pub rates: Option<FlowRates>,
}

/// What only the control plane knows.
#[derive(Debug)]
pub struct ControlReports {
    /// Where it stands, or why that is not known.
    pub status: Result<ControlStatus, String>,
    /// Its events, oldest first.
    pub events: Vec<Event>,
    /// The names that shared VIPs have refused.
    pub names: Vec<RefusedName>,
}

impl Overview {
    /// Looks at an instance; without rates.
    ///
    /// # Errors
    ///
    /// If a map or netlink cannot be read.
    pub fn new(observer: &Observer, control: ControlReports) -> Result<Self> {
        let ControlReports {
            mut status,
            mut events,
            names,
        } = control;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = since_1970.unwrap_or_default().as_millis();
        events.drain(..events.len().saturating_sub(MAX_EVENTS));
        Ok(Self {
            time: time(u64::try_from(millis).unwrap_or(u64::MAX)).to_string(),
            services: ServicesReport::new(observer, &status)?.services,
            drops: observer.drops()?,
            names,
            events: events.into_iter().map(EventReport::from).collect(),
            rates: None,
            status: StatusReport::new(observer, &mut status)?,
            backends: BackendsReport::new(observer, status)?.backends,
        })
    }
}
