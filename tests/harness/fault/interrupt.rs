//! Ctrl-C, SIGTERM and a closed terminal, without a signal handler: the signals are blocked in every
//! thread and asked for.
//!
//! A child inherits the blocked signals and would be deaf to the SIGTERM that ends it. So children
//! are started through this program itself, which unblocks them and then becomes the child: it is for its `main` to ask
//! for [`words_to_start`] first.

use std::{
    convert::Infallible, ffi::OsString, os::unix::process::CommandExt as _, process::Command,
};

use anyhow::{Context as _, Result, bail};
use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::process;

/// First argument of this program as a launcher.
const LAUNCHER: &str = "start-unblocked";

/// Knows whether the program was interrupted.
#[derive(Debug)]
pub struct Interrupt {
    signals: SigSet,
    pending: SignalFd,
}

impl Interrupt {
    /// Blocks the signals in this thread and those it starts, and starts all later daemons unblocked.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or this was done before.
    pub fn block() -> Result<Self> {
        let signals = signals();
        signals.thread_block().context("block the signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let pending = SignalFd::with_flags(&signals, flags).context("make a signal descriptor")?;
        process::launch_through(launcher()?)?;
        Ok(Self { signals, pending })
    }

    /// Fails if a signal has come.
    ///
    /// # Errors
    ///
    /// Then; and when the kernel does not tell.
    pub fn check(&self) -> Result<()> {
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
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn wait(&self) -> Result<Signal> {
        self.signals.wait().context("wait for a signal")
    }

    /// From now on a signal ends this program at once: nothing needs to be removed any more.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn unblock(self) -> Result<()> {
        self.signals.thread_unblock().context("unblock the signals")
    }
}

/// What children are started through.
fn launcher() -> Result<Vec<OsString>> {
    let program = std::env::current_exe().context("find the running program")?;
    Ok(vec![program.into(), LAUNCHER.into()])
}

/// The program and the arguments to become, if this process is a launcher.
pub fn words_to_start() -> Option<Vec<OsString>> {
    let mut args = std::env::args_os().skip(1);
    (args.next()? == LAUNCHER).then(|| args.collect())
}

/// Unblocks the signals and becomes the program of `words`; comes back only to fail.
///
/// # Errors
///
/// When it cannot be started.
pub fn start_unblocked(words: &[OsString]) -> Result<Infallible> {
    let (program, args) = words.split_first().context("nothing to start")?;
    signals().thread_unblock().context("unblock the signals")?;
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("start {}", program.display()))
}

fn signals() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}
