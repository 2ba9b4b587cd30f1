//! The setup of the shared VIPs' threads: services, pools and SNAT addresses, as they are now.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

use super::{dial::candidates::ProxyPool, route::RouteTable};
use crate::{
    config::{self, Balance, Config, Ech, Otherwise, Target},
    model::{
        maglev::MaglevTable,
        names::backend_name,
        registry::{Ids, Kind},
        snat::{SnatSlot, snat_name},
    },
};

/// All that a front needs to know of the configuration.
#[derive(Debug, Default)]
pub struct ProxyConfig {
    /// Services by listener: the network's name, and the VIP and port there.
    pub services: BTreeMap<(String, SocketAddrV4), Arc<ProxyService>>,
    /// Pools by name.
    pub pools: BTreeMap<String, Arc<ProxyPool>>,
    /// The SNAT addresses of each network, by its name.
    pub sources: BTreeMap<String, Vec<Ipv4Addr>>,
    /// The same with their ports, of which some may be lent.
    pub slots: BTreeMap<String, Vec<SnatSlot>>,
}

/// A service whose connections are accepted in the cell.
#[derive(Debug)]
pub struct ProxyService {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: u16,
    /// That of its clients' network.
    pub network: u16,
    /// How long a connection may be idle; none: for ever.
    pub idle: Option<Duration>,
    /// The same, once one end has closed its side.
    pub half_closed: Duration,
    /// How long until an idle end is probed; none: never.
    pub keepalive: Option<Duration>,
    /// The most legs at a time; none: no limit.
    pub max_flows: Option<u32>,
    /// The same for all clients of its network.
    pub network_max_flows: Option<u32>,
    /// What it is routed by.
    pub routing: Routing,
}

/// What a service is routed by.
#[derive(Clone, Debug)]
pub enum Routing {
    /// By the ClientHello of each connection.
    Sni(Arc<SniRouting>),
    /// By the Host of each request.
    Http(Arc<HttpRouting>),
    /// By nothing: all go to this pool, whose backends get their clients' addresses.
    Pool(Arc<str>),
}

/// How a service is routed by the ClientHello.
#[derive(Debug)]
pub struct SniRouting {
    /// Name to pool.
    pub routes: RouteTable,
    /// What becomes of a client that requests no name.
    pub no_name: Otherwise,
    /// What becomes of one whose name goes nowhere.
    pub no_match: Otherwise,
    /// What becomes of a hello with an encrypted one in it.
    pub ech: Ech,
    /// How long a client may take.
    pub timeout: Duration,
    /// The most bytes of a hello.
    pub max_bytes: usize,
    /// Where proxies connect from that announce their clients.
    pub proxies: Vec<IpNet>,
}

/// How a service is routed by the Host of each request.
#[derive(Debug)]
pub struct HttpRouting {
    /// Name to pool.
    pub routes: RouteTable,
    /// What becomes of a Host that goes nowhere.
    pub no_match: Otherwise,
    /// Which backend of a pool gets a request.
    pub balance: Balance,
    /// How long a client may take for the head of a request.
    pub timeout: Duration,
    /// How long nothing may come of the body of one.
    pub body_timeout: Duration,
    /// How long a backend may take to begin its answer, and a client to read more of it.
    pub response_timeout: Duration,
    /// The most bytes of such a head.
    pub max_bytes: usize,
}

impl Routing {
    /// That of a service whose connections are accepted in the cell.
    fn new(target: &Target) -> Self {
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        match target {
            Target::Pool(pool) => Self::Pool(pool.as_str().into()),
            Target::Sni(sni) => Self::Sni(Arc::new(SniRouting {
                routes: RouteTable::new(&sni.routes),
                no_name: sni.no_name.clone(),
                no_match: sni.no_match.clone(),
                ech: sni.ech,
                timeout: sni.hello_timeout,
                max_bytes: size(sni.max_hello),
                proxies: sni.proxies.clone(),
            })),
            Target::Http(http) => Self::Http(Arc::new(HttpRouting {
                routes: RouteTable::new(&http.routes),
                no_match: http.no_match.clone(),
                balance: http.balance,
                timeout: http.header_timeout,
                body_timeout: http.body_timeout,
                response_timeout: http.response_timeout,
                max_bytes: size(http.max_header),
            })),
        }
    }
}

impl SniRouting {
    /// Whether a peer that connects from there is a proxy, which first announces its client.
    pub(super) fn is_proxy(&self, from: Ipv4Addr) -> bool {
        self.proxies
            .iter()
            .any(|prefix| prefix.contains(&IpAddr::V4(from)))
    }
}

impl ProxyConfig {
    /// The setup of `config`; `ids` has its names, and `tables` are the Maglev tables of its pools by id.
    pub fn new(config: &Config, ids: &Ids, tables: &BTreeMap<u32, MaglevTable>) -> Self {
        let mut setup = Self::default();
        for network in &config.networks {
            let sources = network.snat.iter().filter_map(|snat| v4(snat.address));
            let slots = network.snat.iter().filter_map(|snat| {
                let id = ids.get(Kind::Snat, &snat_name(&network.name, snat))?;
                let slot = u16::try_from(id).ok()?.checked_sub(1)?;
                v4(snat.address)?;
                Some(SnatSlot::new(slot, *snat, ids))
            });
            setup.slots.insert(network.name.clone(), slots.collect());
            setup
                .sources
                .insert(network.name.clone(), sources.collect());
        }
        for service in &config.services {
            if !config.is_of_cell(service) {
                continue;
            }
            setup.add_service(service, config, ids);
            for pool in service.target.pools() {
                if let Some(pool) = config.pool(pool) {
                    setup.add_pool(pool, ids, tables);
                }
            }
        }
        setup
    }

