//! What a process that runs needs, and how a thread gives up what only a start needs.

use anyhow::{Context as _, Result};
use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
        clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
        set_no_new_privs,
    },
};

/// What is kept: maps and links, interfaces, raw sockets.
pub const KEPT: CapabilitySet = KEPT_BY_LISTENERS.union(CapabilitySet::NET_RAW);

/// What threads keep that read from clients and backends: no raw sockets.
pub const KEPT_BY_LISTENERS: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN);

/// What a start needs: also to enter the cells, to open maps by their ids, and for what the verifier lets pass in
/// the programs that it loads.
pub const OF_START: CapabilitySet = KEPT
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::PERFMON);

/// Names of the capabilities of a start that the calling thread lacks.
///
/// # Errors
///
/// If the kernel does not give the capabilities.
pub fn missing() -> Result<Vec<String>> {
    let has = capabilities(None).context("read the capabilities")?;
    let missing = OF_START.difference(has.effective);
    let names = missing.iter_names();
    Ok(names.map(|(name, _)| format!("CAP_{name}")).collect())
}

/// Gives up everything but `kept`, for the calling thread and those that it will start: it never gets more
/// again, whatever it executes. The bounding set shrinks only for a thread that may change it
/// (`CAP_SETPCAP`); nothing can be gained by it any more.
///
/// # Errors
///
/// If the kernel refuses.
pub fn give_up(kept: CapabilitySet) -> Result<()> {
    set_no_new_privs(true).context("give up new privileges")?;
    let has = capabilities(None).context("read the capabilities")?;
    if has.effective.contains(CapabilitySet::SETPCAP) {
        bound(kept).context("shrink the bounding set")?;
    }
    clear_ambient_capability_set().context("clear the ambient set")?;
    let kept = has.permitted.intersection(kept);
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).context("give up capabilities")
}

/// Takes everything but `kept` out of the bounding set.
fn bound(kept: CapabilitySet) -> Result<(), Errno> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match capability_is_in_bounding_set(capability) {
            Ok(true) if !kept.contains(capability) => {
                remove_capability_from_bounding_set(capability)?;
            }
            Ok(_) => {}
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;

    fn status() -> String {
        fs::read_to_string("/proc/thread-self/status").unwrap()
    }

    fn bits(status: &str, set: &str) -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(set));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }

    #[test]
    fn what_is_kept_is_documented() {
        assert_eq!(KEPT.bits(), 0x80_0000_3000);
        assert_eq!(KEPT_BY_LISTENERS.bits(), 0x80_0000_1000);
        assert_eq!(OF_START.bits(), 0xc0_0020_3000);
    }

    /// Of the calling thread alone, and of those that it starts.
    #[test]
    fn a_thread_gives_up_and_so_do_its_children() {
        let before = status();
        for kept in [KEPT, KEPT_BY_LISTENERS] {
            let children = thread::spawn(move || {
                give_up(kept).unwrap();
                [status(), thread::spawn(status).join().unwrap()]
            });
            for status in children.join().unwrap() {
                let kept = bits(&before, "CapPrm:") & kept.bits();
                assert_eq!(bits(&status, "CapEff:"), kept);
                assert_eq!(bits(&status, "CapPrm:"), kept);
                assert_eq!(bits(&status, "CapInh:"), 0);
                assert_eq!(bits(&status, "CapAmb:"), 0);
                assert_eq!(bits(&status, "NoNewPrivs:"), 1);
            }
        }
        assert_eq!(
            bits(&status(), "CapEff:"),
            bits(&before, "CapEff:"),
            "of others nothing is given up"
        );
    }
}
