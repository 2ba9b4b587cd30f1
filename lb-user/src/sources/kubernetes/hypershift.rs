//! HostedClusters of HyperShift: how each part of a control plane is published, and the entry of `clusters` that is.

mod entry;
mod object;

use ipnet::IpNet;

use self::object::KnownPublishing;
pub(super) use self::object::{KnownHosted, hosted_cluster, route};
use super::known::KnownObjects;
use crate::config::{HostedClusters, ObjectName, PortOfService};

/// A service of a HostedCluster, and what it is in the namespace of the control plane
/// (<https://github.com/openshift/hypershift>, `control-plane-operator/controllers/hostedcontrolplane/manifests`).
struct PublishedService {
    /// What HyperShift calls it.
    name: &'static str,
    /// The part of a cluster.
    part: &'static str,
    /// The Service and its port.
    service: (&'static str, u16),
    /// The Route, if it is published as one.
    route: &'static str,
}

/// Those that clients of hosted clusters use. Those of clouds are not among them.
const SERVICES: [PublishedService; 4] = [
    PublishedService {
        name: "APIServer",
        part: "api",
        service: ("kube-apiserver", 6443),
        route: "kube-apiserver",
    },
    PublishedService {
        name: "OAuthServer",
        part: "oauth",
        service: ("oauth-openshift", 6443),
        route: "oauth",
    },
    PublishedService {
        name: "Konnectivity",
        part: "konnectivity",
        service: ("konnectivity-server", 8091),
        route: "konnectivity-server",
    },
    PublishedService {
        name: "Ignition",
        part: "ignition",
        service: ("ignition-server-proxy", 443),
        route: "ignition-server",
    },
];

/// A hosted cluster, found at its hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundHosted {
    /// Its namespace and name.
    pub(crate) name: ObjectName,
    /// When it was made, as a text that sorts by time.
    pub(crate) created: String,
    base_domain: String,
    allowed: Vec<IpNet>,
    parts: Vec<FoundPart>,
    /// The parts that wait for an object of theirs, or were refused: they stay as they were.
    pub(crate) waiting: Vec<&'static str>,
    /// What of it cannot be, a line each.
    pub(crate) refused: Vec<String>,
}

/// What there is of a part.
enum PartState {
    /// It is not published.
    Absent,
    /// Its Service or Route is not there yet.
    Waiting,
    Found(FoundPart),
}

/// A part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundPart {
    part: &'static str,
    strategy: String,
    hostname: String,
    node_port: Option<u16>,
    service: ObjectName,
}

impl KnownObjects {
    /// The hosted clusters that are wanted.
    pub(super) fn hosted(&self, wanted: &[HostedClusters]) -> Vec<FoundHosted> {
        let all = self.hosted_clusters.iter();
        let found = all.filter(|(name, _)| wanted.iter().any(|one| one.of.has(name)));
        found.map(|(name, known)| self.found(name, known)).collect()
    }

    fn found(&self, name: &ObjectName, known: &KnownHosted) -> FoundHosted {
        let mut found = FoundHosted {
            name: name.clone(),
            created: known.created.clone(),
            base_domain: known.base_domain.clone(),
            allowed: Vec::new(),
            parts: Vec::new(),
            waiting: Vec::new(),
            refused: Vec::new(),
        };
        if known.parts.is_empty() {
            let all = SERVICES.iter().map(|published| published.part);
            found.waiting.extend(all);
            found.refused.push("it has no spec.services".to_owned());
        }
        for block in &known.allowed {
            match block.parse::<IpNet>() {
                Ok(prefix) => found.allowed.push(prefix.trunc()),
                Err(_) => {
                    let block = block.escape_debug();
                    found
                        .refused
                        .push(format!("{block} in allowedCIDRBlocks is no prefix"));
                }
            }
        }
        for published in &SERVICES {
            if let Some(known) = known.parts.get(published.name) {
                match self.part(known, published, &control_plane(name)) {
                    Ok(PartState::Absent) => {}
                    Ok(PartState::Waiting) => found.waiting.push(published.part),
                    Ok(PartState::Found(part)) => found.parts.push(part),
                    Err(why) => {
                        found.waiting.push(published.part);
                        found.refused.push(format!("{}: {why}", published.name));
                    }
                }
            }
        }
        found
    }

    /// A part that is published in a way that is known here, and not inside of the hub alone.
    fn part(
        &self,
        known: &KnownPublishing,
        published: &PublishedService,
        namespace: &str,
    ) -> Result<PartState, String> {
        let named = |name: &str| ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let (service, port) = published.service;
        let mut part = FoundPart {
            part: published.part,
            strategy: known.strategy.clone(),
            hostname: String::new(),
            node_port: None,
            service: named(service),
        };
        let is_there = match known.strategy.as_str() {
            "None" => return Ok(PartState::Absent),
            "LoadBalancer" => true,
            "NodePort" => {
                let service = self.services.get(&part.service);
                let in_api = || service?.node_port(&PortOfService::Number(port));
                let in_spec = Some(known.node_port).filter(|port| *port > 0);
                part.node_port = in_spec.or_else(in_api);
                part.node_port.is_some()
            }
            "Route" if published.part == "api" => {
                let words = "it is published as Route, but kubelets send no name to route by";
                return Err(words.to_owned());
            }
            // Without a name its clients would reach all of the shard.
            "Route" => {
                let in_api = self.routes.get(&named(published.route));
                let names = [Some(&known.hostname), in_api].into_iter().flatten();
                let name = names.into_iter().find(|name| !name.is_empty());
                part.hostname = name.cloned().unwrap_or_default();
                name.is_some()
            }
            other => {
                let other = other.escape_debug();
                return Err(format!("{other} is no way of publishing that is known"));
            }
        };
        Ok(match is_there {
            true => PartState::Found(part),
            false => PartState::Waiting,
        })
    }
}

/// The namespace of a control plane
/// (<https://github.com/openshift/hypershift>, `hypershift-operator/controllers/manifests`).
fn control_plane(hosted: &ObjectName) -> String {
    let ObjectName { namespace, name } = hosted;
    format!("{namespace}-{}", name.replace('.', "-"))
}
