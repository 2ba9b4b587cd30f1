//! The room for neighbours: the kernel has one table of each family for all namespaces, and by default it
//! holds 1024. It is made larger as long as there is an instance, and then as large as it was.
//!
//! The limits are those of the whole host, and in its first network namespace only. What they were is noted
//! beside the runtime folders of the instances, with the names of those that need it: the first one raises
//! them, the last one puts them back. A reboot forgets both.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::dataplane::pins::Pins;

/// The least that is raised to: entries up to which nothing is collected, above which entries live for 5 s
/// when others come, and that there are at most. An entry takes about 400 bytes.
const LEAST: [(&str, u32); 3] = [
    ("gc_thresh1", 1024),
    ("gc_thresh2", 8192),
    ("gc_thresh3", 65_536),
];
const FAMILIES: [&str; 2] = ["ipv4", "ipv6"];

/// The instances that need the room, and what there was before. No instance is called so: their names have no dot.
const RECORD: &str = "neighbours.json";
const LOCK: &str = "locks/neighbours.lock";

/// Makes room for neighbours for an instance, as root; any other user only warns if there is little. What
/// cannot be done is logged: without it `lb` works as well, until a tenant fills the tables. Returns what was
/// done.
pub fn provide(pins: &Pins) -> Option<String> {
    let tables = NeighbourLimits::of_host();
    if !geteuid().is_root() {
        if tables.are_small() {
            tracing::warn!(
                "the kernel's tables of neighbours are small: a tenant may fill them for all; `lb prepare \
                 --instance {}`, as root, raises net.ipv4.neigh.default.gc_thresh1 to 3 and those of IPv6",
                pins.instance()
            );
        }
        return None;
    }
    match tables.raise(pins.instance()) {
        Ok(raised) if raised.is_empty() => None,
        Ok(raised) => Some(format!("raised {}", raised.join(", "))),
        Err(error) => {
            tracing::warn!(
                "raise the limits of the kernel's tables of neighbours (net.ipv4.neigh.default.gc_thresh*): \
                 {error:#}; a tenant may fill them for all"
            );
            None
        }
    }
}

/// Notes that an instance needs no room any more. If none does, the limits are again what they were, but for
/// those that were changed by hand since. What cannot be done is logged.
pub fn release(pins: &Pins) {
    // Another user than root cannot write the record, and has prepared nothing.
    if !geteuid().is_root() {
        return;
    }
    match NeighbourLimits::of_host().release(pins.instance()) {
        Ok(restored) if restored.is_empty() => {}
        Ok(restored) => tracing::info!("put back {}", restored.join(", ")),
        Err(error) => {
            tracing::warn!(
                "put back the limits of the kernel's tables of neighbours: {error:#}; they stay raised"
            );
        }
    }
}

/// The instances that need room, and what there was before.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct LimitsRecord {
    instances: BTreeSet<String>,
    /// By path under `/proc/sys/net`.
    raised: BTreeMap<String, Raised>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Raised {
    from: u32,
    to: u32,
}

/// Where the limits are, and the record of them.
#[derive(Debug)]
struct NeighbourLimits {
    sysctls: PathBuf,
    runtime: PathBuf,
}

impl NeighbourLimits {
    fn of_host() -> Self {
        Self {
            sysctls: "/proc/sys/net".into(),
            runtime: Pins::all_runtimes().to_owned(),
        }
    }

    /// Whether there is less room than [`LEAST`].
    fn are_small(&self) -> bool {
        let mut found = keys().filter_map(|(key, least)| Some((self.get(&key).ok()??, least)));
        found.any(|(found, least)| found < least)
    }

