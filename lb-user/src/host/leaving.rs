//! Whether an operator has this box of a pair leave the service to the other one: a lock, which `lb ha move` has as long as it runs.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::dataplane::pins::Pins;

/// How often the lock is tried: what looks whether it is taken has it for a moment.
const TRIES: u32 = 10;
const TRY_INTERVAL: Duration = Duration::from_millis(20);
/// A user that may open the file may lock it.
const MODE: u32 = 0o600;

/// As long as this is there, the box is to leave.
#[derive(Debug)]
pub(crate) struct Leaving {
    _lock: File,
}

impl Leaving {
    /// From now on.
    ///
    /// # Errors
    ///
    /// If another command has it leave already, or the file cannot be opened.
    pub(crate) fn begin(pins: &Pins) -> Result<Self> {
        let path = path(pins);
        let lock = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(MODE)
            // The folder is the instance's user's, and this runs as root.
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        for _ in 0..TRIES {
            match lock.try_lock() {
                Ok(()) => return Ok(Self { _lock: lock }),
                Err(TryLockError::WouldBlock) => thread::sleep(TRY_INTERVAL),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("lock {}", path.display()));
                }
            }
        }
        bail!("another `lb ha move` of this instance runs: wait for it, or end it")
    }

    /// Whether it is to leave.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or locked, though it is there.
    pub(crate) fn is_on(pins: &Pins) -> io::Result<bool> {
        let file = match File::open(path(pins)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

fn path(pins: &Pins) -> PathBuf {
    pins.runtime().join("leaving.lock")
}
