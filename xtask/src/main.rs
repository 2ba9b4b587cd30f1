//! Sets up, builds, runs and tests `lb`: `cargo xtask help` lists the words.
//!
//! Everything else is built with the toolchain of `pins`; this crate alone must build on an older
//! stable Rust, because it is what installs that toolchain. So it depends on anyhow and indicatif alone.

mod api_server;
mod apt;
mod args;
mod bench;
mod book;
mod browser;
mod check;
mod cmd;
mod finding;
mod floors;
mod host;
mod kernels;
mod linker;
mod links;
mod netns;
mod packages;
/// The pinned versions.
mod pins;
mod preflight;
mod progress;
mod prose;
mod reference;
mod run;
mod setup;
mod steps;
mod stock;
mod table;
mod test;
mod tools;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;

use crate::{args::Request, stock::Purpose};

fn main() -> ExitCode {
    let request = match args::parse(std::env::args().skip(1)) {
        Ok(request) => request,
        Err(problem) => {
            eprintln!("xtask: {problem}\n\n{}", args::HELP);
            return ExitCode::from(2);
        }
    };
    match dispatch(&request) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(request: &Request) -> Result<ExitCode> {
    match request {
        Request::Bench { words, yes } => bench::bench(words, *yes),
        Request::Book => book::book(),
        Request::Build { yes } => run::build_lb(*yes),
        Request::Check => check::check(),
        Request::Floors(folder) => floors::print(folder.as_deref()).map(|()| ExitCode::SUCCESS),
        Request::Help => {
            println!("{}", args::HELP);
            Ok(ExitCode::SUCCESS)
        }
        Request::Man => reference::man(),
        Request::Reference => reference::write(),
        Request::Run(run) => run::run(run),
        Request::Setup { yes } => {
            setup::ensure(Purpose::Setup, *yes).map(|_workspace| ExitCode::SUCCESS)
        }
        Request::Kernels { yes } => kernels::all(*yes),
        Request::Test(request) => test::test(request),
    }
}