    /// Raises what is too low; what was raised.
    fn raise(&self, instance: &str) -> Result<Vec<String>> {
        if !keys().any(|(key, _)| self.sysctls.join(key).exists()) {
            tracing::debug!(
                "the limits of the kernel's tables of neighbours are in the host's first network \
                 namespace only, and this is another one: they are left as they are"
            );
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        let mut low = Vec::new();
        for (key, to) in keys() {
            let from = self.get(&key)?.filter(|from| *from < to);
            low.extend(from.map(|from| (key, Raised { from, to })));
        }
        let mut record = self.record()?.unwrap_or_default();
        let is_new = record.instances.insert(instance.to_owned());
        record.raised.extend(low.iter().cloned());
        // First: a crash in between restores what was not changed.
        if is_new || !low.is_empty() {
            self.save(&record)?;
        }
        for (key, Raised { to, .. }) in &low {
            self.set(key, *to)?;
        }
        Ok(low
            .iter()
            .map(|(key, raised)| words(key, raised.from, raised.to))
            .collect())
    }

    /// Takes an instance out, and with it those that are gone otherwise; what was put back.
    fn release(&self, instance: &str) -> Result<Vec<String>> {
        let path = self.runtime.join(RECORD);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let _lock = self.lock()?;
        let Some(mut record) = self.record()? else {
            return Ok(Vec::new());
        };
        let is_there = |other: &String| other != instance && self.runtime.join(other).exists();
        record.instances.retain(is_there);
        if !record.instances.is_empty() {
            self.save(&record)?;
            return Ok(Vec::new());
        }
        let mut restored = Vec::new();
        for (key, Raised { from, to }) in &record.raised {
            match self.get(key)? {
                Some(now) if now == *to => {
                    self.set(key, *from)?;
                    restored.push(words(key, *to, *from));
                }
                Some(_) => {}
                None => anyhow::bail!(
                    "they belong to the host's first network namespace, and lb runs in another one"
                ),
            }
        }
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        Ok(restored)
    }

    /// Held until it is dropped. The file is never removed.
    fn lock(&self) -> Result<File> {
        let path = self.runtime.join(LOCK);
        let lock = || {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            let mut options = File::options();
            // No other user can hold it up.
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path)?;
            file.lock()?;
            std::io::Result::Ok(file)
        };
        lock().with_context(|| format!("lock {}", path.display()))
    }

    fn record(&self) -> Result<Option<LimitsRecord>> {
        let path = self.runtime.join(RECORD);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("read {}", path.display()))?,
        };
        let record = serde_json::from_slice(&text);
        record
            .map(Some)
            .with_context(|| format!("understand {}", path.display()))
    }

    fn save(&self, record: &LimitsRecord) -> Result<()> {
        let text = serde_json::to_vec_pretty(record).context("write a record as JSON")?;
        crate::system::files::write(&self.runtime.join(RECORD), &text)
    }

    /// A limit; none where the kernel has not got the family, or the calling thread's namespace has not got
    /// the limits.
    fn get(&self, key: &str) -> Result<Option<u32>> {
        let path = self.sysctls.join(key);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("read {}", path.display()))?,
        };
        let number = text.trim().parse();
        number
            .map(Some)
            .with_context(|| format!("read {}", path.display()))
    }

    fn set(&self, key: &str, value: u32) -> Result<()> {
        let path = self.sysctls.join(key);
        fs::write(&path, value.to_string())
            .with_context(|| format!("write {value} to {}", path.display()))
    }
}

/// The limits of both families, and the least of each.
fn keys() -> impl Iterator<Item = (String, u32)> {
    let of = |family: &'static str| {
        LEAST.map(|(limit, least)| (format!("{family}/neigh/default/{limit}"), least))
    };
    FAMILIES.into_iter().flat_map(of)
}

