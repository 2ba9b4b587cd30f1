//! The pools and services of a hosted control plane, by the way each part is published.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    Expansion,
    nodes::{Group, Groups},
    publish::{Publish, publish},
    route::{Asks, Routed},
};
use crate::config::{
    list::{List, Named},
    listen::{Listen, Protocol},
    model::{ProxyProtocol, any},
    names,
    place::{At, Location, child},
    problem::Findings,
    schema::{
        AnyOrPrefixes, Apps, Care, Cluster, Component, LiteralPool, RawPool, RawService, Selection,
    },
};

/// The longest suffix that a part puts behind the name of its cluster.
const MAX_SUFFIX: &str = "-routes-https-3";

/// The longest name of a cluster, in characters.
pub(super) const MAX_NAME: usize = names::MAX_NAME - MAX_SUFFIX.len();

// Where clients expect each part.
const API: u16 = 6443;
const KONNECTIVITY: u16 = 8091;
pub(super) const HTTPS: u16 = 443;
pub(super) const HTTP: u16 = 80;

/// What one pool and one service are made of.
pub(super) struct Part<'r> {
    /// Behind the name of the cluster.
    pub(super) suffix: String,
    /// The component that it is for.
    pub(super) place: &'r Location,
    pub(super) vip: &'r Vip<'r>,
    pub(super) port: u16,
    pub(super) asks: Asks<'r>,
    pub(super) group: &'r Group<'r>,
    pub(super) node_port: u16,
    pub(super) selection: &'r Selection,
    pub(super) care: &'r Care,
    pub(super) proxy_protocol: Option<&'r At<Option<ProxyProtocol>>>,
}

/// A VIP that could be read, and the clients that may use it.
pub(super) struct Vip<'r> {
    pub(super) address: IpAddr,
    place: &'r Location,
    rules: Rules<'r>,
}

/// The clients that may use a VIP, and those that may not.
#[derive(Clone, Copy)]
struct Rules<'r> {
    allow: Option<&'r At<AnyOrPrefixes>>,
    deny: Option<&'r At<AnyOrPrefixes>>,
}

impl<'r> Vip<'r> {
    /// The VIP of a part, with its own rules or else those of the cluster.
    fn read(raw: Option<&'r At<IpAddr>>, rules: Rules<'r>, cluster: &'r Cluster) -> Option<Self> {
        let At { place, value } = raw?;
        Some(Self {
            address: *value,
            place,
            rules: Rules {
                allow: rules.allow.or(cluster.allow.as_ref()),
                deny: rules.deny.or(cluster.deny.as_ref()),
            },
        })
    }

    /// The prefixes that are written for it, wherever that is; `any` is those of all lengths.
    pub(super) fn rules(&self) -> [Option<Vec<IpNet>>; 2] {
        [self.rules.allow, self.rules.deny].map(|at| match &at?.value {
            AnyOrPrefixes::Any => Some(any().to_vec()),
            AnyOrPrefixes::Prefixes(list) => {
                Some(list.elements.iter().map(|at| at.value).collect())
            }
        })
    }
}

