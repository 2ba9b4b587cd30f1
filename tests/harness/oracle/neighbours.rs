//! The limits of the kernel's table of neighbours, which is one of each family for all namespaces of a machine.

use std::fs;

use anyhow::{Context as _, Result};

use crate::process;

const SYSCTLS: &str = "/proc/sys/net";
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// `gc_thresh1` to 3.
pub type Limits = [u32; 3];

/// What Linux has by default.
pub const DEFAULTS: Limits = [128, 512, 1024];

/// Limits of both families that were changed, and are put back on drop.
pub struct Changed {
    before: [Limits; 2],
}

impl Changed {
    /// Sets those of both families.
    pub fn to(limits: Limits) -> Result<Self> {
        let before = now()?;
        let changed = Self { before };
        set([limits; 2])?;
        Ok(changed)
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if let Err(error) = set(self.before) {
            process::complain(format_args!("put back the limits of neighbours: {error:#}"));
        }
    }
}

/// What they are, of IPv4 and of IPv6.
pub fn now() -> Result<[Limits; 2]> {
    let mut found = [[0; 3]; 2];
    for (family, limits) in FAMILIES.iter().zip(&mut found) {
        for (number, limit) in limits.iter_mut().enumerate() {
            let text = fs::read_to_string(path(family, number));
            *limit = text.context("the host's own namespace")?.trim().parse()?;
        }
    }
    Ok(found)
}

fn set(limits: [Limits; 2]) -> Result<()> {
    for (family, limits) in FAMILIES.iter().zip(limits) {
        for (number, limit) in limits.iter().enumerate() {
            fs::write(path(family, number), limit.to_string())?;
        }
    }
    Ok(())
}

fn path(family: &str, number: usize) -> String {
    format!("{SYSCTLS}/{family}/neigh/default/gc_thresh{}", number + 1)
}