/// A change in the words of sysctl(8).
fn words(key: &str, from: u32, to: u32) -> String {
    format!("net.{} from {from} to {to}", key.replace('/', "."))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const DEFAULTS: [u32; 3] = [128, 512, 1024];
    const RAISED: [u32; 3] = [1024, 8192, 65_536];

    struct Host {
        folder: TempDir,
        tables: NeighbourLimits,
    }

    impl Host {
        fn new(families: &[&str]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let [sysctls, runtime] = ["net", "lb"].map(|name| folder.path().join(name));
            fs::create_dir_all(&runtime).unwrap();
            let host = Self {
                folder,
                tables: NeighbourLimits { sysctls, runtime },
            };
            for family in families {
                let limits = host.tables.sysctls.join(family).join("neigh/default");
                fs::create_dir_all(limits).unwrap();
                host.set(family, DEFAULTS);
            }
            host
        }

        fn set(&self, family: &str, limits: [u32; 3]) {
            for ((limit, _), value) in LEAST.iter().zip(limits) {
                let key = format!("{family}/neigh/default/{limit}");
                self.tables.set(&key, value).unwrap();
            }
        }

        fn limits(&self, family: &str) -> [u32; 3] {
            LEAST.map(|(limit, _)| {
                let key = format!("{family}/neigh/default/{limit}");
                self.tables.get(&key).unwrap().unwrap()
            })
        }

        /// As `lb prepare`, or a start.
        fn raise(&self, instance: &str) -> usize {
            fs::create_dir_all(self.tables.runtime.join(instance)).unwrap();
            self.tables.raise(instance).unwrap().len()
        }

        /// As `lb down`.
        fn down(&self, instance: &str) -> usize {
            let _gone = fs::remove_dir_all(self.tables.runtime.join(instance));
            self.tables.release(instance).unwrap().len()
        }
    }

    #[test]
    fn the_last_instance_puts_back_what_the_first_has_raised() {
        let host = Host::new(&FAMILIES);
        assert!(host.tables.are_small());
        assert_eq!(host.raise("one"), 6);
        // It is prepared, and then started.
        assert_eq!(host.raise("one"), 0);
        assert_eq!(host.raise("two"), 0);
        assert!(!host.tables.are_small());
        for family in FAMILIES {
            assert_eq!(host.limits(family), RAISED);
        }
        assert_eq!(host.down("one"), 0);
        assert_eq!(host.down("one"), 0);
        assert_eq!(host.limits("ipv4"), RAISED);
        assert_eq!(host.down("two"), 6);
        for family in FAMILIES {
            assert_eq!(host.limits(family), DEFAULTS);
        }
        assert_eq!(host.down("two"), 0);
        assert!(!host.tables.runtime.join(RECORD).exists());
        assert_eq!(host.raise("one"), 6);
    }

    #[test]
    fn what_is_higher_is_never_lowered() {
        let host = Host::new(&FAMILIES);
        host.set("ipv4", [4096, 8191, 1 << 20]);
        host.set("ipv6", [1024, 8192, 65_536]);
        let raised = host.tables.raise("one").unwrap();
        assert_eq!(
            raised,
            ["net.ipv4.neigh.default.gc_thresh2 from 8191 to 8192"]
        );
        assert_eq!(host.limits("ipv4"), [4096, 8192, 1 << 20]);
        host.down("one");
        assert_eq!(host.limits("ipv4"), [4096, 8191, 1 << 20]);
    }

    #[test]
    fn what_the_operator_has_changed_meanwhile_stays() {
        let host = Host::new(&["ipv4"]);
        assert_eq!(host.raise("one"), 3);
        host.set("ipv4", [1024, 9000, 64]);
        // The next start takes what is too low for what was there before.
        assert_eq!(host.raise("two"), 1);
        assert_eq!(host.limits("ipv4"), [1024, 9000, 65_536]);
        host.down("one");
        assert_eq!(host.down("two"), 2);
        assert_eq!(host.limits("ipv4"), [128, 9000, 64]);
    }

    /// Its folder is gone, or was never made.
    #[test]
    fn an_instance_that_is_gone_otherwise_does_not_count() {
        let host = Host::new(&FAMILIES);
        host.raise("one");
        host.raise("two");
        fs::remove_dir_all(host.tables.runtime.join("one")).unwrap();
        assert_eq!(host.down("two"), 6);
        assert_eq!(host.limits("ipv6"), DEFAULTS);
    }

    /// The record is there, and some limits were not raised yet, or are put back already.
    #[test]
    fn a_change_that_was_interrupted_is_completed() {
        let host = Host::new(&["ipv4"]);
        host.raise("one");
        host.set("ipv4", [128, 512, 65_536]);
        assert_eq!(host.raise("one"), 2);
        assert_eq!(host.limits("ipv4"), RAISED);
        host.set("ipv4", [128, 8192, 65_536]);
        assert_eq!(host.down("one"), 2);
        assert_eq!(host.limits("ipv4"), DEFAULTS);
    }

    /// A namespace has none of them, and a kernel without IPv6 half of them.
    #[test]
    fn without_limits_nothing_is_done() {
        let host = Host::new(&[]);
        assert!(!host.tables.are_small());
        assert_eq!((host.raise("one"), host.down("one")), (0, 0));
        assert!(!host.tables.runtime.join(LOCK).exists());
        let host = Host::new(&["ipv4"]);
        assert_eq!((host.raise("one"), host.down("one")), (3, 3));
    }

    /// `lb down` inside of a namespace, of what was prepared outside: the next one outside puts it back.
    #[test]
    fn what_cannot_be_put_back_here_is_put_back_later() {
        let host = Host::new(&["ipv4"]);
        host.raise("one");
        let inside = NeighbourLimits {
            sysctls: host.folder.path().join("none"),
            runtime: host.tables.runtime.clone(),
        };
        fs::remove_dir_all(host.tables.runtime.join("one")).unwrap();
        inside.release("one").unwrap_err();
        assert_eq!(host.limits("ipv4"), RAISED);
        assert_eq!(host.down("another"), 3);
        assert_eq!(host.limits("ipv4"), DEFAULTS);
    }

    /// Many come and go at once beside one that stays.
    #[test]
    fn instances_that_come_and_go_at_once_do_not_meet() {
        let host = Host::new(&["ipv4"]);
        host.raise("one");
        std::thread::scope(|scope| {
            for number in 0..8 {
                let host = &host;
                scope.spawn(move || {
                    let name = format!("other-{number}");
                    for _ in 0..20 {
                        assert_eq!((host.raise(&name), host.down(&name)), (0, 0));
                    }
                });
            }
        });
        assert_eq!(host.limits("ipv4"), RAISED);
        assert_eq!(host.down("one"), 3);
    }
}
