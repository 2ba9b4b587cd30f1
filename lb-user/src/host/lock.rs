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

/// How long the lock may be held although who signed it last is gone or about to be: the kernel still closes
/// what it had open, or the lock is on its way from one process to the next.
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

/// Whether there is such a process, and is not about to be gone: one that ends has no command line any more,
/// and its files are closed after that, which takes a while for programs and maps (proc(5)). Or nobody can say.
fn is_there(pid: &str) -> bool {
    if pid.parse::<u32>().is_err() {
        return true;
    }
    let words = fs::read(Path::new("/proc").join(pid).join("cmdline"));
    words.is_ok_and(|words| !words.is_empty())
}

impl From<Lock> for OwnedFd {
    fn from(lock: Lock) -> Self {
        lock.file.into()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        process::{Command, Stdio},
    };

    use super::*;

    /// A lock of its own that is held, and says that this process has signed it.
    fn signed(folder: &Path, pid: &str) -> (PathBuf, Lock) {
        let path = folder.join("lock");
        let held = Lock::at(&path, "a").unwrap();
        fs::write(&path, format!("{pid}\n")).unwrap();
        (path, held)
    }

    /// It is let go soon; and taken.
    fn is_waited_for(path: &Path, held: Lock) {
        let leaves = thread::spawn(move || {
            thread::sleep(2 * LOOK);
            drop(held);
        });
        Lock::at(path, "a").unwrap();
        leaves.join().unwrap();
    }

    #[test]
    fn who_lives_is_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id().to_string();
        let (path, _held) = signed(folder.path(), &pid);
        let begun = Instant::now();
        let refused = Lock::at(&path, "a").unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("instance a is running already (process {pid})")
        );
        assert!(begun.elapsed() < LEAVING);
    }

    #[test]
    fn who_is_gone_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        // No process has such a number (proc(5): pid_max is at most 2^22).
        let (path, held) = signed(folder.path(), "4194305");
        is_waited_for(&path, held);
    }

    #[test]
    fn who_is_about_to_be_gone_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut ended = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
        let pid = ended.id().to_string();
        // What it had open is closed. It stays as it is until somebody asks what it has ended with.
        io::read_to_string(ended.stdout.take().unwrap()).unwrap();
        assert!(!is_there(&pid));
        let (path, held) = signed(folder.path(), &pid);
        is_waited_for(&path, held);
        ended.wait().unwrap();
    }
}
