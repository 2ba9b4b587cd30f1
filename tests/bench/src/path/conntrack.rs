//! Room for a million connections in the kernel's connection tracking: a setting of the whole machine, which goes back.

use std::{fs, process::Command};

use lb_tests::process;

/// The most connections, and the chains of the table that has them.
const SETTINGS: [(&str, u32); 2] = [
    ("/proc/sys/net/netfilter/nf_conntrack_max", 4_000_000),
    ("/sys/module/nf_conntrack/parameters/hashsize", 1 << 20),
];

/// What the settings were; they are that again when this is dropped.
#[derive(Debug)]
pub(crate) struct Room(Vec<(&'static str, String)>);

impl Room {
    /// Makes room, if there is less; in a container that may be refused.
    pub(crate) fn make() -> Self {
        // Where it is a module that has not been needed so far.
        let _built_in = process::finish(Command::new("modprobe").args(["-q", "nf_conntrack"]));
        let mut room = Self(Vec::new());
        for (file, wanted) in SETTINGS {
            // Without connection tracking no table needs room.
            let Ok(before) = fs::read_to_string(file) else {
                continue;
            };
            if before.trim().parse::<u32>().is_ok_and(|now| now < wanted) {
                match fs::write(file, wanted.to_string()) {
                    Ok(()) => room.0.push((file, before)),
                    // Few connections have room all the same.
                    Err(error) => process::complain(format_args!(
                        "{file} is {}, and not {wanted}: {error}",
                        before.trim()
                    )),
                }
            }
        }
        room
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        for (file, before) in &self.0 {
            if let Err(error) = fs::write(file, before.trim()) {
                let before = before.trim();
                process::complain(format_args!(
                    "{file} was {before}, and stays as it is: {error}"
                ));
            }
        }
    }
}
