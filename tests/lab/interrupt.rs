//! Ctrl-C, SIGTERM and a closed terminal, without a signal handler: the signals are blocked in every
//! thread and asked for.
//!
//! A child inherits the blocked signals and would be deaf to the SIGTERM that ends it. So children
//! are started through this program itself, which unblocks them and then becomes the child.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result, bail};
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

/// First argument of this program as a launcher.
const LAUNCHER: &str = "start-unblocked";

/// Knows whether somebody wants the lab to end.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signals: SigSet,
    pending: SignalFd,
}

impl Interrupt {
    /// Blocks the signals in this thread and those it starts.
    pub(crate) fn block() -> Result<Self> {
        let signals = signals();
        signals.thread_block().context("block the signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let pending = SignalFd::with_flags(&signals, flags).context("make a signal descriptor")?;
        Ok(Self { signals, pending })
    }

    /// Fails if a signal has come.
    pub(crate) fn check(&self) -> Result<()> {
        match self
            .pending
            .read_signal()
            .context("read the signal descriptor")?
        {
            Some(_) => bail!("interrupted"),
            None => Ok(()),
        }
    }

    /// Waits for a signal.
    pub(crate) fn wait(&self) -> Result<Signal> {
        self.signals.wait().context("wait for a signal")
    }
}

/// What children are started through.
pub(crate) fn launcher() -> Result<Vec<OsString>> {
    let program = std::env::current_exe().context("find the running program")?;
    Ok(vec![program.into(), LAUNCHER.into()])
}

/// The program and the arguments to become, if this process is a launcher.
pub(crate) fn words_to_start() -> Option<Vec<OsString>> {
    let mut args = std::env::args_os().skip(1);
    (args.next()? == LAUNCHER).then(|| args.collect())
}

/// Unblocks the signals and becomes the program of `words`; comes back only to fail.
pub(crate) fn start_unblocked(words: &[OsString]) -> Result<bool> {
    let (program, args) = words.split_first().context("nothing to start")?;
    signals().thread_unblock().context("unblock the signals")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}

fn signals() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}
