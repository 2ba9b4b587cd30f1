//! The pools and services of a hosted control plane, by the way each part is published.

use super::{
    Expansion,
    nodes::{Group, Groups},
    part::{Backends, Part, Rules, Vip},
    preset::{self, For, HTTP, HTTPS, PartPreset},
    publish::{Publish, publish},
    route::{Asks, Routed},
};
use crate::config::{
    list::Named,
    listen::Protocol::Tcp,
    names::{self, Names},
    place::{At, Location, child},
    problem::Findings,
    schema::{AnyOrPrefixes, Apps, Cluster, Component, RawControlPlane},
};

/// The longest suffix that a part puts behind the name of its cluster.
const MAX_SUFFIX: &str = "-routes-https-3";

/// The longest name of a cluster, in characters.
pub(super) const MAX_NAME: usize = names::MAX_NAME - MAX_SUFFIX.len();

/// What the parts of a cluster refer to, as far as it is there.
pub(super) struct Around<'r> {
    /// The network of the cluster.
    pub(super) network: Option<&'r At<String>>,
    pub(super) networks: &'r Names<'r>,
    pub(super) groups: &'r Groups<'r>,
    /// The clusters of Kubernetes.
    pub(super) kubernetes: &'r Names<'r>,
}

/// Where the control plane runs, as far as it is there.
#[derive(Clone, Copy)]
pub(super) struct Hub<'r> {
    pub(super) group: Option<&'r Group<'r>>,
    /// Where its Services are.
    pub(super) discover: Option<&'r RawControlPlane>,
}

