//! The process that a reload is carried out by where the running one cannot: it takes over with the file.

use std::{
    env, fs,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use super::detach::{LOST, wait_until_ready};
use crate::system::{output, privileges};

/// Bytes of the new process's log that are shown if it does not get ready.
const MAX_SHOWN: u64 = 16 * 1024;

/// Has the supervisor start it, or starts it, and waits until it has taken over from this process.
///
/// # Errors
///
/// If it does not; then the process before goes on with what it has.
pub(super) fn start(instance: &str, file: &Path, process: u32, unit: Option<&str>) -> Result<()> {
    match unit {
        Some(unit) => reload_unit(unit),
        None => take_over(instance, file, process),
    }
}

fn reload_unit(unit: &str) -> Result<()> {
    let done = Command::new("systemctl").args(["reload", unit]).status();
    let done = done.with_context(|| format!("run `systemctl reload {unit}`"))?;
    ensure!(
        done.success(),
        "`systemctl reload {unit}` failed ({done}), and what ran goes on: `journalctl -u {unit}` has the reason"
    );
    Ok(())
}

fn take_over(instance: &str, file: &Path, process: u32) -> Result<()> {
    check_user(process)?;
    let mut log = Log::of(process)?;
    let program = env::current_exe().context("find this program")?;
    let mut next = Command::new(program);
    next.args([
        "run",
        "--takeover",
        "--no-careful",
        "--instance",
        instance,
        "--config",
    ]);
    next.arg(file);
    next.stderr(log.file.try_clone().context("share the log")?);
    match wait_until_ready(next, |_| {}, |_| {})? {
        None => Ok(()),
        Some(ended) => {
            log.show();
            bail!("the new process has not taken over ({ended}), and what ran goes on")
        }
    }
}

/// The new process is of the user that the one before is of, and needs privileges that this one has given up.
fn check_user(process: u32) -> Result<()> {
    let of = fs::metadata(format!("/proc/{process}")).context("look at the process that runs")?;
    let own = nix::unistd::geteuid().as_raw();
    ensure!(
        of.uid() == own,
        "the process that runs is of user {}, and this one of user {own}: reload as that user",
        of.uid()
    );
    let missing = privileges::missing()?;
    ensure!(
        missing.is_empty(),
        "networks come, go or move: that needs a new process with {}: reload as root",
        missing.join(", ")
    );
    Ok(())
}

/// Where the process before logs to: there the new one goes on.
struct Log {
    file: File,
    /// Where the log ends now, if it is a file that can be read.
    end: Option<u64>,
}

impl Log {
    fn of(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/fd/2");
        let kind = fs::metadata(&path).map(|found| found.file_type());
        let kind =
            kind.with_context(|| format!("look at {path}, the log of the process that runs"))?;
        let (is_file, is_device) = (kind.is_file(), kind.is_char_device());
        let path = match is_file || is_device {
            true => path.as_str(),
            false => {
                output::print_error(LOST);
                "/dev/null"
            }
        };
        let file = File::options().append(true).read(is_file).open(path);
        let file =
            file.with_context(|| format!("open {path}, the log of the process that runs"))?;
        let end = is_file.then(|| file.metadata().map(|found| found.len()));
        Ok(Self {
            end: end.transpose()?,
            file,
        })
    }

    /// Shows what was logged since.
    fn show(&mut self) {
        let mut since = String::new();
        if let Some(end) = self.end
            && self.file.seek(SeekFrom::Start(end)).is_ok()
            && (&self.file)
                .take(MAX_SHOWN)
                .read_to_string(&mut since)
                .is_ok()
        {
            output::print_error(since.trim_end());
        }
    }
}
