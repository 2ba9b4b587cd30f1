//! One pool and one service of a cluster.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Expansion, nodes::Group, route::Asks};
use crate::config::{
    discover::{ObjectName, PortOfService},
    list::{List, Named},
    listen::{Listen, Protocol},
    model::{ProxyProtocol, any},
    place::{At, Location},
    schema::{
        AnyOrPrefixes, Care, Cluster, LiteralPool, RawBackend, RawControlPlane, RawDiscover,
        RawDiscovered, RawPool, RawService, Selection,
    },
};

/// What one pool and one service are made of.
pub(super) struct Part<'r> {
    /// Behind the name of the cluster.
    pub(super) suffix: String,
    /// The component that it is for.
    pub(super) place: &'r Location,
    pub(super) vip: &'r Vip<'r>,
    pub(super) port: u16,
    pub(super) protocols: &'r [Protocol],
    pub(super) asks: Asks<'r>,
    pub(super) backends: Backends<'r>,
    pub(super) selection: &'r Selection,
    pub(super) care: &'r Care,
    pub(super) proxy_protocol: Option<&'r At<Option<ProxyProtocol>>>,
}

/// Where the backends of a part are.
#[derive(Clone)]
pub(super) enum Backends<'r> {
    /// At a port of the nodes of a group.
    Nodes {
        group: &'r Group<'r>,
        /// That of the group, or else that of the cluster.
        network: Option<&'r At<String>>,
        port: u16,
    },
    /// At a port of a Service.
    Service {
        of: &'r RawControlPlane,
        service: ObjectName,
        port: PortOfService,
    },
}

impl Backends<'_> {
    fn network(&self) -> Option<&At<String>> {
        match self {
            Self::Nodes { network, .. } => *network,
            Self::Service { of, .. } => of.network.as_ref(),
        }
    }

    /// Those that are literal, and those that are discovered, both blamed on `place`.
    fn members(&self, place: &Location) -> (List<At<RawBackend>>, Vec<At<RawDiscovered>>) {
        let at = |value| At {
            place: place.clone(),
            value,
        };
        match self {
            Self::Nodes { group, port, .. } => (group.backends(*port, place), Vec::new()),
            Self::Service { of, service, port } => {
                let discover = RawDiscover {
                    cluster: of.cluster.clone(),
                    service: Some(At {
                        place: place.clone(),
                        value: service.clone(),
                    }),
                    port: Some(At {
                        place: place.clone(),
                        value: port.clone(),
                    }),
                };
                let discovered = RawDiscovered {
                    discover: Some(At {
                        place: place.clone(),
                        value: discover,
                    }),
                    ..RawDiscovered::default()
                };
                let none = List {
                    elements: Vec::new(),
                    whole: true,
                };
                (none, vec![at(discovered)])
            }
        }
    }
}

/// A VIP that could be read, and the clients that may use it.
pub(super) struct Vip<'r> {
    pub(super) address: IpAddr,
    place: &'r Location,
    rules: Rules<'r>,
}

/// The clients that may use a VIP, and those that may not.
#[derive(Clone, Copy)]
pub(super) struct Rules<'r> {
    pub(super) allow: Option<&'r At<AnyOrPrefixes>>,
    pub(super) deny: Option<&'r At<AnyOrPrefixes>>,
}

impl<'r> Vip<'r> {
    /// The VIP of a part, with its own rules or else those of the cluster.
    pub(super) fn read(
        raw: Option<&'r At<IpAddr>>,
        rules: Rules<'r>,
        cluster: &'r Cluster,
    ) -> Option<Self> {
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
    pub(super) fn part(&mut self, named: &Named<Cluster>, part: &Part<'_>) {
        let name = format!("{}-{}", named.name, part.suffix);
        self.note_origin(named, part, &name);
        let place = part.place.clone();
        let (backends, discovered) = part.backends.members(&place);
        let backends = self.bounded(backends);
        let keys = RawPool {
            network: part.backends.network().map(|network| At {
                place: place.clone(),
                value: network.value.clone(),
            }),
            selection: part.selection.clone(),
            care: part.care.clone(),
            proxy_protocol: part.proxy_protocol.cloned(),
            ..RawPool::default()
        };
        let pool = Named {
            name: name.clone(),
            place: place.clone(),
            value: LiteralPool {
                keys,
                backends,
                discovered,
            },
        };
        self.pools.push(pool, self.findings);
        let service = Named {
            value: service(named, part, &name),
            name,
            place,
        };
        self.services.push(service, self.findings);
    }

    fn note_origin(&mut self, named: &Named<Cluster>, part: &Part<'_>, name: &str) {
        let from = format!(
            "from {} in {}",
            part.place.key,
            self.findings.file_and_line(part.place)
        );
        let domain = named.value.base_domain.as_ref();
        let domain = domain.map_or_else(String::new, |at| format!(", {}", at.value));
        self.origins.files.insert(name.to_owned(), part.place.file);
        self.origins.pools.insert(name.to_owned(), from.clone());
        self.origins
            .services
            .insert(name.to_owned(), format!("{from}{domain}"));
    }
}

/// The service of a part, whose pool has the same `name`.
fn service(named: &Named<Cluster>, part: &Part<'_>, name: &str) -> RawService {
    let listen = part.protocols.iter().map(|protocol| At {
        place: part.vip.place.clone(),
        value: Listen {
            address: part.vip.address,
            port: part.port,
            protocol: *protocol,
        },
    });
    let pool = At {
        place: part.place.clone(),
        value: name.to_owned(),
    };
    RawService {
        network: named.value.network.clone(),
        allow: part.vip.rules.allow.cloned(),
        deny: part.vip.rules.deny.cloned(),
        life: named.value.life.clone(),
        listen: List {
            elements: listen.collect(),
            whole: true,
        },
        ..part.asks.lead_to(pool)
    }
}
