//! Components behind one ingress shard, which may share a VIP and be distinguished by name.

use std::iter;

use super::{
    Expansion,
    cluster::{Hub, missing},
    part::{Backends, Part, Vip},
    preset::{HTTP, HTTPS},
};
use crate::config::{
    discover::PortOfService,
    list::{List, Named},
    listen::Protocol::Tcp,
    names,
    place::{At, quote},
    schema::{Cluster, Component, RawHttp, RawNameRoute, RawService, RawSni, Routes},
};

/// What clients of a service have to request.
#[derive(Clone, Copy)]
pub(super) enum Asks<'r> {
    /// It is not looked at.
    Anything,
    /// One of these names in the ClientHello.
    Sni(&'r [At<String>]),
    /// One of these names in the Host of each request.
    Host(&'r [At<String>]),
}

impl Asks<'_> {
    /// A service with nothing but the key that leads to the pool: `pool`, `sni` or `http`.
    pub(super) fn lead_to(self, pool: At<String>) -> RawService {
        let mut service = RawService::default();
        match self {
            Self::Anything => service.pool = Some(pool),
            Self::Sni(names) => {
                service.sni = Some(At {
                    place: pool.place.clone(),
                    value: RawSni {
                        routes: only(names, pool),
                        ..RawSni::default()
                    },
                });
            }
            Self::Host(names) => {
                service.http = Some(At {
                    place: pool.place.clone(),
                    value: RawHttp {
                        routes: only(names, pool),
                        ..RawHttp::default()
                    },
                });
            }
        }
        service
    }
}

/// These names lead to the pool. A client with another name is refused: that is the default.
fn only(names: &[At<String>], pool: At<String>) -> List<At<RawNameRoute>> {
    let place = pool.place.clone();
    let value = RawNameRoute {
        names: whole(names.to_vec()),
        regex: whole(Vec::new()),
        cluster_ids: whole(Vec::new()),
        alpn: whole(Vec::new()),
        pool: Some(pool),
        ..RawNameRoute::default()
    };
    whole(vec![At { place, value }])
}

fn whole<T>(elements: Vec<T>) -> List<T> {
    List {
        elements,
        whole: true,
    }
}

/// A component that is published as a route.
pub(super) struct Routed<'r> {
    pub(super) at: &'r At<Component>,
    pub(super) vip: Vip<'r>,
}

/// A VIP of routes.
struct Shared<'r> {
    /// The component that has it first.
    first: &'r Routed<'r>,
    others: Vec<&'r Routed<'r>>,
}

impl<'r> Shared<'r> {
    fn components(&self) -> impl Iterator<Item = &'r At<Component>> {
        let others = self.others.iter();
        iter::once(self.first.at).chain(others.map(|routed| routed.at))
    }
}

