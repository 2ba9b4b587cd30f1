//! `lb ha move`: has the active box leave the service to the other one.

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    super::{ask::RefusedCommand, print},
    status,
};
use crate::{api::ha::HaStatus, dataplane::pins::Pins, host::leaving::Leaving, system::output};

/// How often it is looked at how far it is.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the flows of each box stand ready on the other, and then until that one is active. What gives the marker to a box learns from
/// `lb health --box` meanwhile that this one is unfit.
pub(in crate::cli) fn leave(instance: &str, timeout: Duration) -> Result<ExitCode> {
    let deadline = Instant::now() + timeout;
    let before = status(instance)?;
    if !before.active {
        let words = format!(
            "box {} stands by: have the active one leave, at {}",
            before.r#box, before.peer
        );
        return Err(RefusedCommand::usage(words).into());
    }
    let is_ready =
        |status: &HaStatus| super::is_complete(status) && status.peer_active == Some(false);
    let waits = "the flows of each box do not stand ready on the other (`lb ha status`); nothing is changed";
    if !until(instance, deadline, waits, is_ready)? {
        return Ok(ExitCode::FAILURE);
    }
    let leaving = Leaving::begin(&Pins::new(instance))?;
    let began = Instant::now();
    let has_left = |status: &HaStatus| !status.active && status.peer_active == Some(true);
    let waits = "the marker has not moved: keepalived is to give it away where `lb health --box` says unfit";
    let has_left = until(instance, deadline, waits, has_left)?;
    drop(leaving);
    if !has_left {
        return Ok(ExitCode::FAILURE);
    }
    print::line(format_args!(
        "box {} is active, and box {} stands by, after {:.1} s",
        before.peer,
        before.r#box,
        began.elapsed().as_secs_f64()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the boxes come to this before the deadline; else it is printed what they wait for.
fn until(
    instance: &str,
    deadline: Instant,
    waits: &str,
    is_so: impl Fn(&HaStatus) -> bool,
) -> Result<bool> {
    loop {
        if is_so(&status(instance)?) {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            output::print_error(format_args!("lb: not in time: {waits}"));
            return Ok(false);
        }
        thread::sleep(LOOK_INTERVAL);
    }
}
