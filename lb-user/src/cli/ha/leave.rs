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

/// Waits until the other box lacks nothing, unless the move is forced, and then until that one is active. What gives the marker to a box learns from `lb health --box`
/// meanwhile that this one is unfit.
pub(in crate::cli) fn leave(
    instance: &str,
    timeout: Duration,
    is_forced: bool,
) -> Result<ExitCode> {
    let deadline = Instant::now() + timeout;
    let before = status(instance)?;
    if !before.active {
        let words = format!(
            "box {} stands by: have the active one leave, at {}",
            before.r#box, before.peer
        );
        return Err(RefusedCommand::usage(words).into());
    }
    let lacks =
        |status: &HaStatus| lacks(status).map(|what| what + "; nothing is changed (--force)");
    if !is_forced && !until(instance, deadline, lacks)? {
        return Ok(ExitCode::FAILURE);
    }
    let leaving = Leaving::begin(&Pins::new(instance))?;
    let began = Instant::now();
    let has_left = until(instance, deadline, |status| {
        let has_left = !status.active && status.peer_active == Some(true);
        let words = "the marker has not moved: keepalived is to give it away where `lb health --box` says unfit";
        (!has_left).then(|| words.to_owned())
    })?;
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

/// What the other box lacks to take the service over as it is.
fn lacks(status: &HaStatus) -> Option<String> {
    let peer = &status.peer;
    if !super::is_complete(status) {
        let words =
            "the flows of each box do not stand ready on the other (`lb ha status` says why)";
        return Some(words.to_owned());
    }
    if status.peer_active != Some(false) {
        return Some(format!("box {peer} is active as well"));
    }
    let first = status.down_only_there.first()?;
    let count = status.down_only_there.len();
    Some(format!(
        "box {peer} finds {count} backends down that this one finds up (`lb ha status`), as {first}: mostly its address of checks_from \
         is not allowed there"
    ))
}

/// Whether the boxes lack nothing before the deadline; else it is printed what.
fn until(
    instance: &str,
    deadline: Instant,
    lacks: impl Fn(&HaStatus) -> Option<String>,
) -> Result<bool> {
    loop {
        let Some(waits) = lacks(&status(instance)?) else {
            return Ok(true);
        };
        if Instant::now() >= deadline {
            output::print_error(format_args!("lb: not in time: {waits}"));
            return Ok(false);
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ha::{ReceivingStatus, SendingStatus, SessionStatus};

    #[test]
    fn what_the_other_box_lacks_is_named() {
        let session = || SessionStatus {
            complete: true,
            ..SessionStatus::default()
        };
        let ready = HaStatus {
            peer: "lb2".to_owned(),
            peer_active: Some(false),
            sending: SendingStatus {
                session: session(),
                ..SendingStatus::default()
            },
            receiving: ReceivingStatus {
                session: session(),
                ..ReceivingStatus::default()
            },
            ..HaStatus::default()
        };
        assert_eq!(lacks(&ready), None);
        let mut incomplete = ready.clone();
        incomplete.receiving.session.complete = false;
        let both = HaStatus {
            peer_active: Some(true),
            ..ready.clone()
        };
        let blind = HaStatus {
            down_only_there: vec!["kas/a".to_owned(), "kas/b".to_owned()],
            ..ready
        };
        for (status, wanted) in [
            (incomplete, "the flows of each box do not stand ready"),
            (both, "box lb2 is active as well"),
            (
                blind,
                "box lb2 finds 2 backends down that this one finds up (`lb ha status`), as kas/a",
            ),
        ] {
            let words = lacks(&status).unwrap();
            assert!(words.starts_with(wanted), "{words}");
        }
    }
}
