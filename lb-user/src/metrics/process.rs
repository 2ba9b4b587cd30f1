//! What the kernel knows of this process: its threads, memory and descriptors, and of interfaces. Read from `/proc`.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
};

use nix::sys::resource::{Resource, getrlimit};

use super::rows::{InterfaceRow, ThreadRow};

/// Ticks of a second in `/proc`: USER_HZ, which is 100 on x86_64 (proc_pid_stat(5)).
const TICKS_PER_SECOND: f64 = 100.0;
/// Bytes of the unit of memory in `/proc/PID/status`.
const KIB: u64 = 1024;

/// A look at the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProcessReading {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    pub(super) open_fds: u64,
    pub(super) max_fds: u64,
    /// Since 1970.
    pub(super) start_seconds: f64,
    pub(super) threads: u64,
}

/// The CPU time of threads by their names, those that have ended included.
#[derive(Debug, Default)]
pub(super) struct ThreadTimes {
    /// By thread id: when it began, and what it had.
    last: HashMap<u32, Ticks>,
    totals: BTreeMap<String, u64>,
}

/// Of a process or thread, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    /// When it began, since the machine did.
    began: u64,
    /// CPU time.
    used: u64,
}

impl ProcessReading {
    /// As it is now; 0 of what cannot be read.
    pub(super) fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let ticks = stat_of(&stat).map(|(_, ticks)| ticks).unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let fds = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self {
            cpu_seconds: seconds(ticks.used),
            resident_bytes: field(&status, "VmRSS:") * KIB,
            virtual_bytes: field(&status, "VmSize:") * KIB,
            // One of them is that of the folder itself.
            open_fds: u64::try_from(fds.saturating_sub(1)).unwrap_or_default(),
            max_fds: getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft),
            start_seconds: boot_seconds() + seconds(ticks.began),
            threads: field(&status, "Threads:"),
        }
    }
}

impl ThreadTimes {
    /// What they have come to.
    pub(super) fn read(&mut self) -> Vec<ThreadRow> {
        let mut now = HashMap::new();
        for task in fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten()
        {
            let id = task.file_name().to_str().and_then(|id| id.parse().ok());
            let stat = fs::read_to_string(task.path().join("stat"));
            if let (Some(id), Ok(stat)) = (id, stat)
                && let Some((name, ticks)) = stat_of(&stat)
            {
                self.add(id, name, ticks);
                now.insert(id, ticks);
            }
        }
        self.last = now;
        let totals = self.totals.iter();
        let rows = totals.map(|(name, ticks)| ThreadRow {
            thread: name.clone(),
            cpu_seconds: seconds(*ticks),
        });
        rows.collect()
    }

    fn add(&mut self, id: u32, name: &str, now: Ticks) {
        let before = self.last.get(&id).filter(|known| known.began == now.began);
        let before = before.map_or(0, |known| known.used);
        let total = self.totals.entry(name.to_owned()).or_default();
        *total += now.used.saturating_sub(before);
    }
}

/// Errors and drops of these interfaces, as drivers count them, in the namespace of this thread.
pub(super) fn interfaces(names: &[&str]) -> Vec<InterfaceRow> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    interface_rows(&table, names)
}

fn interface_rows(table: &str, names: &[&str]) -> Vec<InterfaceRow> {
    let rows = table.lines().filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        let name = name.trim();
        let numbers: Vec<u64> = numbers
            .split_ascii_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        let at = |index: usize| numbers.get(index).copied();
        names.contains(&name).then_some(InterfaceRow {
            interface: name.to_owned(),
            receive_errors: at(2)?,
            receive_drops: at(3)?,
            transmit_errors: at(10)?,
            transmit_drops: at(11)?,
        })
    });
    rows.collect()
}

/// The name and the ticks of a line of `stat`. A name may have spaces and parentheses.
fn stat_of(stat: &str) -> Option<(&str, Ticks)> {
    let (begin, rest) = stat.rsplit_once(')')?;
    let (_, name) = begin.split_once('(')?;
    // The first one is the third of the line.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let at = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = Ticks {
        began: at(22)?,
        used: at(14)?.checked_add(at(15)?)?,
    };
    Some((name, ticks))
}

/// The number behind a word of `status`.
fn field(status: &str, word: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(word));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// When the machine began, since 1970.
fn boot_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|line| line.trim().parse().ok())
        .unwrap_or_default()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "ticks of three million years are exact"
)]
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "7 (a (b) c) S 1 2 3 0 -1 4194304 9 0 0 0 150 25 0 0 20 0 5 0 4242 1 2 3";

    #[test]
    fn a_line_of_stat_has_a_name_and_times() {
        let ticks = Ticks {
            began: 4242,
            used: 175,
        };
        assert_eq!(stat_of(STAT), Some(("a (b) c", ticks)));
        for broken in [
            "",
            "7 (a",
            "7 (a) S 1",
            "7 (a) S 1 2 3 0 -1 4 9 0 0 0 x 25 0 0 20 0 5 0 4",
        ] {
            assert_eq!(stat_of(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_time_of_a_name_never_falls() {
        let mut times = ThreadTimes::default();
        let ticks = |began, used| Ticks { began, used };
        times.add(1, "x", ticks(5, 100));
        times.add(2, "x", ticks(5, 50));
        times.last = HashMap::from([(1, ticks(5, 100)), (2, ticks(5, 50))]);
        // The first one has ended, and another thread has its number.
        times.add(1, "x", ticks(9, 3));
        times.add(2, "x", ticks(5, 60));
        assert_eq!(times.totals["x"], 163);
    }

    #[test]
    fn this_process_is_found() {
        let reading = ProcessReading::now();
        assert!(reading.resident_bytes > 100_000 && reading.virtual_bytes > reading.resident_bytes);
        assert!(
            reading.open_fds >= 3 && reading.max_fds >= reading.open_fds,
            "{reading:?}"
        );
        assert!(reading.threads >= 1 && reading.start_seconds > 1e9);
        assert!(!ThreadTimes::default().read().is_empty());
    }

    #[test]
    fn the_interfaces_that_are_named_are_read() {
        let table = "Inter-| Receive\n face |bytes\n    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
                     eth1:11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26\n";
        let rows = interface_rows(table, &["eth1", "eth2"]);
        let wanted = InterfaceRow {
            interface: "eth1".to_owned(),
            receive_errors: 13,
            receive_drops: 14,
            transmit_errors: 21,
            transmit_drops: 22,
        };
        assert_eq!(rows, [wanted]);
    }
}
