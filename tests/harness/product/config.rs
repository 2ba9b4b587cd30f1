//! A configuration that is built from keys and values, and is its own text.
//!
//! ```text
//! Config::poc()
//!     .pool("echo", |pool| pool.on("mgmt").backends(["10.32.96.105:30700"]))
//!     .service("echo", |service| service.on("tenant-a").tcp(ECHO).pool("echo").with("idle_timeout: 2s"))
//!     .set("timeouts.half_open", "500ms")
//! ```

mod read;

use std::{fmt::Display, net::Ipv4Addr, ops::Deref};

use serde::Serialize;
use serde_json::Value;

use crate::topology::{MGMT_NIC, SNAT, SNAT6, TENANT_NIC};

/// Top-level keys whose entries have names; they are written in the order in which they came.
const SECTIONS: [&str; 5] = ["clusters", "networks", "nodes", "pools", "services"];

/// A configuration; as a `str` it is the file, with one line for each entry.
#[derive(Clone, Debug)]
pub struct Config {
    sections: Vec<(String, Vec<(String, Keys)>)>,
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
        Self::poc()
            .network("mgmt", |mgmt| {
                mgmt.push("prefixes", "fd00:32::/64").push("snat", SNAT6)
            })
            .network("tenant-a", |tenant| {
                tenant.push("prefixes", "fd00:203::/64")
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

    fn of(sections: Vec<(String, Vec<(String, Keys)>)>, top: Keys) -> Self {
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

/// The keys of a network, a pool or a service, or of a part of it.
#[derive(Clone, Debug, Default)]
pub struct Keys(Value);

impl Keys {
    /// Sets a key; `health.http.path` is a key in others, which are made, and `backends.0` the first of a list.
    ///
    /// # Panics
    ///
    /// When the value is none that JSON has, or the path leads into one that has no keys.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Serialize) -> Self {
        *self.place(path) = serde_json::to_value(value).expect("a value of JSON");
        self
    }

    /// Adds to a list, which is made.
    ///
    /// # Panics
    ///
    /// As for [`Self::set`], and when the key is no list.
    #[must_use]
    pub fn push(mut self, path: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).expect("a value of JSON");
        match self.place(path) {
            Value::Array(list) => list.push(value),
            none @ Value::Null => *none = Value::Array(vec![value]),
            other => panic!("{path} is {other}, and no list"),
        }
        self
    }

    /// Sets keys as a file says them: `idle_timeout: 2s, allow: [10.0.0.0/8]`.
    ///
    /// # Panics
    ///
    /// When it is no YAML.
    #[must_use]
    pub fn with(self, keys: &str) -> Self {
        let set = |all: Self, (key, value): (String, Value)| all.set(&key, value);
        read::keys(keys).into_iter().fold(self, set)
    }

    fn place(&mut self, path: &str) -> &mut Value {
        path.split('.').fold(&mut self.0, |value, key| match value {
            Value::Array(list) => &mut list[key.parse::<usize>().expect("the index of a list")],
            other => &mut other[key],
        })
    }

    fn nic(self, role: &str, interface: &str, prefix: &str) -> Self {
        self.set("role", role)
            .set("interface", interface)
            .set("prefixes", [prefix])
    }

    /// Of a tenant network: its VLAN on the NIC of the tenants, and its prefix.
    #[must_use]
    pub fn tenant(self, vlan: u16, prefix: &str) -> Self {
        self.nic("tenant", TENANT_NIC, prefix).set("vlan", vlan)
    }

    /// Of a network: its only SNAT addresses.
    #[must_use]
    pub fn snat(self, addresses: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        self.set("snat", addresses.into_iter().collect::<Vec<_>>())
    }

    /// Of a network: its only SNAT address, with these of its ports.
    #[must_use]
    pub fn snat_ports(self, first: u16, last: u16) -> Self {
        let ports = format!("{first}-{last}");
        self.set(
            "snat",
            serde_json::json!([{ "address": SNAT, "ports": ports }]),
        )
    }

    /// Of a pool or a service: its network.
    #[must_use]
    pub fn on(self, network: &str) -> Self {
        self.set("network", network)
    }

    /// Of a pool: its backends, by address and port.
    #[must_use]
    pub fn backends<A: Display>(self, addresses: impl IntoIterator<Item = A>) -> Self {
        let addresses = addresses.into_iter().map(|address| address.to_string());
        self.set("backends", addresses.collect::<Vec<_>>())
    }

    /// Of a service: one more address that it listens on, by TCP.
    #[must_use]
    pub fn tcp(self, address: impl Display) -> Self {
        self.push("listen", format!("{address}/tcp"))
    }

    /// The same by UDP.
    #[must_use]
    pub fn udp(self, address: impl Display) -> Self {
        self.push("listen", format!("{address}/udp"))
    }

    /// Of a service: its pool.
    #[must_use]
    pub fn pool(self, name: &str) -> Self {
        self.set("pool", name)
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
fn text(sections: &[(String, Vec<(String, Keys)>)], top: &Keys) -> String {
    let top = top.0.as_object().into_iter().flatten();
    let line = |(key, value): (&String, &Value)| format!("{key}: {value}\n");
    let (version, others): (Vec<_>, Vec<_>) = top.partition(|(key, _)| *key == "version");
    let mut text: String = version.into_iter().map(line).collect();
    for (section, entries) in sections {
        text += &format!("{section}:\n");
        text.extend(
            entries
                .iter()
                .map(|(name, Keys(keys))| format!("  {name}: {keys}\n")),
        );
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
        assert!(no_pool.contains("pools:\nwatch: true\n"), "{}", &*no_pool);
    }
}
