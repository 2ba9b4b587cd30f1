//! `lb health`: whether everything serves, in one line and an exit code for monitoring.

use std::process::ExitCode;

use anyhow::Result;

use super::{
    arguments::{Format, Show},
    ask, color, observed, print,
};
use crate::reports::{
    health::{State, Summary},
    status::see_from_there,
};

/// Exit code where nothing is known.
const UNKNOWN: u8 = 3;

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
