//! A control group with little memory, of either version: cgroups(7).

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use crate::process;

/// A group, until it is dropped; its processes have ended by then.
#[derive(Debug)]
pub struct Memory {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
    kills: &'static str,
}

impl Memory {
    /// A group with this name whose processes have so many bytes.
    ///
    /// # Errors
    ///
    /// When there is no controller for memory, or no group may be made here.
    pub fn new(name: &str, bytes: u64) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let group = if controllers.split_whitespace().any(|one| one == "memory") {
            fs::write(root.join("cgroup.subtree_control"), "+memory").context("share memory")?;
            Self {
                folder: root.join(name),
                limit: "memory.max",
                usage: "memory.current",
                kills: "memory.events",
            }
        } else {
            ensure!(root.join("memory").is_dir(), "no controller for memory");
            Self {
                folder: root.join("memory").join(name),
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                kills: "memory.oom_control",
            }
        };
        fs::create_dir(&group.folder).with_context(|| format!("make the group {name}"))?;
        group.set(bytes)?;
        Ok(group)
    }

    /// From now on its processes have so many bytes.
    ///
    /// # Errors
    ///
    /// When they have more already.
    pub fn set(&self, bytes: u64) -> Result<()> {
        let path = self.folder.join(self.limit);
        fs::write(&path, bytes.to_string()).with_context(|| format!("set {}", path.display()))
    }

    /// The bytes that its processes have.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell.
    pub fn usage(&self) -> Result<u64> {
        let text = fs::read_to_string(self.folder.join(self.usage)).context("read the usage")?;
        Ok(text.trim().parse()?)
    }

    /// How many of its processes the kernel has killed for their memory.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell: before Linux 4.13.
    pub fn kills(&self) -> Result<u64> {
        let path = self.folder.join(self.kills);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "))
            .with_context(|| format!("no count of kills in {}: {text}", path.display()))?;
        Ok(count.trim().parse()?)
    }

    /// A script for `sh -c` that enters the group and then executes its arguments.
    pub fn enter(&self) -> String {
        let processes = self.folder.join("cgroup.procs");
        format!("echo $$ >{} && exec \"$@\"", processes.display())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.folder) {
            process::complain(format_args!("{}: {error}", self.folder.display()));
        }
    }
}
