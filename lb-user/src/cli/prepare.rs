//! `lb prepare`: what needs root before a user can `lb run`.

use std::{path::Path, process::ExitCode};

use anyhow::Result;

use super::{USAGE, failed, init_log, print};
use crate::{
    config::{self, Config},
    control::applied::applied,
    dataplane::pins::Pins,
    host::prepare,
    system::output,
};

/// Prepares the host. A file that is wrong is reported; if another one is applied, that goes on.
pub(super) fn prepare(file: &Path, instance: &str, user: &str) -> ExitCode {
    init_log(false, None);
    let pins = Pins::new(instance);
    let config = match config::load_text(file) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                tracing::warn!("{warning}");
            }
            loaded.config
        }
        Err(problems) => {
            output::print_error(problems);
            match applied(&pins) {
                Ok(config) => config,
                Err(_) => return ExitCode::from(USAGE),
            }
        }
    };
    match prepare_for(&config, &pins, user) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn prepare_for(config: &Config, pins: &Pins, user: &str) -> Result<()> {
    let user = prepare::user(user)?;
    for done in prepare::prepare(config, pins, &user)? {
        print::line(done)?;
    }
    print::line(format_args!(
        "prepared: instance {}, for `lb run` by {}",
        pins.instance(),
        user.name
    ))
}
