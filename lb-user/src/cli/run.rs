//! `lb run`: the control plane in the foreground.

use std::process::ExitCode;

use super::{USAGE, failed};
use crate::{
    control::applied::is_applied,
    daemon::run::{self, End, Options},
    dataplane::pins::Pins,
    sources::file::File,
    system::output,
};

/// Runs until a signal.
pub(super) fn run(options: &Options) -> ExitCode {
    let (file, loaded) = File::read(&options.config);
    match &loaded {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                tracing::warn!("{warning}");
            }
        }
        Err(problems) => {
            output::print_error(problems);
            // What was applied, or waits to be confirmed, goes on whatever the file is.
            if options.takeover || !is_applied(&Pins::new(&options.instance)) {
                return ExitCode::from(USAGE);
            }
        }
    }
    match run::run(options, file, loaded) {
        Ok(End::Stopped | End::GaveWay) => ExitCode::SUCCESS,
        Ok(End::Unconfirmed) => {
            output::print_error("lb: not confirmed in time: taken down again");
            ExitCode::FAILURE
        }
        Err(error) => failed(&error),
    }
}
