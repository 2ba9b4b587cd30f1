//! What `lb run` does until a signal: one loop, and whatever happens comes to it as a message.

use std::time::Duration;

use anyhow::Result;
use tokio::time;

use super::{
    confirmation, drop_log::DropLog, signals::Signals, sockets::Sockets, takeover::Successor,
    way_back::WayBack, web_port::WebPort,
};
use crate::{
    control::{
        control_loop::{Control, TICK_INTERVAL},
        mend::MEND_INTERVAL,
    },
    flows::log::FlowLog,
    system::{output, privileges, systemd::Account},
};

/// How often the programs' log is read.
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How often flows that hold ids of what is configured no more are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How many ended checks are taken in at once.
const MAX_REPORTS: usize = 4096;

/// Why nothing is kept up to date any more.
pub(super) enum Stop {
    /// By a signal, confirmed.
    Signal,
    /// The operator has not confirmed in time, or a signal came before.
    Unconfirmed,
    /// The next process has requested the hand-over.
    Successor(Successor),
}

/// What the loop works with.
pub(super) struct EventLoop<'r> {
    pub(super) control: &'r mut Control,
    pub(super) flow_log: &'r mut Option<FlowLog>,
    pub(super) sockets: Sockets,
    pub(super) web: &'r mut WebPort,
    pub(super) signals: &'r mut Signals,
    /// The programs' log, where it is read.
    pub(super) drop_log: &'r mut Option<DropLog>,
    /// How to go back to other networks, if a reload with these waits to be confirmed.
    pub(super) way_back: &'r mut Option<WayBack>,
    /// Until when the operator has to confirm, if that is still to come.
    pub(super) deadline: &'r mut Option<time::Instant>,
}

impl EventLoop<'_> {
    /// Keeps everything up to date until a signal comes, or until the deadline if the operator does not
    /// confirm before.
    ///
    /// # Errors
    ///
    /// If privileges cannot be given up, or what is confirmed cannot be kept.
    pub(super) async fn run(mut self) -> Result<Stop> {
        let control = &mut *self.control;
        let mut reports = Vec::new();
        let mut log = time::interval(LOG_POLL_INTERVAL);
        // Not at once: packets that were on their way when the plan was applied may still open flows.
        let mut sweep = time::interval_at(time::Instant::now() + SWEEP_INTERVAL, SWEEP_INTERVAL);
        let mut ticks = time::interval(TICK_INTERVAL);
        ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut sockets = time::interval(MEND_INTERVAL);
        sockets.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut confirmed = self
            .deadline
            .map(|deadline| confirmation::ask(deadline - time::Instant::now()))
            .transpose()?;
        let mut account = Account::new(control.summary());
        let expired = time::sleep_until(self.deadline.unwrap_or_else(time::Instant::now));
        tokio::pin!(expired);
        loop {
            tokio::select! {
                // Where a session dies before the operator has confirmed, its hangup is the end.
                reload = self.signals.any() => {
                    if !reload || confirmed.is_some() { break; }
                    // What came of it has been logged.
                    let _said = control.reload(None, None, Some("SIGHUP".to_owned())).await;
                }
                Some(changes) = control.running.data_plane.neighbour_changes() => {
                    said(control.note_next_hops(&changes));
                }
                1.. = control.running.checks.reports.recv_many(&mut reports, MAX_REPORTS) => {
                    said(control.take_reports(reports.drain(..)));
                }
                Some(order) = self.sockets.orders.recv() => control.order(order).await,
                Some(request) = self.web.requests.recv() => self.web.answer(control, request),
                heir = self.sockets.takeover.heir(), if confirmed.is_none() => {
                    if let Some(heir) = heir.greeted().await { return Ok(Stop::Successor(heir)); }
                }
                Some(()) = control.running.changes.recv() => control.look().await,
                Some(()) = control.running.address_changes.recv() => control.follow_marker(),
                () = control.discovered.changed() => control.take_discovered().await,
                _ = ticks.tick() => {
                    said(control.tick().await);
                    WayBack::follow(self.way_back, control);
                    self.web.follow(control);
                    account.go_on(|| control.summary());
                }
                _ = sockets.tick() => self.sockets.mend(control),
                _ = log.tick(), if self.drop_log.is_some() => {
                    if let Some(log) = self.drop_log { log.write(&control.running.applied.ids); }
                }
                () = drain(self.flow_log), if self.flow_log.is_some() => {}
                _ = sweep.tick(), if control.running.has_retired() => {
                    if let Err(error) = control.running.sweep() {
                        tracing::error!(
                            "free the ids of what is configured no more: {error:#}; they stay taken, trying again"
                        );
                    }
                }
                answer = confirmation::wait(&mut confirmed), if confirmed.is_some() => {
                    if !answer { break; }
                    control.running.data_plane.keep()?;
                    privileges::give_up(privileges::KEPT)?;
                    confirmed = None;
                    *self.deadline = None;
                    let _unread = output::print("confirmed");
                }
                () = &mut expired, if confirmed.is_some() => break,
            }
            if let Some(ids) = control.running.applied.new_names() {
                self.web.forget_names();
                if let Some(log) = self.flow_log {
                    log.set_names(ids);
                }
                control.running.show_pair();
            }
        }
        if confirmed.is_some() {
            return Ok(Stop::Unconfirmed);
        }
        Ok(Stop::Signal)
    }
}

/// What the kernel refuses is tried again with the next change.
fn said(result: Result<()>) {
    if let Err(error) = result {
        tracing::error!(
            "write the shares of pools to the maps: {error:#}; they are as before, trying again with the next \
             change"
        );
    }
}

/// Waits for flow events and writes them; a log that fails is closed.
pub(super) async fn drain(flow_log: &mut Option<FlowLog>) {
    if let Some(log) = flow_log
        && let Err(error) = log.drain().await
    {
        tracing::error!(
            "the flow log (log.flows) ends: {error:#}; `lb run --takeover` or a restart opens it again"
        );
        *flow_log = None;
    }
}