impl Expansion<'_> {
    pub(super) fn check_routed(
        &mut self,
        named: &Named<Cluster>,
        name: &str,
        component: &At<Component>,
    ) {
        if named.value.without_routes {
            let place = missing(&named.place, "routes");
            let words = format!("missing; {name} has publish: Route, which needs them");
            self.findings.add(&place, words);
        }
        let node_port = component.value.node_port.as_ref();
        if let Some(at) = node_port.filter(|at| at.place.is_inside(&component.place)) {
            let words =
                "a component with publish: Route has the ports of routes; leave this key out";
            self.findings.add(&at.place, words);
        }
        let care = component.value.care.places();
        for place in care.filter(|place| place.is_inside(&component.place)) {
            let words = "a component with publish: Route has the checks and drains of routes; leave this key out";
            self.findings.add(place, words);
        }
        let selection = component.value.selection.places();
        for place in selection.filter(|place| place.is_inside(&component.place)) {
            let words =
                "a component with publish: Route has the backends of routes; leave this key out";
            self.findings.add(place, words);
        }
    }

    /// One pair of services for each VIP. With hostnames it leads to these alone: the shard behind it
    /// has other tenants' routes, too.
    pub(super) fn routes(
        &mut self,
        named: &Named<Cluster>,
        routed: &[Routed<'_>],
        hub: Hub<'_>,
        routes: &At<Routes>,
    ) {
        let [https, http] = self.shard(named, routed, hub, routes);
        for (number, shared) in (1..).zip(self.by_vip(routed)) {
            let (first, names) = (shared.first, self.names(&shared));
            let [sni, host] = match names.as_slice() {
                [] => [Asks::Anything; 2],
                names => [Asks::Sni(names), Asks::Host(names)],
            };
            let numbered = |what: &str| match number {
                1 => format!("routes-{what}"),
                _ => format!("routes-{what}-{number}"),
            };
            for (what, port, asks, backends) in
                [("https", HTTPS, sni, &https), ("http", HTTP, host, &http)]
            {
                if let Some(backends) = backends {
                    let part = Part {
                        suffix: numbered(what),
                        place: &first.at.place,
                        vip: &first.vip,
                        port,
                        protocols: &[Tcp],
                        asks,
                        backends: backends.clone(),
                        selection: &routes.value.selection,
                        care: &routes.value.care,
                        proxy_protocol: routes.value.proxy_protocol.as_ref(),
                    };
                    self.part(named, &part);
                }
            }
        }
    }

    /// Where the backends for 443 and for 80 are.
    fn shard<'r>(
        &mut self,
        named: &Named<Cluster>,
        routed: &[Routed<'_>],
        hub: Hub<'r>,
        routes: &At<Routes>,
    ) -> [Option<Backends<'r>>; 2] {
        let At { place, value } = routes;
        let written = [&value.https, &value.http];
        if let Some(service) = &value.service {
            for at in written.into_iter().flatten() {
                let words = "`service` has the ports; leave this key out";
                self.findings.add(&at.place, words);
            }
            if named.value.discover.is_none() {
                let words = "the cluster has no `discover`, which says whose Service it is";
                self.findings.add(&service.place, words);
            }
            return ["https", "http"].map(|port| {
                Some(Backends::Service {
                    of: hub.discover?,
                    service: service.value.clone(),
                    port: PortOfService::Name(port.to_owned()),
                })
            });
        }
        if value.without_https {
            let words = "missing; expected the NodePort of the shard, or `service`";
            self.findings.add(&missing(place, "https"), words);
        }
        if !routed.is_empty() {
            self.check_nodes(named, "routes");
        }
        written.map(|port| {
            let port = self.port(port.as_ref())?;
            let group = hub.group?;
            Some(Backends::Nodes {
                group,
                network: group.network,
                port,
            })
        })
    }

    /// The VIPs, in the order of the components that have them first.
    fn by_vip<'r>(&mut self, routed: &'r [Routed<'r>]) -> Vec<Shared<'r>> {
        let mut vips: Vec<Shared<'r>> = Vec::new();
        for next in routed {
            let same = |shared: &&mut Shared<'_>| shared.first.vip.address == next.vip.address;
            match vips.iter_mut().find(same) {
                Some(shared) => {
                    self.check_same_rules(shared.first, next);
                    shared.others.push(next);
                }
                None => vips.push(Shared {
                    first: next,
                    others: Vec::new(),
                }),
            }
        }
        vips
    }

    /// Which clients may use a VIP is decided before the requested name is known.
    fn check_same_rules(&mut self, first: &Routed<'_>, next: &Routed<'_>) {
        if first.vip.rules() != next.vip.rules() {
            let words = format!(
                "allow or deny is not that of {} in {}, which has the same VIP; expected the same clients",
                first.at.place.key,
                self.findings.line(&first.at.place, &next.at.place)
            );
            self.findings.add(&next.at.place, words);
        }
    }

    /// The hostnames of a VIP; none if no component has one.
    fn names(&mut self, shared: &Shared<'_>) -> Vec<At<String>> {
        let mut components = shared.components();
        if let Some(with) = components.find(|at| !at.value.without_hostname) {
            self.check_all_named(shared, with);
        }
        let mut names: Vec<At<String>> = Vec::new();
        let written = shared.components();
        for name in written.filter_map(|at| at.value.hostname.as_ref()) {
            match names.iter().find(|first| first.value == name.value) {
                Some(first) => {
                    let words = format!(
                        "{} is {} in {} already, at the same VIP",
                        quote(&name.value),
                        first.place.key,
                        self.findings.line(&first.place, &name.place)
                    );
                    self.findings.add(&name.place, words);
                }
                // What is no name is reported already.
                None if names::is_domain(&name.value) => names.push(name.clone()),
                None => {}
            }
        }
        names
    }

    /// Where other components have names, no client would reach one without a name.
    fn check_all_named(&mut self, shared: &Shared<'_>, with: &At<Component>) {
        let components = shared.components();
        for without in components.filter(|at| at.value.without_hostname) {
            let words = format!(
                "missing; {} in {} has a hostname, and the same VIP",
                with.place.key,
                self.findings.line(&with.place, &without.place)
            );
            let place = missing(&without.place, "hostname");
            self.findings.add(&place, words);
        }
    }
}
