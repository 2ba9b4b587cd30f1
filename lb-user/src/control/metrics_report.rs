//! What metrics and the page have of the control loop: as much as `lb status` has, a few numbers, and for the page events.

use std::sync::Arc;

use super::control_loop::Control;
use crate::{
    metrics::report::{ControlReport, Waiting},
    model::names::AppliedNames,
};

impl Control {
    /// Where everything stands, with the names of what is applied, and as many of the latest events.
    pub(crate) fn metrics_report(
        &mut self,
        names: Arc<AppliedNames>,
        events: usize,
    ) -> ControlReport {
        let status = self.status();
        let drains = status.backends.iter();
        let waiting = Waiting {
            first_checks: self.running.checks.pending(),
            cuts: self.running.ending.unfinished(),
            drains: drains.filter(|one| one.drain_seconds.is_some()).count(),
        };
        ControlReport {
            status,
            names,
            reloads: self.reloads,
            ha: self.running.ha_status(),
            waiting,
            events: self.history.latest(events),
            names_refused: match events {
                0 => Vec::new(),
                _ => self.running.shared_vips.counts.names.read(),
            },
        }
    }

    /// The names of what is applied.
    pub(crate) fn applied_names(&self) -> AppliedNames {
        AppliedNames {
            config: self.running.config().clone(),
            ids: self.running.ids().clone(),
        }
    }

    /// Number of the applied configuration.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }
}
