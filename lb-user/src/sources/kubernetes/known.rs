//! What is known of a cluster: only what a backend depends on, so that nothing else of an object is a change.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use super::hypershift::KnownHosted;
use crate::config::{ObjectName, PortOfService, ServicePort};

/// Its services and nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownObjects {
    pub(super) services: BTreeMap<ObjectName, KnownService>,
    pub(super) nodes: BTreeMap<String, KnownNode>,
    /// By namespace and name.
    pub(super) slices: BTreeMap<ObjectName, KnownSlice>,
    /// Only where hosted clusters are wanted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) hosted_clusters: BTreeMap<ObjectName, KnownHosted>,
    /// The host of each Route, only where hosted clusters are wanted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) routes: BTreeMap<ObjectName, String>,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownService {
    pub(super) ports: Vec<KnownPort>,
    /// Whether only nodes with an endpoint take connections (`externalTrafficPolicy: Local`).
    pub(super) is_local: bool,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownPort {
    pub(super) name: String,
    pub(super) number: u16,
    /// 0: it has none.
    pub(super) node_port: u16,
}

/// A Node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownNode {
    /// Those inside of the cluster, in their order.
    pub(super) addresses: Vec<IpAddr>,
    /// Whether it is ready, schedulable and not excluded.
    pub(super) takes: bool,
}

/// An EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownSlice {
    /// Of which it is a part, if it says so.
    pub(super) service: Option<ObjectName>,
    /// With an endpoint that is ready.
    pub(super) nodes: BTreeSet<String>,
}

/// A node at which a service is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundNode {
    pub(crate) name: String,
    /// At least one.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) port: u16,
}

impl KnownObjects {
    /// The nodes at which a port of a service is reached; none where the service is not there, has no such port or no
    /// NodePort.
    pub(super) fn nodes(&self, wanted: &ServicePort) -> Vec<FoundNode> {
        let service = self.services.get(&wanted.service);
        let port = service.and_then(|service| service.node_port(&wanted.port));
        let (Some(service), Some(port)) = (service, port) else {
            return Vec::new();
        };
        let nodes = self.nodes.iter().filter(|(name, node)| {
            node.takes
                && !node.addresses.is_empty()
                && (!service.is_local || self.has_endpoint(&wanted.service, name))
        });
        let found = nodes.map(|(name, node)| FoundNode {
            name: name.clone(),
            addresses: node.addresses.clone(),
            port,
        });
        found.collect()
    }

    fn has_endpoint(&self, service: &ObjectName, node: &str) -> bool {
        let mut slices = self.slices.values();
        slices.any(|slice| slice.service.as_ref() == Some(service) && slice.nodes.contains(node))
    }
}

impl KnownService {
    pub(super) fn node_port(&self, wanted: &PortOfService) -> Option<u16> {
        let is_wanted = |port: &&KnownPort| match wanted {
            PortOfService::Number(number) => port.number == *number,
            PortOfService::Name(name) => port.name == *name,
        };
        let port = self.ports.iter().find(is_wanted)?;
        (port.node_port > 0).then_some(port.node_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ObjectName {
        text.to_owned().try_into().unwrap()
    }

    fn known(is_local: bool) -> KnownObjects {
        let port = |name: &str, number, node_port| KnownPort {
            name: name.to_owned(),
            number,
            node_port,
        };
        let service = KnownService {
            ports: vec![port("https", 443, 30_918), port("metrics", 9090, 0)],
            is_local,
        };
        let node = |address: &str, takes| KnownNode {
            addresses: address.parse().into_iter().collect(),
            takes,
        };
        let slice = |node: &str| KnownSlice {
            service: Some(name("a/kas")),
            nodes: [node.to_owned()].into(),
        };
        let nodes = [
            ("n1", node("10.0.0.1", true)),
            ("n2", node("10.0.0.2", true)),
            ("n3", node("10.0.0.3", false)),
            ("n4", node("", true)),
        ];
        KnownObjects {
            services: [(name("a/kas"), service)].into(),
            nodes: nodes.map(|(name, node)| (name.to_owned(), node)).into(),
            slices: [
                (name("a/kas-1"), slice("n2")),
                (name("a/kas-2"), slice("n3")),
            ]
            .into(),
            hosted_clusters: BTreeMap::new(),
            routes: BTreeMap::new(),
        }
    }

    fn found(known: &KnownObjects, service: &str, port: PortOfService) -> Vec<String> {
        let nodes = known.nodes(&ServicePort {
            cluster: "hub".to_owned(),
            service: name(service),
            port,
        });
        let nodes = nodes.iter();
        nodes
            .map(|node| format!("{} {}:{}", node.name, node.addresses[0], node.port))
            .collect()
    }

    fn named(port: &str) -> PortOfService {
        PortOfService::Name(port.to_owned())
    }

    #[test]
    fn nodes_that_take_connections_are_found_at_the_nodeport() {
        let all = ["n1 10.0.0.1:30918", "n2 10.0.0.2:30918"];
        assert_eq!(found(&known(false), "a/kas", named("https")), all);
        assert_eq!(
            found(&known(false), "a/kas", PortOfService::Number(443)),
            all
        );
        // Only where there are endpoints, in whichever slice.
        assert_eq!(found(&known(true), "a/kas", named("https")), [all[1]]);
    }

    #[test]
    fn what_is_not_published_has_no_nodes() {
        for (service, port) in [
            ("a/kas", named("metrics")),
            ("a/kas", named("http")),
            ("a/kas", PortOfService::Number(30_918)),
            ("b/kas", named("https")),
        ] {
            assert!(found(&known(false), service, port).is_empty());
        }
    }

    #[test]
    fn what_is_known_is_read_again_from_the_disk() {
        let text = serde_json::to_string(&known(true)).unwrap();
        assert_eq!(
            serde_json::from_str::<KnownObjects>(&text).unwrap(),
            known(true)
        );
    }
}
