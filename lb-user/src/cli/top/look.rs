//! One look after the other at an instance, whether its control plane runs or not.

use std::time::Instant;

use anyhow::Result;

use crate::{
    admin::client,
    api::{Answer, Request},
    cli::{ask, observed},
    dataplane::pins::Pins,
    events::file,
    reports::{
        overview::{ControlReports, Overview},
        rates::Watch,
    },
};

/// Looks at an instance.
pub(super) struct Looker {
    instance: String,
    watch: Watch,
}

impl Looker {
    /// It has not looked yet.
    pub(super) fn new(instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            watch: Watch::default(),
        }
    }

    /// Looks. The instance is opened anew: another process, or another data plane, may have it now.
    ///
    /// # Errors
    ///
    /// If it is not up, or may not be read.
    pub(super) fn look(&mut self) -> Result<Overview> {
        let observer = observed::open(&self.instance)?;
        let when = Instant::now();
        let mut overview = Overview::new(&observer, self.control())?;
        self.watch.follow(&mut overview, when);
        Ok(overview)
    }

    /// What the control plane knows; without one, the events that it has left.
    fn control(&self) -> ControlReports {
        let status = ask::health(&self.instance);
        let events = match client::ask(&self.instance, &Request::Events { after: 0 }) {
            Ok(Answer::Events { events }) => events,
            _ => {
                let left = file::read_after(&Pins::new(&self.instance), 0);
                left.ok().flatten().unwrap_or_default()
            }
        };
        let names = match client::ask(&self.instance, &Request::RefusedNames) {
            Ok(Answer::RefusedNames { names }) => names,
            _ => Vec::new(),
        };
        ControlReports {
            status,
            events,
            names,
        }
    }
}