impl Expansion<'_> {
    /// `network` is the cluster's, if it is there.
    pub(super) fn cluster(
        &mut self,
        named: &Named<Cluster>,
        network: Option<&At<String>>,
        groups: &Groups<'_>,
    ) {
        let cluster = &named.value;
        let nodes = cluster.nodes.as_ref();
        let group = nodes.and_then(|nodes| groups.find(nodes, self.findings));
        let group = group.filter(|group| has_network(group, nodes, self.findings));
        let mut routed = Vec::new();
        for (name, port, component) in [
            ("api", API, &cluster.api),
            ("oauth", HTTPS, &cluster.oauth),
            ("konnectivity", KONNECTIVITY, &cluster.konnectivity),
            ("ignition", HTTPS, &cluster.ignition),
        ] {
            if let Some(component) = component {
                routed.extend(self.component(named, name, port, component, group));
            }
        }
        if let (Some(group), Some(routes)) = (group, &cluster.routes) {
            self.routes(named, &routed, group, routes);
        }
        if let Some(apps) = &cluster.apps {
            self.apps(named, apps, network, groups);
        }
    }

    /// Writes a component out, unless it is a route: these share their VIPs.
    fn component<'r>(
        &mut self,
        named: &'r Named<Cluster>,
        name: &str,
        port: u16,
        component: &'r At<Component>,
        group: Option<&Group<'_>>,
    ) -> Option<Routed<'r>> {
        let At { place, value } = component;
        if named.value.without_nodes {
            let words = format!("missing; the backends of {name} are the nodes of a group");
            self.findings.add(&missing(&named.place, "nodes"), words);
        }
        let rules = Rules {
            allow: value.allow.as_ref(),
            deny: value.deny.as_ref(),
        };
        let vip = Vip::read(value.vip.as_ref(), rules, &named.value);
        self.is_whole &= vip.is_some();
        let publish = publish(name, value, self.findings)?;
        if let Publish::Route = publish {
            self.check_routed(named, name, component);
            return Some(Routed {
                at: component,
                vip: vip?,
            });
        }
        if let Some(At { place, .. }) = &value.hostname {
            let words = "hostname is for a component with publish: Route";
            self.findings.add(place, words);
        }
        let node_port = self.node_port(component)?;
        let (vip, group) = (vip?, group?);
        let part = Part {
            suffix: name.to_owned(),
            place,
            vip: &vip,
            port: match publish {
                Publish::NodePort => node_port,
                Publish::LoadBalancer | Publish::Route => port,
            },
            asks: Asks::Anything,
            group,
            node_port,
            selection: &value.selection,
            care: &value.care,
            proxy_protocol: None,
        };
        self.part(named, &part, group.network);
        None
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
    fn apps(
        &mut self,
        named: &Named<Cluster>,
        at: &At<Apps>,
        network: Option<&At<String>>,
        groups: &Groups<'_>,
    ) {
        let At { place, value: apps } = at;
        let group = apps.nodes.as_ref();
        let group = group.and_then(|nodes| groups.find(nodes, self.findings));
        let rules = Rules {
            allow: apps.allow.as_ref(),
            deny: apps.deny.as_ref(),
        };
        let vip = Vip::read(apps.vip.as_ref(), rules, &named.value);
        self.is_whole &= vip.is_some();
        for (what, listen, node_port) in [("https", HTTPS, &apps.https), ("http", HTTP, &apps.http)]
        {
            let node_port = self.port(node_port.as_ref());
            if let (Some(vip), Some(group), Some(node_port)) = (&vip, group, node_port) {
                let network = if group.without_network {
                    network
                } else {
                    group.network
                };
                let part = Part {
                    suffix: format!("apps-{what}"),
                    place,
                    vip,
                    port: listen,
                    asks: Asks::Anything,
                    group,
                    node_port,
                    selection: &apps.selection,
                    care: &apps.care,
                    proxy_protocol: apps.proxy_protocol.as_ref(),
                };
                self.part(named, &part, network);
            }
        }
    }

    pub(super) fn part(
        &mut self,
        named: &Named<Cluster>,
        part: &Part<'_>,
        network: Option<&At<String>>,
    ) {
        let name = format!("{}-{}", named.name, part.suffix);
        let at = |place: &Location, value: String| At {
            place: place.clone(),
            value,
        };
        let from = format!(
            "from {} in {}",
            part.place.key,
            self.findings.file_and_line(part.place)
        );
        let domain = named.value.base_domain.as_ref();
        let domain = domain.map_or_else(String::new, |at| format!(", {}", at.value));
        self.origins.pools.insert(name.clone(), from.clone());
        self.origins
            .services
            .insert(name.clone(), format!("{from}{domain}"));
        let backends = part.group.backends(part.node_port, part.place);
        let backends = self.bounded(backends);
        let keys = RawPool {
            network: network.map(|network| at(part.place, network.value.clone())),
            selection: part.selection.clone(),
            care: part.care.clone(),
            proxy_protocol: part.proxy_protocol.cloned(),
            ..RawPool::default()
        };
        let listen = Listen {
            address: part.vip.address,
            port: part.port,
            protocol: Protocol::Tcp,
        };
        let service = RawService {
            network: named.value.network.clone(),
            allow: part.vip.rules.allow.cloned(),
            deny: part.vip.rules.deny.cloned(),
            life: named.value.life.clone(),
            listen: List {
                elements: vec![At {
                    place: part.vip.place.clone(),
                    value: listen,
                }],
                whole: true,
            },
            ..part.asks.lead_to(at(part.place, name.clone()))
        };
        let place = part.place.clone();
        let pool = Named {
            name: name.clone(),
            place: place.clone(),
            value: LiteralPool {
                keys,
                backends,
                discovered: Vec::new(),
            },
        };
        self.pools.push(pool, self.findings);
        let value = service;
        self.services
            .push(Named { name, place, value }, self.findings);
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
