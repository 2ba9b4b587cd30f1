//! The lock of an instance: who is its control plane.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::dataplane::pins::Pins;

/// How long somebody who has the lock, but is not who signed it last, may take to go: he has handed over to
/// one that has ended since, and finishes.
const LEAVING: Duration = Duration::from_secs(3);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The lock that makes one process the control plane of an instance.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock; it is held until the process ends.
    ///
    /// # Errors
    ///
    /// If another process holds it.
    pub fn take(pins: &Pins) -> Result<Self> {
        Self::at(&pins.lock(), pins.instance())
    }

    /// Goes on with the lock that another process has taken, and shares with this one.
    ///
    /// # Errors
    ///
    /// If nothing can be written into its file.
    pub fn inherit(descriptor: OwnedFd) -> Result<Self> {
        let lock = Self {
            file: descriptor.into(),
        };
        lock.sign().context("write into the lock of the instance")?;
        Ok(lock)
    }

    pub(crate) fn at(path: &Path, instance: &str) -> Result<Self> {
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("open {}", path.display()))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let pid = holder(&mut file)?;
                    if is_there(&pid) || begun.elapsed() > LEAVING {
                        bail!("instance {instance} is running already (process {pid})");
                    }
                    thread::sleep(LOOK);
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("lock {}", path.display()));
                }
            }
        }
        let lock = Self { file };
        lock.sign()?;
        Ok(lock)
    }

    /// Writes who has it.
    fn sign(&self) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    }
}

/// The process that signed it last.
fn holder(file: &mut File) -> io::Result<String> {
    let mut pid = String::new();
    file.rewind()?;
    file.read_to_string(&mut pid)?;
    Ok(pid.trim().to_owned())
}

/// Whether there is such a process, or nobody can say.
fn is_there(pid: &str) -> bool {
    pid.parse::<u32>().is_err() || Path::new("/proc").join(pid).exists()
}

impl From<Lock> for OwnedFd {
    fn from(lock: Lock) -> Self {
        lock.file.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_finishes_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = Lock::at(&path, "a").unwrap();
        let refused = Lock::at(&path, "a").unwrap_err().to_string();
        let pid = std::process::id();
        assert_eq!(
            refused,
            format!("instance a is running already (process {pid})")
        );

        // No process has such a number (proc(5): pid_max is at most 2^22).
        fs::write(&path, "4194305\n").unwrap();
        let leaves = thread::spawn(move || {
            thread::sleep(2 * LOOK);
            drop(held);
        });
        Lock::at(&path, "a").unwrap();
        leaves.join().unwrap();
    }
}
