//! What the control loop reports: with every request of metrics, and for no more work than `lb status` makes it.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{api::ControlStatus, model::names::AppliedNames};

/// A request for a report, which is sent there.
pub type ReportRequest = oneshot::Sender<ControlReport>;

/// What the control loop knows.
#[derive(Clone, Debug)]
pub struct ControlReport {
    /// As `lb status` has it.
    pub status: ControlStatus,
    /// The names of what is applied. The same until something is applied, or freed.
    pub names: Arc<AppliedNames>,
    /// Changes so far.
    pub reloads: ReloadCounts,
    /// What is still to be done.
    pub waiting: Waiting,
}

/// How often the configuration was to be changed since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReloadCounts {
    /// A reload was applied.
    pub applied: u64,
    /// A reload was refused.
    pub refused: u64,
    /// A reload was not confirmed, and was taken back.
    pub rolled_back: u64,
}

/// What is still to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Backends whose first check has not ended.
    pub first_checks: usize,
    /// Cuts of flows that are not complete.
    pub cuts: usize,
    /// Backends that drain until a time.
    pub drains: usize,
}
