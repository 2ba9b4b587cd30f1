//! `cargo xtask bench`: lb beside what would be used instead of it, on one path, in turns.
//!
//! A suite measures one thing of all its contestants and checks that what arrived is right; a report has
//! them all, as a table, as JSON, and as one HTML page.

mod lab;
mod machine;
mod measure;
mod path;
mod report;
mod suites;
mod tcp;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use lb_tests::{
    fault::interrupt::{self, Interrupt},
    process,
};
use nix::unistd::Uid;

use crate::{
    lab::{Far, Lab},
    machine::Machine,
    report::{Report, Suite},
    tcp::{client, server, server::Serve},
};

/// lb beside what would be used instead of it
#[derive(Debug, Parser)]
#[command(name = "lb-bench")]
struct Args {
    #[command(subcommand)]
    end: Option<End>,
    /// Under two minutes: everything is checked, and the figures are of too few packets to be quoted
    #[arg(long)]
    quick: bool,
    /// Only these suites, with commas between them
    #[arg(long, value_enum, value_delimiter = ',')]
    suites: Vec<Which>,
    /// How often every contestant has its turn [default: 5, with --quick 1]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: Option<u8>,
    /// Where report.json and report.html go
    #[arg(long, default_value = "target/bench", overrides_with = "output")]
    output: PathBuf,
    #[command(flatten)]
    lab: Lab,
}

/// What the bench needs elsewhere.
#[derive(Debug, Subcommand)]
enum End {
    /// On another host with real NICs: send and receive for a bench with --generator
    Generator(Far),
    /// One end of connections, which the bench starts in its namespace
    #[command(hide = true)]
    Client { load: String },
    /// The other end
    #[command(hide = true)]
    Server(Serve),
}

/// The suites, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Packets,
    Cpus,
    Program,
    Bulk,
    Connections,
    Sni,
    Flood,
    Flood4,
    Threads,
    Size,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'i> {
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    pub(crate) interrupt: &'i Interrupt,
}

fn main() -> ExitCode {
    let done = match interrupt::words_to_start() {
        Some(words) => interrupt::start_unblocked(&words).map(|never| match never {}),
        None => obey(&Args::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            process::complain(format_args!("lb-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn obey(args: &Args) -> Result<()> {
    match &args.end {
        Some(End::Generator(far)) => lab::serve(far),
        Some(End::Client { load }) => client::run(load),
        Some(End::Server(serve)) => server::run(*serve),
        None => run(args),
    }
}

fn run(args: &Args) -> Result<()> {
    ensure!(
        Uid::effective().is_root(),
        "the bench needs root: it makes network namespaces"
    );
    ensure!(
        thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1),
        "the bench takes two CPUs: one is the load balancer's"
    );
    // From here on there is something to remove.
    let interrupt = Interrupt::block()?;
    let begun = Instant::now();
    let plan = Plan {
        quick: args.quick,
        rounds: args
            .rounds
            .map_or(if args.quick { 1 } else { 5 }, usize::from),
        interrupt: &interrupt,
    };
    let machine = Machine::look()?;
    let mut suites: Vec<Suite> = args.lab.measure(plan)?.into_iter().collect();
    // On a lab host its own NICs are what is asked about.
    let all = args.suites.is_empty() && suites.is_empty();
    let wanted = |which: &&Which| all || args.suites.contains(which);
    let mut failed = None;
    let chosen: Vec<_> = Which::value_variants().iter().filter(wanted).collect();
    for (number, which) in (1..).zip(&chosen) {
        // Plain lines on a terminal, too: a bar takes time of the CPUs that are measured.
        let head = which.head(number, chosen.len());
        process::complain(format_args!("{head} ..."));
        let begun = Instant::now();
        match which.measure(plan) {
            Ok(suite) => {
                suites.push(suite);
                let took = begun.elapsed().as_secs_f64();
                process::complain(format_args!("{head}: {took:.1} s"));
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    let report = Report {
        machine,
        quick: plan.quick,
        rounds: plan.rounds,
        seconds: begun.elapsed().as_secs_f64(),
        suites,
    };
    // What took so long to measure is not lost with a terminal that is gone, or with a suite that fails.
    let files = report.write(&args.output)?;
    let mut out = io::stdout().lock();
    write!(out, "{}", report::text::text(&report))?;
    writeln!(out)?;
    for file in files {
        writeln!(out, "{}", file.display())?;
    }
    failed.map_or(Ok(()), Err)
}

impl Which {
    /// The beginning of the lines about this suite, the `number`th of `all`.
    fn head(self, number: usize, all: usize) -> String {
        let name = self.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        format!("bench {number}/{all}: {name}")
    }

    fn measure(self, plan: Plan<'_>) -> Result<Suite> {
        match self {
            Self::Packets => suites::packets::measure(plan),
            Self::Cpus => suites::cpus::measure(plan),
            Self::Program => suites::program::measure(plan),
            Self::Bulk => suites::bulk::measure(plan),
            Self::Connections => suites::connections::measure(plan),
            Self::Sni => suites::sni::measure(plan),
            Self::Flood => suites::flood::measure(plan),
            Self::Flood4 => suites::flood4::measure(plan),
            Self::Threads => suites::threads::measure(plan),
            Self::Size => suites::size::measure(plan),
        }
        .with_context(|| format!("the suite {self:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_named_as_in_the_arguments() {
        assert_eq!(Which::Packets.head(1, 5), "bench 1/5: packets");
        assert_eq!(Which::Sni.head(1, 1), "bench 1/1: sni");
    }
}