impl Expansion<'_> {
    pub(super) fn cluster(&mut self, named: &Named<Cluster>, around: &Around<'_>) {
        let cluster = &named.value;
        let nodes = cluster.nodes.as_ref();
        let group = nodes.and_then(|nodes| around.groups.find(nodes, self.findings));
        let hub = Hub {
            group: group.filter(|group| has_network(group, nodes, self.findings)),
            discover: self.control_plane(cluster, around),
        };
        let mut routed = Vec::new();
        for (preset, component) in preset::parts(cluster) {
            routed.extend(self.component(named, preset, component, hub));
        }
        if let Some(routes) = &cluster.routes {
            self.routes(named, &routed, hub, routes);
        }
        if let Some(apps) = &cluster.apps {
            self.apps(named, apps, around);
        }
    }

    /// Where the Services of a control plane are, if these are there.
    fn control_plane<'r>(
        &mut self,
        cluster: &'r Cluster,
        around: &Around<'_>,
    ) -> Option<&'r RawControlPlane> {
        let At { value, .. } = cluster.discover.as_ref()?;
        let in_kubernetes = value.cluster.as_ref();
        let network = value.network.as_ref();
        let both = [
            (around.kubernetes, in_kubernetes),
            (around.networks, network),
        ];
        let found = both.map(|(names, at)| at.and_then(|at| names.find(at, self.findings)));
        let is_there = found.iter().all(Option::is_some) && value.namespace.is_some();
        self.is_whole &= is_there;
        is_there.then_some(value)
    }

    /// Writes a component out, unless it is a route: these share their VIPs.
    fn component<'r>(
        &mut self,
        named: &'r Named<Cluster>,
        preset: &'static PartPreset,
        component: &'r At<Component>,
        hub: Hub<'_>,
    ) -> Option<Routed<'r>> {
        let At { place, value } = component;
        let published = publish(preset, value, self.findings);
        let is_route = published == Some(Publish::Route);
        let rules = Rules {
            allow: match is_route {
                true => value.allow.as_ref(),
                false => self.clients(named, preset, component),
            },
            deny: value.deny.as_ref(),
        };
        let vip = Vip::read(value.vip.as_ref(), rules, &named.value);
        self.is_whole &= vip.is_some();
        if is_route {
            self.check_routed(named, preset.suffix, component);
            return Some(Routed {
                at: component,
                vip: vip?,
            });
        }
        if let Some(At { place, .. }) = value.hostname.as_ref().filter(|_| published.is_some()) {
            let words = "hostname is for a component with publish: Route";
            self.findings.add(place, words);
        }
        let backends = self.backends(named, preset, component, hub, published?);
        let (node_port, backends) = backends?;
        let vip = vip?;
        let part = Part {
            suffix: preset.suffix.to_owned(),
            place,
            vip: &vip,
            port: match published? {
                Publish::NodePort => node_port?,
                Publish::LoadBalancer | Publish::Route => preset.port,
            },
            protocols: preset.protocols,
            asks: Asks::Anything,
            backends,
            selection: &value.selection,
            care: &value.care,
            proxy_protocol: None,
        };
        self.part(named, &part);
        None
    }

    /// The clients of a part: its own, or those that it is for.
    fn clients<'r>(
        &mut self,
        named: &'r Named<Cluster>,
        preset: &PartPreset,
        component: &'r At<Component>,
    ) -> Option<&'r At<AnyOrPrefixes>> {
        let own = component.value.allow.as_ref();
        let workers = named.value.workers.as_ref();
        match preset.clients {
            For::All => own,
            For::Workers => own.or(workers),
            For::OnlyWorkers => {
                if own.or(workers).is_none() && named.value.without_workers {
                    let words = format!(
                        "missing; {} is for worker nodes alone, and none are known",
                        preset.suffix
                    );
                    self.findings.add(&missing(&named.place, "workers"), words);
                }
                own.or(workers)
            }
        }
    }

    /// The NodePort of a component, if it is written, and where its backends are: at the nodes of a group, or at a Service.
    fn backends<'r>(
        &mut self,
        named: &Named<Cluster>,
        preset: &PartPreset,
        component: &At<Component>,
        hub: Hub<'r>,
        published: Publish,
    ) -> Option<(Option<u16>, Backends<'r>)> {
        let is_written = !component.value.without_node_port;
        let is_discovered = named.value.discover.is_some() && preset.is_discovered();
        if is_discovered && (published == Publish::NodePort || !is_written) {
            let node_port = match published {
                Publish::NodePort => Some(self.node_port(component)?),
                _ => None,
            };
            let of = hub.discover?;
            let (service, port) = preset.service(of)?;
            return Some((node_port, Backends::Service { of, service, port }));
        }
        self.check_nodes(named, preset.suffix);
        let port = self.node_port(component)?;
        let group = hub.group?;
        let nodes = Backends::Nodes {
            group,
            network: group.network,
            port,
        };
        Some((Some(port), nodes))
    }

    /// Reports that the nodes are missing that a part needs.
    pub(super) fn check_nodes(&mut self, named: &Named<Cluster>, part: &str) {
        if named.value.without_nodes {
            let words = format!("missing; the backends of {part} are the nodes of a group");
            self.findings.add(&missing(&named.place, "nodes"), words);
        }
    }

    fn node_port(&mut self, component: &At<Component>) -> Option<u16> {
        if component.value.without_node_port {
            let place = missing(&component.place, "node_port");
            let words = "missing; only a component with publish: Route has no node_port of its own";
            self.findings.add(&place, words);
        }
        self.port(component.value.node_port.as_ref())
    }

    /// The port that is written. Without one that could be read, pools and services are not known.
    pub(super) fn port(&mut self, written: Option<&At<Option<u16>>>) -> Option<u16> {
        let port = written?.value;
        self.is_whole &= port.is_some();
        port
    }

    /// The workers are usually where the clients are.
    fn apps(&mut self, named: &Named<Cluster>, at: &At<Apps>, around: &Around<'_>) {
        let At { place, value: apps } = at;
        let group = apps.nodes.as_ref();
        let group = group.and_then(|nodes| around.groups.find(nodes, self.findings));
        let rules = Rules {
            allow: apps.allow.as_ref(),
            deny: apps.deny.as_ref(),
        };
        let vip = Vip::read(apps.vip.as_ref(), rules, &named.value);
        self.is_whole &= vip.is_some();
        for (what, listen, node_port) in [("https", HTTPS, &apps.https), ("http", HTTP, &apps.http)]
        {
            let node_port = self.port(node_port.as_ref());
            if let (Some(vip), Some(group), Some(port)) = (&vip, group, node_port) {
                let network = match group.without_network {
                    true => around.network,
                    false => group.network,
                };
                let part = Part {
                    suffix: format!("apps-{what}"),
                    place,
                    vip,
                    port: listen,
                    protocols: &[Tcp],
                    asks: Asks::Anything,
                    backends: Backends::Nodes {
                        group,
                        network,
                        port,
                    },
                    selection: &apps.selection,
                    care: &apps.care,
                    proxy_protocol: apps.proxy_protocol.as_ref(),
                };
                self.part(named, &part);
            }
        }
    }
}

/// A control plane's nodes are not where its clients are: only the group can say where.
fn has_network(group: &Group<'_>, nodes: Option<&At<String>>, findings: &mut Findings) -> bool {
    if let Some(nodes) = nodes.filter(|_| group.without_network) {
        let words = format!(
            "node group {} in {} has no network, which a cluster needs; expected network: NAME there",
            group.name,
            findings.line(group.place, &nodes.place)
        );
        findings.add(&nodes.place, words);
    }
    group.network.is_some()
}

/// Where a key that is missing at `place` is reported.
pub(super) fn missing(place: &Location, key: &str) -> Location {
    place.with_key(child(&place.key, key))
}
