//! The command line: a file per subject, tables for people and JSON for programs.
//!
//! Exit codes: 0 ok, 1 failed, 2 usage or configuration.

mod arguments;
mod ask;
mod backends;
mod changes;
pub mod check;
mod detach;
mod down;
mod drops;
mod events;
mod flows;
mod prepare;
mod print;
mod run;
mod services;
mod status;
mod table;
mod version;

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
};

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use self::{
    arguments::{Cli, Command, Format},
    ask::Refused,
};
use crate::panics;

/// Exit code of a wrong command line or configuration.
const USAGE: u8 = 2;

/// Runs the command line; the exit code is the program's.
pub fn main() -> ExitCode {
    panics::abort_outside_connections();
    let result = match Cli::parse().command {
        Command::Run { detach: true, .. } => return detach::detach(),
        Command::Run {
            config,
            instance,
            takeover,
            detach: false,
            migrate,
            confirm,
            careful,
            trace_drops,
        } => {
            let options = run::Options {
                config,
                instance: instance.name,
                takeover,
                migrate,
                confirm,
                careful,
                trace_drops,
            };
            return run::run(&options);
        }
        Command::Prepare {
            config,
            instance,
            user,
        } => return prepare::prepare(&config, &instance.name, &user),
        Command::Check {
            file,
            expand,
            output,
        } => {
            let answer = match output.format {
                Format::Json => check::Answer::Json,
                Format::Table if expand => check::Answer::Expanded,
                Format::Table => check::Answer::Summary,
            };
            return check::check(&file, answer);
        }
        Command::Plan { file, show } => changes::plan(&file, &show),
        Command::Reload {
            file,
            confirm,
            show,
        } => changes::reload(file.as_deref(), confirm, &show),
        Command::Confirm(show) => changes::confirm(&show),
        Command::Status(show) => status::show(&show),
        Command::Services(show) => services::show(&show),
        Command::Backends(show) => backends::show(&show),
        Command::Backend { change } => backends::change(change),
        Command::Flows {
            which,
            kill: true,
            all,
            show,
        } => flows::kill(which.filter(all), &show),
        Command::Flows { which, show, .. } => flows::show(&which.filter(false), &show),
        Command::Who { snat, show } => flows::who(snat, &show),
        Command::Events {
            after,
            follow,
            show,
        } => events::show(after, follow, &show),
        Command::Drops(show) => drops::show(&show),
        Command::Down { instance } => down::down(&instance.name),
        Command::Version { output } => version::show(output.format),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Says what failed.
fn failed(error: &anyhow::Error) -> ExitCode {
    if let Some(refused) = error.downcast_ref::<Refused>() {
        eprintln!("{refused}");
        return refused.exit_code();
    }
    eprintln!("lb: {error:#}");
    ExitCode::FAILURE
}

/// Logs to standard error: `LB_LOG` filters, in the syntax of `RUST_LOG`.
fn init_log(trace_drops: bool) {
    let default = if trace_drops {
        "info,lb_ebpf=debug"
    } else {
        "info"
    };
    let filter = EnvFilter::try_from_env("LB_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}
