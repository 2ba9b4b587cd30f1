//! The end of a process that hands over: it goes on until the connections that it carries have ended.

use std::future;

use anyhow::{Result, ensure};
use tokio::time;

use super::{
    event_loop::drain,
    signals::Signals,
    takeover::{Fate, Successor},
    way_back::WayBack,
};
use crate::{
    control::control_loop::{Control, TICK_INTERVAL},
    dataplane::pins::Pins,
    flows::log::FlowLog,
    host,
    proxy::{Acceptors, Legs},
    system::systemd,
};

/// The message for a process that has taken over and is gone.
const NO_HEIR: &str = "the process that has taken over is gone before it was up: the data plane goes on, \
                       without a control plane until the next start";

/// Hands the instance over, and goes on until the connections that this process carries have ended. Where
/// the next process dies before it is up, this one has everything back.
pub(super) async fn hand_over(
    (mut control, lock): (Control, host::Lock),
    heir: Successor,
    flow_log: &mut Option<FlowLog>,
    signals: &mut Signals,
    way_back: &mut Option<WayBack>,
) -> Result<Option<(Control, host::Lock)>> {
    if let Some(log) = flow_log {
        log.leave_data_plane();
    }
    let pins = control.running.pins().clone();
    control.rest().await;
    if let Err(error) = heir.give(&lock, control.give()) {
        tracing::error!("hand over to the new process: {error:#}");
    }
    tracing::info!(
        "handed over; {} connections of shared VIPs are finished here",
        control.carried()
    );
    let fate = tokio::select! {
        fate = heir.fate() => fate,
        () = signals.end() => return Ok(None),
        () = drain_all(flow_log) => return Ok(None),
    };
    if fate == Fate::Gone {
        match control.go_on().await {
            Ok(()) => {
                lock.sign();
                if let Some(log) = flow_log
                    && let Err(error) = log.take_data_plane_back(&pins.maps())
                {
                    tracing::error!(
                        "the flow log (log.flows) ends: {error:#}; `lb run --takeover` or a restart opens it again"
                    );
                    *flow_log = None;
                }
                return Ok(Some((control, lock)));
            }
            Err(error) => tracing::error!("go on after the new process has ended: {error:#}"),
        }
    }
    if fate != Fate::Up {
        // It starts the next one only when this one has ended.
        ensure!(!systemd::is_there(), NO_HEIR);
        tracing::error!("{NO_HEIR}");
    }
    // Only the next process has them any more.
    drop(lock);
    *way_back = None;
    let (acceptors, legs) = control.leave();
    finish(acceptors, legs, &pins, flow_log, signals).await;
    Ok(None)
}

/// Goes on until the connections that this process carries have ended.
async fn finish(
    acceptors: Acceptors,
    legs: Legs,
    pins: &Pins,
    flow_log: &mut Option<FlowLog>,
    signals: &mut Signals,
) {
    let mut looks = time::interval(TICK_INTERVAL);
    let is_done = async {
        loop {
            looks.tick().await;
            // Nothing goes on without the data plane.
            if legs.all().is_empty() && acceptors.is_idle() || !pins.exist() {
                return;
            }
        }
    };
    tokio::select! {
        () = is_done => {}
        () = signals.end() => {}
        () = drain_all(flow_log) => {}
    }
}

/// Writes flow events, for ever.
async fn drain_all(flow_log: &mut Option<FlowLog>) {
    while flow_log.is_some() {
        drain(flow_log).await;
    }
    future::pending().await
}
