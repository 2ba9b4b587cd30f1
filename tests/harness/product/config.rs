//! A configuration that is built from keys and values, and is its own text.
//!
//! ```text
//! Config::poc()
//!     .mgmt_pool("echo", ["10.32.96.105:30700"])
//!     .tcp_service("echo", ECHO)
//!     .service("echo", |service| service.with("idle_timeout: 2s, max_flows: 10"))
//!     .set("timeouts.half_open", "500ms")
//! ```

mod keys;
mod read;

use std::{fmt::Display, ops::Deref};

use serde::Serialize;
use serde_json::Value;

pub use self::keys::Keys;
use crate::topology::{MGMT_NIC, SNAT, SNAT6, TENANT_NIC};

/// Top-level keys whose entries have names; they are written in the order in which they came.
const SECTIONS: [&str; 5] = ["clusters", "networks", "nodes", "pools", "services"];

/// A top-level key, and its entries by their names.
type Section = (String, Vec<(String, Keys)>);

/// A configuration; as a `str` it is the file, with one line for each entry.
#[derive(Clone, Debug)]
pub struct Config {
    sections: Vec<Section>,
    /// Of the other top-level keys.
    top: Keys,
    text: String,
}

impl Config {
    /// No network yet.
    pub fn new() -> Self {
        Self::of(Vec::new(), Keys::default().set("version", 1))
    }

    /// The networks of [`crate::topology::Topology`], with nothing on them.
    pub fn poc() -> Self {
        let tenant = |network: Keys| network.nic("tenant", TENANT_NIC, "192.168.203.0/24");
        Self::new().mgmt().network("tenant-a", tenant)
    }

    /// The network of the nodes, as every topology but one has it.
    #[must_use]
    pub fn mgmt(self) -> Self {
        let mgmt = |network: Keys| network.nic("mgmt", MGMT_NIC, "10.32.96.0/20").snat([SNAT]);
        self.network("mgmt", mgmt)
    }

    /// [`Self::poc`] with IPv6 as well.
    pub fn poc_dual() -> Self {
        Self::poc().with_ipv6(&["tenant-a"])
    }

    /// Adds IPv6 to `mgmt` and to these networks of tenants.
    #[must_use]
    pub fn with_ipv6(self, tenants: &[&str]) -> Self {
        let mgmt = self.network("mgmt", |mgmt| {
            mgmt.push("prefixes", "fd00:32::/64").push("snat", SNAT6)
        });
        tenants.iter().fold(mgmt, |config, tenant| {
            config.network(tenant, |tenant| tenant.push("prefixes", "fd00:203::/64"))
        })
    }

    /// What a file says.
    ///
    /// # Panics
    ///
    /// When it is no YAML, or not that of a configuration.
    pub fn read(text: &str) -> Self {
        let (mut sections, mut top) = (Vec::new(), Keys::default());
        for (key, value) in read::file(text) {
            match value {
                read::Top::Section(entries) => sections.push((key, entries)),
                read::Top::Value(value) => top = top.set(&key, value),
            }
        }
        Self::of(sections, top)
    }

    fn of(sections: Vec<Section>, top: Keys) -> Self {
        let text = text(&sections, &top);
        Self {
            sections,
            top,
            text,
        }
    }

    /// Adds a network, or changes it.
    #[must_use]
    pub fn network(self, name: &str, change: impl FnOnce(Keys) -> Keys) -> Self {
        self.entry("networks", name, change)
    }

    /// Adds a pool, or changes it.
    #[must_use]
    pub fn pool(self, name: &str, change: impl FnOnce(Keys) -> Keys) -> Self {
        self.entry("pools", name, change)
    }

    /// Adds a service, or changes it.
    #[must_use]
    pub fn service(self, name: &str, change: impl FnOnce(Keys) -> Keys) -> Self {
        self.entry("services", name, change)
    }

    /// A pool of nodes on `mgmt`, with these addresses and ports.
    #[must_use]
    pub fn mgmt_pool<A: Display>(self, name: &str, backends: impl IntoIterator<Item = A>) -> Self {
        self.pool(name, |pool| pool.on("mgmt").backends(backends))
    }

    /// A service of `tenant-a` by TCP, with the pool of its name.
    #[must_use]
    pub fn tcp_service(self, name: &str, address: impl Display) -> Self {
        self.tcp_service_to(name, address, name)
    }

