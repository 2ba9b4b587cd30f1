//! Waiting until every packet that the data plane was handling has been dealt with.
//!
//! XDP runs with bottom halves disabled, which is an RCU read-side critical section. So after a
//! grace period every run of a program that could have read something older has ended, and its
//! stores are visible here.
#![expect(
    unsafe_code,
    reason = "neither the standard library nor nix has membarrier"
)]

use std::{thread, time::Duration};

use aya::util::online_cpus;
use nix::{
    errno::Errno,
    libc::{self, c_int, c_long},
};

/// How long to sleep where the kernel has no membarrier. A program sees one packet, which takes
/// microseconds; a CPU that handles packets goes on for at most two ticks at a time
/// (`net.core.netdev_budget_usecs`), and this is several of those.
const SLEEP: Duration = Duration::from_millis(50);

/// Waits for one grace period: milliseconds, without using CPU.
///
/// `MEMBARRIER_CMD_GLOBAL` is `synchronize_rcu` on a host with several CPUs. It does nothing on one
/// with a single CPU, where a packet may be waiting half handled if its thread can be interrupted
/// (PREEMPT_RT); and it is missing where CPUs run without a tick (`nohz_full`), or where a filter
/// forbids it. The sleep is for all of these.
pub fn wait() {
    let several = online_cpus().is_ok_and(|cpus| cpus.len() > 1);
    if !several || barrier().is_err() {
        thread::sleep(SLEEP);
    }
}

fn barrier() -> nix::Result<()> {
    let (flags, cpu): (c_int, c_int) = (0, 0);
    // SAFETY: the call takes three integers by value and touches no memory of this process.
    let result: c_long = unsafe {
        libc::syscall(
            libc::SYS_membarrier,
            libc::MEMBARRIER_CMD_GLOBAL,
            flags,
            cpu,
        )
    };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_grace_period_ends() {
        let before = Instant::now();
        wait();
        assert!(before.elapsed() < Duration::from_secs(10));
    }
}
