//! Resident memory of a process, in KiB: proc(5).

use std::fs;

use anyhow::{Context as _, Result};

/// What it has now.
///
/// # Errors
///
/// When there is no such process.
pub fn now(pid: u32) -> Result<u64> {
    read(pid, "VmRSS:")
}

/// The most that it has had, since its beginning or since [`forget_peak`].
///
/// # Errors
///
/// As for [`now`].
pub fn peak(pid: u32) -> Result<u64> {
    read(pid, "VmHWM:")
}

/// What it has now of files and of the maps of the data plane: those are the kernel's, which has them without the process,
/// too.
///
/// # Errors
///
/// As for [`now`].
pub fn mapped(pid: u32) -> Result<u64> {
    Ok(read(pid, "RssFile:")? + read(pid, "RssShmem:")?)
}

/// Makes what it has now the most that it has had.
///
/// # Errors
///
/// As for [`now`].
pub fn forget_peak(pid: u32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("write {path}"))
}

fn read(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let words = line.and_then(|line| line.split_whitespace().next());
    let words = words.with_context(|| format!("no {field} in {path}"))?;
    words.parse().with_context(|| format!("{field} {words}"))
}
