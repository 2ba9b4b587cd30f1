//! `lb run --takeover --detach`: starts the process that takes over, and waits until it is ready.

use std::{
    env,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context as _, Result};

use super::failed;
use crate::daemon::run::READY;

/// The option, which the new process does not get.
const OPTION: &str = "--detach";

/// Starts this program anew, with the same arguments but for one. The exit code is that of the new process if
/// it ends before it is ready; it has printed why.
pub(super) fn detach() -> ExitCode {
    start().unwrap_or_else(|error| failed(&error))
}

fn start() -> Result<ExitCode> {
    let program = env::current_exe().context("find this program")?;
    let arguments = env::args_os().skip(1);
    let mut next = Command::new(program)
        .args(arguments.filter(|argument| argument != OPTION))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // What a terminal sends to this one is not for that one.
        .process_group(0)
        .spawn()
        .context("start the process that takes over")?;
    let output = next.stdout.take().context("read what it says")?;
    for line in BufReader::new(output).lines() {
        let line = line.context("read what it says")?;
        println!("{line}");
        if line.starts_with(READY) {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let status = next.wait().context("wait for the new process")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
