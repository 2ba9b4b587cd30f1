//! The command line: a file per subject, tables for people and JSON for programs.
//!
//! Exit codes: 0 ok, 1 failed, 2 usage or configuration; 3 of `plan` with changes, and of `health` that is not known.

mod arguments;
mod ask;
mod backends;
mod changes;
pub mod check;
mod color;
mod detach;
mod discover;
#[cfg(test)]
mod documents;
mod down;
mod drops;
mod events;
mod flows;
mod ha;
mod health;
mod new_process;
mod nodes;
mod observed;
mod prepare;
mod print;
mod run;
mod schemas;
mod services;
mod status;
mod table;
mod top;
mod version;

use std::{env, process::ExitCode};

use clap::{CommandFactory as _, Parser as _};
use tracing_subscriber::EnvFilter;

pub use self::schemas::{AnswerSchema, schemas};
use self::{
    arguments::{Cli, Command, Format, HaCommand},
    ask::RefusedCommand,
};
use crate::system::{
    log::{self, LogFormat},
    output, panics,
};

/// Exit code of a wrong command line or configuration.
const USAGE: u8 = 2;

/// The command line, for `docs/command-line.md`.
#[doc(hidden)]
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Runs the command line; the exit code is the program's.
pub fn main() -> ExitCode {
    panics::abort_outside_connections();
    let Cli { color, command } = Cli::parse();
    color::choose(color);
    let result = match command {
        Command::Run { detach: true, .. } => return detach::detach(),
        Command::Run {
            config,
            instance,
            takeover,
            detach: false,
            migrate,
            confirm,
            careful,
            no_careful,
            trace_drops,
            log_format,
        } => {
            let options = crate::daemon::run::Options {
                config,
                instance: instance.name,
                takeover,
                migrate,
                confirm,
                careful: (careful || no_careful).then_some(careful),
                trace_drops,
            };
            init_log(trace_drops, log_format.as_deref());
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
                Format::Json => check::CheckOutput::Json,
                Format::Table if expand => check::CheckOutput::Expanded,
                Format::Table => check::CheckOutput::Summary,
            };
            return check::check(&file, answer);
        }
        Command::Discover {
            file,
            expand,
            output,
            ..
        } => return discover::discover(&file, expand, output.format),
        Command::Plan {
            file,
            operations,
            show,
        } => return ended(changes::plan(&file, operations, &show)),
        Command::Reload {
            file,
            confirm,
            show,
        } => changes::reload(file.as_deref(), confirm, &show),
        Command::Confirm(show) => changes::confirm(&show),
        Command::Status(show) => status::show(&show),
        Command::Health {
            of_box: true, show, ..
        } => return ended(health::show_box(&show)),
        Command::Health { strict, show, .. } => return ended(health::show(strict, &show)),
        Command::Services(show) => services::show(&show),
        Command::Backends {
            pool,
            state,
            wide,
            show,
        } => backends::show(pool.as_deref(), state.as_deref(), wide, &show),
        Command::Backend { change } => backends::change(change),
        Command::Nodes(show) => nodes::show(&show),
        Command::Node { change } => nodes::change(change),
        Command::Ha {
            change: HaCommand::Status(show),
        } => return ended(ha::show(&show)),
        Command::Ha {
            change: HaCommand::Fence(instance),
        } => ha::fence::fence(&instance.name),
        Command::Ha {
            change:
                HaCommand::Move {
                    timeout,
                    force,
                    instance,
                },
        } => return ended(ha::leave::leave(&instance.name, timeout, force)),
        Command::Flows {
            which,
            kill: true,
            all,
            show,
            ..
        } => flows::kill(which.filter(all), &show),
        Command::Flows {
            which,
            state,
            wide,
            show,
            ..
        } => flows::show(&which.filter(false), state.as_deref(), wide, &show),
        Command::Who {
            snat,
            at: None,
            show,
        } => flows::who(snat, &show),
        Command::Who {
            snat,
            at: Some(at),
            show,
        } => flows::who_at::show(snat, at.moment, &at.text, &show),
        Command::Events {
            after,
            follow,
            show,
        } => events::show(after, follow, &show),
        Command::Drops { names: true, show } => drops::names::show(&show),
        Command::Drops { names: false, show } => drops::show(&show),
        Command::Top { show } => top::show(&show),
        Command::Down { instance } => down::down(&instance.name),
        Command::Version { output } => version::show(output.format),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lb", &mut script);
            print::line(String::from_utf8_lossy(&script).trim_end())
        }
    };
    ended(result.map(|()| ExitCode::SUCCESS))
}

fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| failed(&error))
}

/// Prints what failed.
fn failed(error: &anyhow::Error) -> ExitCode {
    if let Some(refused) = error.downcast_ref::<RefusedCommand>() {
        output::print_error(refused);
        return refused.exit_code();
    }
    output::print_error(format_args!("lb: {error:#}"));
    ExitCode::FAILURE
}

/// Logs to standard error: `LB_LOG` filters, in the syntax of `RUST_LOG`, and `LB_LOG_FORMAT` is how lines are written
/// where the command line does not say it.
fn init_log(trace_drops: bool, format: Option<&str>) {
    // What kube says of each request that fails is in an event, once.
    let default = if trace_drops {
        "info,kube_client=off,kube_runtime=off,lb_ebpf=debug"
    } else {
        "info,kube_client=off,kube_runtime=off"
    };
    let (filter, wrong) = log_filter(env::var("LB_LOG").ok().as_deref(), default);
    let (format, unknown) = match format.and_then(LogFormat::named) {
        Some(format) => (Some(format), None),
        None => log_format(env::var("LB_LOG_FORMAT").ok().as_deref()),
    };
    log::init(filter, format, color::is_on_error());
    for wrong in wrong.into_iter().chain(unknown) {
        tracing::warn!("{wrong}");
    }
}

/// The format of the log if `LB_LOG_FORMAT` is `wanted`, and what is wrong with that.
fn log_format(wanted: Option<&str>) -> (Option<LogFormat>, Option<String>) {
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
        return (None, None);
    };
    let format = LogFormat::named(wanted);
    let all = LogFormat::ALL.map(|one| one.to_string()).join(", ");
    let wrong = format!("LB_LOG_FORMAT={wanted} is no format, so it is left out: expected {all}");
    (format, format.is_none().then_some(wrong))
}

/// The filter of the log if `LB_LOG` is `wanted`, and what is wrong with that.
fn log_filter(wanted: Option<&str>, default: &str) -> (EnvFilter, Option<String>) {
    let wanted = wanted.filter(|wanted| !wanted.is_empty());
    match wanted.map(str::parse) {
        None => (EnvFilter::new(default), None),
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => {
            let wrong = format!(
                "LB_LOG={} is no filter, so it is {default}: {error}",
                wanted.unwrap_or_default()
            );
            (EnvFilter::new(default), Some(wrong))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_that_is_none_is_named() {
        for (wanted, format) in [
            (None, None),
            (Some(""), None),
            (Some("json"), Some(LogFormat::Json)),
            (Some("text"), Some(LogFormat::Text)),
            (Some("journal"), Some(LogFormat::Journal)),
        ] {
            assert_eq!(log_format(wanted), (format, None));
        }
        let (format, wrong) = log_format(Some("xml"));
        let words =
            "LB_LOG_FORMAT=xml is no format, so it is left out: expected text, json, journal";
        assert_eq!((format, wrong.as_deref()), (None, Some(words)));
    }

    #[test]
    fn a_filter_that_is_none_is_named() {
        for (wanted, filter) in [(None, "info"), (Some(""), "info"), (Some("debug"), "debug")] {
            let (found, wrong) = log_filter(wanted, "info");
            assert_eq!((found.to_string().as_str(), wrong), (filter, None));
        }
        let (found, wrong) = log_filter(Some("lb=loud"), "info");
        assert_eq!(found.to_string(), "info");
        let wrong = wrong.unwrap();
        let begin = "LB_LOG=lb=loud is no filter, so it is info: ";
        assert!(wrong.starts_with(begin), "{wrong}");
    }
}
