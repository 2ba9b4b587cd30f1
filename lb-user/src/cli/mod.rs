//! The command line: one file per subcommand, tables for people and JSON for programs.
//!
//! Exit codes: 0 ok, 1 failed, 2 usage or configuration.

pub mod check;
mod down;
mod run;
mod show;
mod status;
mod table;

use std::{
    io::{self, IsTerminal as _},
    net::SocketAddrV4,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Exit code of a wrong command line or configuration.
const USAGE: u8 = 2;

#[derive(Debug, Parser)]
#[command(
    name = "lb",
    about = "XDP load balancer: VIPs to NodePorts",
    disable_version_flag = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the control plane until SIGINT or SIGTERM; the data plane goes on without it
    Run {
        /// Configuration file
        #[arg(short, long)]
        config: PathBuf,
        #[command(flatten)]
        instance: Instance,
        /// Take everything down again after this time (such as 60s) unless Enter is pressed before
        #[arg(long, value_name = "TIME", value_parser = duration)]
        confirm: Option<Duration>,
        /// Refuse interfaces that carry the default route or this SSH session, unless --confirm
        #[arg(long)]
        careful: bool,
        /// Log every dropped packet of the data plane: slow, for debugging
        #[arg(long)]
        trace_drops: bool,
    },
    /// Validate a configuration file: exit 0, or 2 with all of its problems
    Check {
        /// Configuration file
        file: PathBuf,
        /// Print the configuration with everything written out, as a file that means the same
        #[arg(long)]
        expand: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Networks, verdicts and flow ids
    Status(Show),
    /// What the VIPs listen on
    Services(Show),
    /// Backends and their next hops
    Backends(Show),
    /// Live flows
    Flows(Show),
    /// The flow that has a SNAT port, or had it last
    Who {
        /// SNAT address and port, as a backend sees them
        #[arg(value_name = "SNATIP:PORT")]
        snat: SocketAddrV4,
        #[command(flatten)]
        show: Show,
    },
    /// Dropped and refused packets by reason, and the latest one of each
    Drops(Show),
    /// Detach, and remove every flow, map and cell of the instance
    Down {
        #[command(flatten)]
        instance: Instance,
    },
    /// Version of the program and of its pinned state
    Version {
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
struct Show {
    #[command(flatten)]
    instance: Instance,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
struct Instance {
    /// Which load balancer of this host: letters a-z, digits and `-`, at most 12
    #[arg(long = "instance", value_name = "NAME", default_value = "main", value_parser = instance)]
    name: String,
}

#[derive(Debug, Args)]
struct Output {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Runs the command line; the exit code is the program's.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run {
            config,
            instance,
            confirm,
            careful,
            trace_drops,
        } => {
            let options = run::Options {
                config,
                instance: instance.name,
                confirm,
                careful,
                trace_drops,
            };
            return run::run(&options);
        }
        Command::Check {
            file,
            expand,
            output,
        } => {
            let answer = match output.output {
                Format::Json => check::Answer::Json,
                Format::Table if expand => check::Answer::Expanded,
                Format::Table => check::Answer::Summary,
            };
            return check::check(&file, answer);
        }
        Command::Status(show) => status::show(&show.instance.name, show.output.output),
        Command::Services(show) => show::services(&show.instance.name, show.output.output),
        Command::Backends(show) => show::backends(&show.instance.name, show.output.output),
        Command::Flows(show) => show::flows(&show.instance.name, show.output.output),
        Command::Who { snat, show } => show::who(snat, &show.instance.name, show.output.output),
        Command::Drops(show) => show::drops(&show.instance.name, show.output.output),
        Command::Down { instance } => down::down(&instance.name),
        Command::Version { output } => show::version(output.output),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Says what failed.
fn failed(error: &anyhow::Error) -> ExitCode {
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

fn instance(text: &str) -> Result<String, String> {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if text.is_empty() || text.len() > 12 || !text.bytes().all(valid) {
        return Err("an instance name has 1 to 12 of a-z, 0-9 and `-`".to_owned());
    }
    Ok(text.to_owned())
}

/// Whole seconds, `60` or `60s`.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text
        .strip_suffix('s')
        .unwrap_or(text)
        .parse()
        .ok()
        .filter(|&seconds| seconds > 0);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| "a time is a number of seconds, such as 60s".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_instance_name_is_short_and_plain() {
        assert_eq!(instance("lab-1"), Ok("lab-1".to_owned()));
        for bad in ["", "Main", "a.b", "../x", "thirteen-char"] {
            assert!(instance(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_is_whole_seconds() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        for bad in ["", "0s", "-1", "1m"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
