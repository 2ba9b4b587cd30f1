//! One thread of a process that stands still while the others go on.

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use crate::process::{Process, complain};

/// A thread that was stopped by [`freeze`]; it goes on when this is dropped. Both in the same thread of
/// the test.
#[derive(Debug)]
#[must_use]
pub struct Frozen(Pid);

/// Stops the thread of `process` with this name, wherever it is.
///
/// # Errors
///
/// When there is none, or the kernel refuses.
pub fn freeze(process: &Process, thread: &str) -> Result<Frozen> {
    let thread = Pid::from_raw(process.threads(thread)?[0]);
    ptrace::seize(thread, ptrace::Options::empty()).context("trace a thread")?;
    let frozen = Frozen(thread);
    ptrace::interrupt(thread).context("stop it")?;
    frozen.wait().context("wait until it stands")?;
    Ok(frozen)
}

impl Frozen {
    fn wait(&self) -> nix::Result<()> {
        waitpid(self.0, Some(WaitPidFlag::__WALL)).map(drop)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let gone = match ptrace::detach(self.0, None) {
            // Its process was killed, and is waited for only after all of its threads.
            Err(Errno::ESRCH) => self.wait(),
            detached => detached,
        };
        if let Err(error) = gone {
            complain(format_args!("a frozen thread: {error}"));
        }
    }
}
