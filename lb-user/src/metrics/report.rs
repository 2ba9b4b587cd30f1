//! What the control loop reports: with every request of metrics or the page, and for no more work than `lb status` makes it.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    api::{ControlStatus, Event, RefusedName, ha::HaStatus},
    model::names::AppliedNames,
    observe::Observer,
};

/// How long the control loop may take: a change of many pools takes a second or two.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// A request to the control loop.
pub enum LoopRequest {
    /// What it knows.
    Report {
        /// How many of the latest events are wanted, and with them the names that shared VIPs have refused; 0: neither.
        events: usize,
        /// Where the report is sent.
        reply: oneshot::Sender<ControlReport>,
    },
    /// Maps to look at, which only it may open.
    Observer(oneshot::Sender<Result<Observer>>),
}

impl LoopRequest {
    /// Requests a report; none if none comes in time.
    pub(crate) async fn report(
        requests: &mpsc::Sender<Self>,
        events: usize,
    ) -> Option<ControlReport> {
        send(requests, |reply| Self::Report { events, reply }).await
    }

    /// Requests an observer.
    ///
    /// # Errors
    ///
    /// If none comes in time, or a map cannot be opened.
    pub(crate) async fn observer(requests: &mpsc::Sender<Self>) -> Result<Observer> {
        let answer = send(requests, Self::Observer).await;
        answer.context("the control plane does not answer")?
    }
}

async fn send<T>(
    requests: &mpsc::Sender<LoopRequest>,
    request: impl FnOnce(oneshot::Sender<T>) -> LoopRequest,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    let done = async {
        requests.send(request(reply)).await.ok()?;
        answer.await.ok()
    };
    time::timeout(REPORT_TIMEOUT, done).await.ok().flatten()
}

/// What the control loop knows.
#[derive(Clone, Debug)]
pub struct ControlReport {
    /// As `lb status` has it.
    pub status: ControlStatus,
    /// The names of what is applied. The same until something is applied, or freed.
    pub names: Arc<AppliedNames>,
    /// Changes so far.
    pub reloads: ReloadCounts,
    /// How this box and its peer stand to each other, if there is one.
    pub ha: Option<HaStatus>,
    /// What is still to be done.
    pub waiting: Waiting,
    /// Its latest events, oldest first, as many as were wanted.
    pub events: Vec<Event>,
    /// The names that shared VIPs have refused, if events were wanted.
    pub names_refused: Vec<RefusedName>,
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
