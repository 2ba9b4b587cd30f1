//! A queue of every NIC for each CPU. Of one queue for all, the frame that another CPU sends meanwhile, a probe of a next
//! hop, takes the whole queue to that CPU, and its ring is full before that has time for it.

use anyhow::Result;
use lb_tests::{
    product::cpu,
    topology::path::{NICS, Path},
};

/// CPUs that can be steered.
const MAX_CPUS: usize = 32;

/// The CPUs that may send.
///
/// # Errors
///
/// When the kernel does not say which there are.
pub(crate) fn cpus() -> Result<Vec<usize>> {
    let mut cpus = cpu::all()?;
    cpus.retain(|cpu| *cpu < MAX_CPUS);
    Ok(cpus)
}

/// So many paths with such queues.
///
/// # Errors
///
/// When one cannot be made.
pub(crate) fn paths(count: usize) -> Result<Vec<Path>> {
    let queues = 1 + cpus()?.into_iter().max().unwrap_or(0);
    (0..count).map(|_| Path::with_queues(queues)).collect()
}

/// Has the kernel send what a CPU forwards out of the queue of that CPU, as XDP does by itself; a kernel that cannot
/// (`CONFIG_XPS`) chooses by flow.
///
/// # Errors
///
/// When the kernel does not say which CPUs there are.
pub(super) fn steer(path: &Path) -> Result<()> {
    for (nic, _) in NICS {
        for cpu in cpus()? {
            path.lb.steer(nic, cpu, cpu).or_else(|_| anyhow::Ok(()))?;
        }
    }
    Ok(())
}