    /// The same with another pool.
    #[must_use]
    pub fn tcp_service_to(self, name: &str, address: impl Display, pool: &str) -> Self {
        let service = |service: Keys| service.on("tenant-a").tcp(address).pool(pool);
        self.service(name, service)
    }

    /// Adds an entry of a section, or changes it.
    #[must_use]
    pub fn entry(mut self, section: &str, name: &str, change: impl FnOnce(Keys) -> Keys) -> Self {
        let entry = find(find(&mut self.sections, section), name);
        *entry = change(std::mem::take(entry));
        Self::of(self.sections, self.top)
    }

    /// Takes an entry of a section out.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[must_use]
    pub fn without(mut self, section: &str, name: &str) -> Self {
        let entries = find(&mut self.sections, section);
        let before = entries.len();
        entries.retain(|(other, _)| other != name);
        assert_ne!(entries.len(), before, "no {name} in {section}");
        self.sections.retain(|(_, entries)| !entries.is_empty());
        Self::of(self.sections, self.top)
    }

    /// Sets another top-level key, or a key in it, as [`Keys::set`].
    #[must_use]
    pub fn set(self, path: &str, value: impl Serialize) -> Self {
        Self::of(self.sections, self.top.set(path, value))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Config {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// What has the name, which is added at the end.
fn find<'l, T: Default>(list: &'l mut Vec<(String, T)>, name: &str) -> &'l mut T {
    let known = list.iter().position(|(other, _)| other == name);
    let index = known.unwrap_or_else(|| {
        list.push((name.to_owned(), T::default()));
        list.len() - 1
    });
    &mut list[index].1
}

/// The file: JSON is YAML, and what is in a section is on lines of its own.
fn text(sections: &[Section], top: &Keys) -> String {
    let top = top.as_value().as_object().into_iter().flatten();
    let line = |(key, value): (&String, &Value)| format!("{key}: {value}\n");
    let (version, others): (Vec<_>, Vec<_>) = top.partition(|(key, _)| *key == "version");
    let mut text: String = version.into_iter().map(line).collect();
    for (section, entries) in sections {
        text += &format!("{section}:\n");
        let line = |(name, keys): &(String, Keys)| format!("  {name}: {}\n", keys.as_value());
        text.extend(entries.iter().map(line));
    }
    text.extend(others.into_iter().map(line));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::ECHO;

    #[test]
    fn a_configuration_is_a_file_with_a_line_for_each_entry() {
        let config = Config::poc()
            .pool("echo", |pool| {
                pool.on("mgmt").backends(["10.32.96.105:30700"])
            })
            .service("echo", |service| {
                service.on("tenant-a").tcp(ECHO).pool("echo")
            })
            .set("timeouts.half_open", "2s");
        let expected = [
            "version: 1",
            "networks:",
            r#"  mgmt: {"interface":"eth1","prefixes":["10.32.96.0/20"],"role":"mgmt","snat":["10.32.96.50"]}"#,
            r#"  tenant-a: {"interface":"eth0","prefixes":["192.168.203.0/24"],"role":"tenant"}"#,
            "pools:",
            r#"  echo: {"backends":["10.32.96.105:30700"],"network":"mgmt"}"#,
            "services:",
            r#"  echo: {"listen":["192.168.203.110:7000/tcp"],"network":"tenant-a","pool":"echo"}"#,
            r#"timeouts: {"half_open":"2s"}"#,
        ];
        assert_eq!(config.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let config = Config::poc_dual()
            .pool("echo", |pool| {
                let pool = pool
                    .on("mgmt")
                    .with("health: { tcp: {}, rise: 2, interval: 200ms }");
                pool.backends([ECHO]).set("health.fall", 3)
            })
            .set("watch", true);
        assert_eq!(*Config::read(&config), *config);
        let changed = Config::read(&config).pool("echo", |pool| pool.set("health.rise", 4));
        assert_eq!(*changed, config.replace(r#""rise":2"#, r#""rise":4"#));
        let no_pool = changed.without("pools", "echo");
        assert!(no_pool.ends_with("}\nwatch: true\n"), "{}", &*no_pool);
        assert!(!no_pool.contains("pools"), "{}", &*no_pool);
    }
}