    /// Keeps what was there `before` and is not in it.
    pub(super) fn keep(&mut self, before: &Self) {
        for (listener, service) in &before.services {
            let services = self.services.entry(listener.clone());
            services.or_insert_with(|| Arc::clone(service));
        }
        for (name, pool) in &before.pools {
            let pools = self.pools.entry(name.clone());
            pools.or_insert_with(|| pool.clone());
        }
    }

    /// Goes on with the turns that clients have taken `before`.
    pub(super) fn take_turns(&mut self, before: &Self) {
        for (name, pool) in &mut self.pools {
            // What was kept of before has them already.
            if let (Some(pool), Some(before)) = (Arc::get_mut(pool), before.pools.get(name)) {
                pool.take_turns(before);
            }
        }
    }

    /// Whether a backend of `network` is at that address.
    pub(super) fn dials(&self, network: &str, address: SocketAddrV4) -> bool {
        let mut pools = self.pools.values();
        pools.any(|pool| pool.network == network && pool.is_at(address))
    }

    /// How many networks have clients of shared VIPs.
    pub(super) fn client_networks(&self) -> usize {
        let networks = self.services.keys().map(|(network, _)| network);
        networks.collect::<BTreeSet<_>>().len()
    }

    /// The shared VIPs of a network.
    pub fn vips(&self, network: &str) -> BTreeSet<SocketAddrV4> {
        let here = self.services.keys().filter(|(of, _)| of == network);
        here.map(|(_, vip)| *vip).collect()
    }

    fn add_service(&mut self, service: &config::Service, config: &Config, ids: &Ids) {
        let id = |kind, name: &str| {
            let id = ids.get(kind, name).unwrap_or_default();
            u16::try_from(id).unwrap_or_default()
        };
        let network = config.network(&service.network);
        let shared = Arc::new(ProxyService {
            name: service.name.clone(),
            id: id(Kind::Service, &service.name),
            network: id(Kind::Network, &service.network),
            idle: service.idle_timeout,
            half_closed: config.timeouts.half_closed,
            keepalive: service.keepalive,
            max_flows: service.max_flows,
            network_max_flows: network.and_then(|network| network.max_flows),
            routing: Routing::new(&service.target),
        });
        for listen in &service.listen {
            if let Some(address) = v4(listen.address) {
                let listener = SocketAddrV4::new(address, listen.port);
                let key = (service.network.clone(), listener);
                self.services.insert(key, Arc::clone(&shared));
            }
        }
    }

    fn add_pool(&mut self, pool: &config::Pool, ids: &Ids, tables: &BTreeMap<u32, MaglevTable>) {
        let id = ids.table(&pool.name).unwrap_or_default();
        let table = tables.get(&id).cloned().unwrap_or_default();
        let backends = pool.backends.iter().filter_map(|backend| {
            let id = ids.get(Kind::Backend, &backend_name(pool, backend))?;
            Some((id, SocketAddrV4::new(v4(backend.address)?, backend.port)))
        });
        let network_id = ids.get(Kind::Network, &pool.network).unwrap_or_default();
        let pooled = ProxyPool::new(
            pool.network.clone(),
            u16::try_from(network_id).unwrap_or_default(),
            table,
            backends.collect(),
            pool.proxy_protocol,
        )
        .balanced(pool.balance)
        .limited(pool.max_connections.map(u32::from))
        .remembering(
            ids.get(Kind::Pool, &pool.name).unwrap_or_default(),
            pool.source_timeout_seconds(),
        );
        self.pools.insert(pool.name.clone(), Arc::new(pooled));
    }
}

/// An address as one of IPv4, which is all that a client or backend in a cell has: the configuration refuses
/// others there.
const fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{NameRoute, To};

    /// Routes for these names; one that goes nowhere else goes to https. The last element is where clients
    /// may come from.
    pub(crate) fn routes(routes: &[(&str, Option<&str>, &str)]) -> RouteTable {
        let routes = routes.iter().map(|(name, pool, from)| NameRoute {
            names: vec![(*name).to_owned()],
            expressions: Vec::new(),
            no_name: false,
            clusters: Vec::new(),
            proxies: Vec::new(),
            alpn: Vec::new(),
            from: from.parse().into_iter().collect(),
            to: pool.map_or(To::Https, |pool| To::Pool(pool.to_owned())),
        });
        RouteTable::new(&routes.collect::<Vec<_>>())
    }

    /// A service of the network 3 with these budgets.
    pub(crate) fn service(max_flows: Option<u32>, network_max_flows: Option<u32>) -> ProxyService {
        ProxyService {
            name: "s".to_owned(),
            id: 5,
            network: 3,
            idle: None,
            half_closed: Duration::from_secs(1),
            keepalive: None,
            max_flows,
            network_max_flows,
            routing: Routing::Sni(Arc::new(SniRouting {
                routes: RouteTable::new(&[]),
                no_name: Otherwise::Alert,
                no_match: Otherwise::Alert,
                ech: Ech::Route,
                timeout: Duration::from_secs(1),
                max_bytes: 1 << 16,
                proxies: Vec::new(),
            })),
        }
    }
}
