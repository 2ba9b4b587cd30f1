//! Names of runs, and removing what dead runs left.
//!
//! A run is called `lbt<pid>-<letter>`: the instance name of its `lb`, and the first part of the
//! name of each of its namespaces and folders. So what belongs to a process that is gone can be
//! distinguished from what a parallel run uses, and nothing else is ever touched.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, Once, PoisonError},
};

use anyhow::{Context as _, Result};

use crate::{netns, process};

/// First letters of every name.
const PREFIX: &str = "lbt";
/// First letters of the namespaces that `lb` makes: `lb.<instance>.<network>`.
const CELL_PREFIX: &str = "lb.";
/// Where `lb` keeps its pins, one folder per instance.
const PINS: &str = "/sys/fs/bpf/lb";
/// Where `lb` keeps its state, one folder per instance: until a reboot, and over it.
const STATES: [&str; 2] = ["/run/lb", "/var/lib/lb"];
/// One letter per run that lives at the same time keeps an instance name within 12 characters.
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Which letters are taken.
static TAKEN: Mutex<[bool; LETTERS.len()]> = Mutex::new([false; LETTERS.len()]);

/// The name of a run; free again on drop.
#[derive(Debug)]
pub struct Run {
    name: String,
    slot: usize,
}

impl Run {
    /// Names a new run of this process; the first one removes what dead runs left.
    ///
    /// # Errors
    ///
    /// When 36 runs of this process live already.
    pub fn new() -> Result<Self> {
        static CLEANED: Once = Once::new();
        CLEANED.call_once(remove_dead);
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken
            .iter_mut()
            .zip(LETTERS)
            .enumerate()
            .find(|(_, (taken, _))| !**taken);
        let (slot, (taken, letter)) = free.context("36 runs of one process at the same time")?;
        *taken = true;
        let name = format!("{PREFIX}{}-{}", std::process::id(), char::from(*letter));
        Ok(Self { name, slot })
    }

    /// `lbt<pid>-<letter>`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A lock file may outlive its process; the next run of this name starts without it.
        for state in STATES.map(|folder| Path::new(folder).join(&self.name)) {
            if state.exists()
                && let Err(error) = fs::remove_dir_all(&state)
            {
                process::complain(format_args!("remove {}: {error}", state.display()));
            }
        }
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = taken.get_mut(self.slot) {
            *taken = false;
        }
    }
}

/// What `instance` left in the kernel: the folder of its pins and its cells, as paths.
pub fn traces_of(instance: &str) -> Vec<PathBuf> {
    let cells = format!("{CELL_PREFIX}{instance}.");
    let pins = Path::new(PINS).join(instance);
    let mut found: Vec<PathBuf> = pins.exists().then_some(pins).into_iter().collect();
    found.extend(
        entries(Path::new(netns::FOLDER))
            .into_iter()
            .filter(|name| name.starts_with(&cells))
            .map(|name| Path::new(netns::FOLDER).join(name)),
    );
    found
}

/// Removes pins, state, namespaces and temporary folders of runs whose process is gone.
///
/// Called before this process has made anything, so its own pid counts as gone: it is then a
/// re-used one. Failures are printed and do not end the run, whose own names are new.
fn remove_dead() {
    for folder in [PINS, STATES[0], STATES[1]]
        .map(PathBuf::from)
        .into_iter()
        .chain([std::env::temp_dir()])
    {
        for name in entries(&folder).into_iter().filter(|name| is_dead(name)) {
            let path = folder.join(name);
            // Unlinking a pinned link detaches its program.
            if let Err(error) = fs::remove_dir_all(&path) {
                process::complain(format_args!("remove {}: {error}", path.display()));
            }
        }
    }
    for name in entries(Path::new(netns::FOLDER)) {
        if is_dead(name.strip_prefix(CELL_PREFIX).unwrap_or(&name)) {
            remove_namespace(&name);
        }
    }
}

fn remove_namespace(name: &str) {
    if let Err(error) = netns::remove(name) {
        // A cell that was bind-mounted by hand may carry several mounts: unmount what is there.
        let path = Path::new(netns::FOLDER).join(name);
        let unmounted = process::succeed(Command::new("umount").arg(&path));
        if unmounted.is_err() || fs::remove_file(&path).is_err() {
            process::complain(format_args!("{error:#}"));
        }
    }
}

/// Whether `name` is `lbt<pid>-...` of a process that is gone.
fn is_dead(name: &str) -> bool {
    let Some(pid) = pid_of(name) else {
        return false;
    };
    pid == std::process::id() || !Path::new("/proc").join(pid.to_string()).exists()
}

fn pid_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(read) = fs::read_dir(folder) else {
        return Vec::new();
    };
    read.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_a_run_carry_a_pid() {
        assert_eq!(pid_of("lbt123-0-c1"), Some(123));
        assert_eq!(pid_of("lbt4194304-z"), Some(4_194_304));
        assert_eq!(pid_of("lbt-0"), None);
        assert_eq!(pid_of("lbtower-1"), None);
        assert_eq!(pid_of("lb.appliance.mgmt"), None);
    }

    #[test]
    fn a_living_process_is_not_dead() {
        assert!(!is_dead("lbt1-0-lb"), "pid 1 always lives");
        assert!(!is_dead("default"));
    }

    #[test]
    fn an_instance_name_has_at_most_twelve_characters() {
        let longest = format!("{PREFIX}{}-z", 4_194_304);
        assert!(longest.len() <= 12, "{longest}");
    }
}
