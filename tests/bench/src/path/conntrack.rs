//! Room for a million connections in the kernel's connection tracking: a setting of the whole machine, which goes back.

use std::fs;

use anyhow::{Context as _, Result};

/// The most connections, and the chains of the table that has them.
const SETTINGS: [(&str, u32); 2] = [
    ("/proc/sys/net/netfilter/nf_conntrack_max", 4_000_000),
    ("/sys/module/nf_conntrack/parameters/hashsize", 1 << 20),
];

/// What the settings were; they are that again when this is dropped.
#[derive(Debug)]
pub(crate) struct Room(Vec<(&'static str, String)>);

impl Room {
    /// Makes room, if there is less.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn make() -> Result<Self> {
        let mut room = Self(Vec::new());
        for (file, wanted) in SETTINGS {
            // Without connection tracking there is nobody who needs room.
            let Ok(before) = fs::read_to_string(file) else {
                continue;
            };
            if before.trim().parse::<u32>().is_ok_and(|now| now < wanted) {
                fs::write(file, wanted.to_string()).with_context(|| format!("write {file}"))?;
                room.0.push((file, before));
            }
        }
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for (file, before) in &self.0 {
            if let Err(error) = fs::write(file, before.trim()) {
                eprintln!("{file} was {}, and stays as it is: {error}", before.trim());
            }
        }
    }
}
