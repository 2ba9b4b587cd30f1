//! The lock of an instance: which process is its control plane.

use std::{
    fmt::{self, Display, Formatter},
    fs::{self, File, Permissions, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::dataplane::pins::Pins;

/// How long the lock may be held although the process that signed it last is gone or about to be: the kernel
/// still closes what it had open, or the lock is on its way from one process to the next.
const LEAVING: Duration = Duration::from_secs(3);
/// How often that is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A user that may open the file may lock it, and keep every control plane from starting.
const MODE: u32 = 0o600;

/// Another process is the control plane of the instance.
#[derive(Debug, PartialEq, Eq)]
pub struct IsRunning {
    /// The instance.
    pub instance: String,
    /// The process, as it has written itself into the lock.
    pub process: String,
}

impl Display for IsRunning {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { instance, process } = self;
        write!(
            f,
            "instance {instance} is running already (process {process}): `lb run --takeover` takes over from it, \
             under systemd `systemctl reload lb`"
        )
    }
}

impl std::error::Error for IsRunning {}

impl IsRunning {
    /// How it is stopped, for what needs it stopped.
    pub fn stop_first(&self) -> String {
        let Self { instance, process } = self;
        format!(
            "instance {instance} is running (process {process}): stop it first, with `systemctl stop lb` where \
             it is a unit, else with `kill {process}`; what it carries goes on until `lb down`"
        )
    }
}

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
    /// If others may open its file, and that cannot be changed.
    pub fn inherit(descriptor: OwnedFd) -> Result<Self> {
        let lock = Self {
            file: descriptor.into(),
        };
        lock.close_to_others().context("take the lock over")?;
        lock.sign();
        Ok(lock)
    }

    /// The process that holds the lock, if one does.
    pub fn holder(pins: &Pins) -> Option<String> {
        let mut file = File::open(pins.lock()).ok()?;
        // Shared, and let go at once: it is only a test.
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => holder(&mut file).ok(),
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }

    pub(crate) fn at(path: &Path, instance: &str) -> Result<Self> {
        let folder = path.parent().unwrap_or(path);
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(path)
            .with_context(|| format!("open {}", path.display()))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {
                    let process = holder(&mut file)?;
                    if is_process(&process) || begun.elapsed() > LEAVING {
                        let instance = instance.to_owned();
                        bail!(IsRunning { instance, process });
                    }
                    thread::sleep(POLL_INTERVAL);
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("lock {}", path.display()));
                }
            }
        }
        let lock = Self { file };
        lock.close_to_others()
            .with_context(|| format!("take the lock {}", path.display()))?;
        lock.sign();
        Ok(lock)
    }

    /// An earlier version may have made the file with the rights that any file gets.
    fn close_to_others(&self) -> Result<()> {
        let mode = self.file.metadata()?.permissions().mode();
        if mode & 0o077 == 0 {
            return Ok(());
        }
        let closed = self.file.set_permissions(Permissions::from_mode(MODE));
        closed.context("take the rights of other users off the lock, who could hold it")
    }

    /// Writes which process has it. That is only for people and for processes that wait: a full disk is no reason not
    /// to run.
    pub fn sign(&self) {
        let sign = || {
            let mut file = &self.file;
            file.rewind()?;
            let pid = format!("{}\n", std::process::id());
            // What is there already needs no room.
            file.write_all(pid.as_bytes())?;
            file.set_len(u64::try_from(pid.len()).unwrap_or_default())
        };
        let signed: io::Result<()> = sign();
        if let Err(error) = signed {
            tracing::warn!(
                "write the process id into the lock of the instance: {error}; messages may name another process"
            );
        }
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
/// and its files are closed after that, which takes a while for programs and maps (proc(5)). Also true where
/// `pid` is no number, so that it cannot be looked up.
pub fn is_process(pid: &str) -> bool {
    if pid.parse::<u32>().is_err() {
        return true;
    }
    let words = fs::read(Path::new("/proc").join(pid).join("cmdline"));
    words.is_ok_and(|words| !words.is_empty())
}

impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        path::PathBuf,
        process::{Command, Stdio},
    };

    use super::*;

    /// A lock of its own that is held, and that this process has signed.
    fn signed(folder: &Path, pid: &str) -> (PathBuf, Lock) {
        let path = folder.join("lock");
        let held = Lock::at(&path, "a").unwrap();
        fs::write(&path, format!("{pid}\n")).unwrap();
        (path, held)
    }

    /// It is let go soon; and taken.
    fn is_waited_for(path: &Path, held: Lock) {
        let leaves = thread::spawn(move || {
            thread::sleep(2 * POLL_INTERVAL);
            drop(held);
        });
        Lock::at(path, "a").unwrap();
        leaves.join().unwrap();
    }

    #[test]
    fn nobody_else_may_open_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(Lock::at(&path, "a").unwrap());
        assert_eq!(mode(), 0o600);
        // As an earlier version may have made it.
        for (number, open) in [0o644, 0o660, 0o602].into_iter().enumerate() {
            fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
            let lock = Lock::at(&path, "a").unwrap();
            assert_eq!(mode(), 0o600, "{number}");
            fs::set_permissions(&path, Permissions::from_mode(open)).unwrap();
            let inherited = lock.as_fd().try_clone_to_owned().unwrap();
            Lock::inherit(inherited).unwrap();
            assert_eq!(mode(), 0o600, "{number}");
        }
    }

    /// No room is no reason not to run.
    #[test]
    fn a_lock_that_cannot_be_signed_is_one() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        Lock { file: full }.sign();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        for before in ["", "1\n", "4194305\n and more"] {
            fs::write(&path, before).unwrap();
            let lock = Lock::at(&path, "a").unwrap();
            let pid = format!("{}\n", std::process::id());
            assert_eq!(fs::read_to_string(&path).unwrap(), pid);
            drop(lock);
        }
    }

    #[test]
    fn who_lives_is_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pid = std::process::id().to_string();
        let (path, _held) = signed(folder.path(), &pid);
        let begun = Instant::now();
        let refused = Lock::at(&path, "a").unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "instance a is running already (process {pid}): `lb run --takeover` takes over from it, \
                 under systemd `systemctl reload lb`"
            )
        );
        let words = refused.downcast::<IsRunning>().unwrap().stop_first();
        for part in [format!("`kill {pid}`"), "stop it first".to_owned()] {
            assert!(words.contains(&part), "{words}");
        }
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
        // What it had open is closed. It stays as it is until its parent waits for it.
        io::read_to_string(ended.stdout.take().unwrap()).unwrap();
        assert!(!is_process(&pid));
        let (path, held) = signed(folder.path(), &pid);
        is_waited_for(&path, held);
        ended.wait().unwrap();
    }
}
