//! The CPU time of processes and of the kernel's threads.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use lb_tests::netns::Netns;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    time::clock_getcpuclockid,
    unistd::Pid,
};

/// Processes whose CPU time is one sum, all threads of each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spenders(Vec<u32>);

impl Spenders {
    pub(crate) fn of(ids: impl IntoIterator<Item = u32>) -> Self {
        Self(ids.into_iter().collect())
    }

    /// The kernel's thread for soft interrupts of a CPU.
    ///
    /// # Errors
    ///
    /// When the processes cannot be read.
    pub(crate) fn softirq(cpu: usize) -> Result<Self> {
        let name = format!("ksoftirqd/{cpu}");
        kernel_threads(|thread| thread == name).map(Self)
    }

    /// Both together.
    pub(crate) fn and(&self, other: &Self) -> Self {
        Self([&self.0[..], &other.0[..]].concat())
    }

    /// What they have spent so far, in seconds, threads that have ended meanwhile too.
    ///
    /// # Errors
    ///
    /// When one of them is gone.
    pub(crate) fn spent(&self) -> Result<f64> {
        let mut sum = Duration::ZERO;
        for id in &self.0 {
            let id = Pid::from_raw(i32::try_from(*id)?);
            let clock =
                clock_getcpuclockid(id).with_context(|| format!("find the clock of {id}"))?;
            sum += Duration::from(
                clock
                    .now()
                    .with_context(|| format!("read the clock of {id}"))?,
            );
        }
        Ok(sum.as_secs_f64())
    }

    /// Lets them run on this CPU only.
    ///
    /// # Errors
    ///
    /// When one of them is gone, or there is no such CPU.
    pub(crate) fn bind(&self, cpu: usize) -> Result<()> {
        let mut only = CpuSet::new();
        only.set(cpu).with_context(|| format!("name CPU {cpu}"))?;
        for id in &self.0 {
            let id = Pid::from_raw(i32::try_from(*id)?);
            sched_setaffinity(id, &only).with_context(|| format!("bind {id} to CPU {cpu}"))?;
        }
        Ok(())
    }
}

/// Gives the NAPIs of an interface threads of their own, on this CPU: otherwise frames are received by whatever thread
/// sends them.
///
/// # Errors
///
/// When the kernel cannot do that, or the interface has no NAPI.
pub(crate) fn threads_of(netns: &Netns, interface: &str, cpu: usize) -> Result<Spenders> {
    let start = format!("napi/{interface}-");
    let ours = || kernel_threads(|thread| thread.starts_with(&start));
    // Those of other namespaces have the same names.
    let before = ours()?;
    netns.thread_napi(interface)?;
    let new = ours()?.into_iter().filter(|id| !before.contains(id));
    let threads = Spenders(new.collect());
    anyhow::ensure!(
        !threads.0.is_empty(),
        "no NAPI of {interface} in {} has got a thread",
        netns.name()
    );
    threads.bind(cpu)?;
    Ok(threads)
}

fn kernel_threads(wanted: impl Fn(&str) -> bool) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc").context("read the processes")? {
        let folder = task.context("read a process")?.path();
        let Some(id) = folder
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok())
        else {
            continue;
        };
        // It may have ended by now.
        let comm = fs::read_to_string(folder.join("comm")).unwrap_or_default();
        if wanted(comm.trim()) {
            found.push(id);
        }
    }
    Ok(found)
}
