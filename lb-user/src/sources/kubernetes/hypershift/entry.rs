//! The entry of `clusters` that a hosted cluster is.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::{FoundHosted, FoundPart, control_plane};
use crate::config::{HostedClusters, ObjectName};

impl FoundHosted {
    /// The Services that wait for the VIP in their status.
    pub(crate) fn load_balancers(&self) -> Vec<ObjectName> {
        let parts = self.parts.iter();
        let parts = parts.filter(|part| part.strategy == "LoadBalancer");
        parts.map(|part| part.service.clone()).collect()
    }

    /// The entry, at a hub and with a VIP; `defaults` are those of the file.
    pub(crate) fn entry(
        &self,
        hub: &str,
        of: &HostedClusters,
        vip: IpAddr,
        defaults: Option<&Value>,
    ) -> Value {
        let discover = json!({
            "cluster": hub,
            "namespace": control_plane(&self.name),
            "network": of.hub_network,
        });
        let mut entry = Map::new();
        let mut put = |key: &str, value| entry.insert(key.to_owned(), value);
        put("network", json!(of.network));
        put("discover", discover);
        if !self.base_domain.is_empty() {
            put("base_domain", json!(self.base_domain));
        }
        for (key, prefixes) in [("allow", &of.allow), ("workers", &of.workers)] {
            if let Some(prefixes) = prefixes {
                put(key, json!(prefixes));
            }
        }
        for found in &self.parts {
            let preset = defaults.is_some_and(|all| all[found.part].get("health").is_some());
            let mut part = found.entry(vip, !preset);
            if found.part == "api" && of.allow.is_none() && !self.allowed.is_empty() {
                part["allow"] = json!(self.allowed);
            }
            put(found.part, part);
        }
        let is_routed = self.parts.iter().any(|part| part.strategy == "Route");
        if let Some(shard) = of.shard.as_ref().filter(|_| is_routed) {
            let mut routes = json!({ "service": shard, "health": { "tcp": {} } });
            if let Some(version) = of.proxy_protocol {
                routes["proxy_protocol"] = json!(version);
            }
            put("routes", routes);
        }
        Value::Object(entry)
    }
}

impl FoundPart {
    /// The part, with checks unless the file has some for it.
    fn entry(&self, vip: IpAddr, with_checks: bool) -> Value {
        let mut part = json!({ "publish": self.strategy, "vip": vip });
        if let Some(port) = self.node_port {
            part["node_port"] = json!(port);
        }
        if self.strategy == "Route" {
            part["hostname"] = json!(self.hostname);
        } else if with_checks {
            part["health"] = checks(self.part);
        }
        part
    }
}

/// How a part is checked: as OpenShift asks of load balancers in front of an API (every 5 s, 2 up, 3 down)
/// (<https://github.com/openshift/openshift-docs>, `installation-load-balancing-user-infra`).
fn checks(part: &str) -> Value {
    let (kind, check) = match part {
        "api" => ("https", json!({ "path": "/readyz" })),
        "oauth" => ("https", json!({ "path": "/healthz" })),
        _ => ("tls", json!({})),
    };
    json!({ kind: check, "interval": "5s", "timeout": "3s", "rise": 2, "fall": 3 })
}
