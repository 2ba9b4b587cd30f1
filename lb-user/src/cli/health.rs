//! `lb health`: whether everything serves, in one line and an exit code for monitoring.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;

use super::{
    arguments::{Format, Show},
    ask, color, observed, print,
};
use crate::{
    admin::client,
    api::{Answer, Request},
    dataplane::pins::Pins,
    host::leaving::Leaving,
    reports::{
        box_health::BoxHealth,
        health::{State, Summary},
        status::see_from_there,
    },
};

/// Exit code where nothing is known.
const UNKNOWN: u8 = 3;
/// How long the process may take to say what it knows of the other box.
const BOX_ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// Prints it; the exit code is that of the state.
pub(super) fn show(strict: bool, show: &Show) -> Result<ExitCode> {
    let summary =
        summary(&show.instance.name).unwrap_or_else(|why| Summary::unknown([format!("{why:#}")]));
    match show.output.format {
        Format::Json => print::report(&summary)?,
        Format::Table => print::line(color::line(&summary.line()))?,
    }
    Ok(exit_code(&summary, strict))
}

/// Prints whether this box is one to have the marker of a pair; the exit code says so too.
pub(super) fn show_box(show: &Show) -> Result<ExitCode> {
    let found = box_health(&show.instance.name);
    let found = found.unwrap_or_else(|why| BoxHealth::unknown(format!("{why:#}")));
    match show.output.format {
        Format::Json => print::report(&found)?,
        Format::Table => print::line(found.line())?,
    }
    Ok(match found.fit {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => ExitCode::from(UNKNOWN),
    })
}

/// By the pins; a process that does not answer changes nothing.
fn box_health(instance: &str) -> Result<BoxHealth> {
    let networks = observed::open(instance)?.networks()?;
    let is_leaving = Leaving::is_on(&Pins::new(instance))?;
    let answer = client::ask_within(instance, &Request::Ha, BOX_ANSWER_TIMEOUT);
    let ha = match &answer {
        Ok(Answer::Ha(status)) => Some(&**status),
        _ => None,
    };
    Ok(BoxHealth::new(&networks, ha, is_leaving))
}

/// With `strict` a configuration that is stale is as bad as a pool that does not serve.
fn exit_code(summary: &Summary, strict: bool) -> ExitCode {
    match summary.state {
        State::Ok if strict && summary.stale.is_some() => ExitCode::FAILURE,
        State::Ok => ExitCode::SUCCESS,
        State::Degraded => ExitCode::FAILURE,
        State::Unknown => ExitCode::from(UNKNOWN),
    }
}

fn summary(instance: &str) -> Result<Summary> {
    let observer = observed::open(instance)?;
    let mut networks = observer.networks()?;
    let control = ask::health(instance);
    if let Ok(control) = &control {
        see_from_there(&mut networks, control);
    }
    Ok(Summary::new(&networks, observer.pools(), &control))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        health::HealthVerdict,
        reports::samples::{backend, control},
    };

    #[test]
    fn the_exit_code_is_that_of_the_state() {
        let of = |control| exit_code(&Summary::new(&[], ["p"], &control), false);
        let up = control(vec![backend(1, "p", HealthVerdict::Up)]);
        assert_eq!(of(Ok(up)), ExitCode::SUCCESS);
        assert_eq!(of(Ok(control(Vec::new()))), ExitCode::FAILURE);
        assert_eq!(
            of(Err("no control plane runs".to_owned())),
            ExitCode::from(3)
        );
    }

    #[test]
    fn a_stale_configuration_is_strictly_an_error() {
        let mut stale = control(vec![backend(1, "p", HealthVerdict::Up)]);
        let code = |control: &_, strict| exit_code(&Summary::new(&[], ["p"], control), strict);
        let fresh = Ok(stale.clone());
        assert_eq!(code(&fresh, true), ExitCode::SUCCESS);
        stale.config.stale = Some("refused: lb.yaml:7: x".to_owned());
        let stale = Ok(stale);
        assert_eq!(code(&stale, false), ExitCode::SUCCESS);
        assert_eq!(code(&stale, true), ExitCode::FAILURE);
    }
}
