//! What a part of a configuration says.

use std::{fmt::Display, net::Ipv4Addr};

use serde::Serialize;
use serde_json::{Value, json};

use super::read;
use crate::topology::{Routed, SNAT, TENANT_NIC};

/// The keys of a network, a pool or a service, or of a part of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Keys(Value);

impl From<&str> for Keys {
    /// What a file says: `idle_timeout: 2s, allow: [10.0.0.0/8]`.
    ///
    /// # Panics
    ///
    /// When it is no YAML.
    fn from(keys: &str) -> Self {
        Self(read::keys(keys))
    }
}

impl From<Value> for Keys {
    fn from(keys: Value) -> Self {
        Self(keys)
    }
}

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

    /// Sets all of these keys.
    ///
    /// # Panics
    ///
    /// When they are a text that is no YAML.
    #[must_use]
    pub fn with(self, keys: impl Into<Self>) -> Self {
        let keys = keys.into();
        let keys = keys.0.as_object().into_iter().flatten();
        keys.fold(self, |all, (key, value)| all.set(key, value))
    }

    /// Takes an element of a list out.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[must_use]
    pub fn without(mut self, path: &str, index: usize) -> Self {
        let list = self.place(path).as_array_mut().expect("a list");
        list.remove(index);
        self
    }

    pub(super) fn as_value(&self) -> &Value {
        &self.0
    }

    fn place(&mut self, path: &str) -> &mut Value {
        path.split('.').fold(&mut self.0, |value, key| match value {
            Value::Array(list) => &mut list[key.parse::<usize>().expect("the index of a list")],
            other => &mut other[key],
        })
    }

    /// Of a network: its role, its NIC, and its only prefix.
    #[must_use]
    pub fn nic(self, role: &str, interface: &str, prefix: &str) -> Self {
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
        self.set("snat", json!([{ "address": SNAT, "ports": ports }]))
    }

    /// Of a network: the way to what is behind a router.
    #[must_use]
    pub fn route(self, far: &Routed) -> Self {
        self.push("routes", json!({ "to": far.to, "via": far.via }))
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
