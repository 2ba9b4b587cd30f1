//! Which names of shared VIPs the data plane sends to a pool by itself. Pure.
//!
//! It knows a name, or all with up to eight labels in front of it. Where a name leads by what the client is, it has a pool for each
//! kind of clients: see [`clients`]. What the data plane cannot say is in the map as the process's, so that no less exact name
//! takes it.

use std::collections::{BTreeMap, HashMap};

use ipnet::IpNet;
use lb_common::maps::{
    MAX_SERVER_NAMES,
    hello::MAX_HELLO_BYTES,
    server_name::{
        BY_CLASS, BY_CLIENT, BY_PROTOCOL, NameKey, PROTOCOL, PoolRoute, UNDER, WITH_HEADER, key,
    },
};

use self::clients::{Client, Clients};
use crate::{
    config::{
        Config, Ech, LateBinding, NameRoute as Route, Pool, ProxyProtocol, Service, Sni,
        SynCookies, Target, To,
    },
    model::{
        registry::{Ids, Kind},
        rules::Rules,
    },
};

mod clients;

/// What the data plane knows of a service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KnownNames {
    pub(super) routes: HashMap<NameKey, PoolRoute>,
    /// The classes of clients, by their prefixes.
    pub(super) classes: Rules,
}

impl KnownNames {
    fn add(&mut self, key: Option<NameKey>, pool: u32, flags: u16) {
        if let Some(key) = key {
            let mark = key.mark();
            self.routes.insert(key, PoolRoute { pool, flags, mark });
        }
    }

    /// Adds what tells the clients of a service with this id apart, where a name needs it.
    fn add_kinds(&mut self, clients: &Clients<'_>, id: u16) {
        let is_by = |flag| {
            let mut routes = self.routes.values();
            routes.any(|route| route.pool == BY_CLIENT && route.flags & flag != 0)
        };
        let by_protocol = is_by(BY_PROTOCOL);
        if is_by(BY_CLASS) {
            self.classes = clients.rules();
        }
        for (protocol, number) in clients.protocols().filter(|_| by_protocol) {
            self.add(key(id, protocol.as_bytes(), PROTOCOL), number, 0);
        }
    }
}

/// The names of a service with this id, whose pools have ids, or more of them than there is room for; none if the process has them
/// all.
pub(super) fn names(service: &Service, id: u16, config: &Config, ids: &Ids) -> Option<KnownNames> {
    let Target::Sni(sni) = &service.target else {
        return None;
    };
    let network = config.network(&service.network)?;
    if network.host || !is_bound(sni) {
        return None;
    }
    let patterns = Patterns::of(&sni.routes);
    let chains: Vec<(Pattern<'_>, Chain<'_>)> = patterns.chains().collect();
    let clients = Clients::of(chains.iter().flat_map(|(_, chain)| &chain.0).flatten());
    let mut names = KnownNames::default();
    for (pattern, chain) in &chains {
        let of = |kind| key(id, pattern.name.as_bytes(), kind | pattern.kind());
        let pool = |client: &Client<'_>| pool(chain.route(client)?, config, ids);
        let (by_class, by_protocol) = (chain.is_by_class(), chain.is_by_protocol());
        if !by_class && !by_protocol {
            let (pool, flags) = pool(&Client::default()).unwrap_or_default();
            names.add(of(0), pool, flags);
        } else if let Some(kinds) = clients.kinds(by_class, by_protocol) {
            let by = [(by_class, BY_CLASS), (by_protocol, BY_PROTOCOL)];
            let by = by.into_iter().filter(|(is_by, _)| *is_by);
            names.add(of(0), BY_CLIENT, by.fold(0, |all, (_, flag)| all | flag));
            for client in kinds.take(MAX_SERVER_NAMES as usize + 1) {
                if let Some((pool, flags)) = pool(&client) {
                    names.add(of(client.number), pool, flags);
                }
            }
        } else {
            names.add(of(0), 0, 0);
        }
        if names.routes.len() > MAX_SERVER_NAMES as usize {
            break;
        }
    }
    names.add_kinds(&clients, id);
    Some(names)
}

/// A name, or what names are under.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pattern<'r> {
    name: &'r str,
    is_under: bool,
}

impl<'r> Pattern<'r> {
    fn of(text: &'r str) -> Self {
        match text.strip_prefix("*.") {
            Some(name) => Self {
                name,
                is_under: true,
            },
            None => Self {
                name: text,
                is_under: false,
            },
        }
    }

    const fn kind(self) -> u32 {
        if self.is_under { UNDER } else { 0 }
    }

    /// The less exact ones that its names are under, the longest first.
    fn parents(self) -> impl Iterator<Item = Self> {
        let dots = self.name.match_indices('.');
        dots.filter_map(move |(dot, _)| {
            Some(Self {
                name: self.name.get(dot + 1..)?,
                is_under: true,
            })
        })
    }
}

/// The routes of each name.
struct Patterns<'r>(BTreeMap<Pattern<'r>, Vec<&'r Route>>);

impl<'r> Patterns<'r> {
    fn of(routes: &'r [Route]) -> Self {
        let mut patterns: BTreeMap<Pattern<'_>, Vec<&Route>> = BTreeMap::new();
        for route in routes {
            for name in &route.names {
                patterns.entry(Pattern::of(name)).or_default().push(route);
            }
        }
        Self(patterns)
    }

    fn chains(&self) -> impl Iterator<Item = (Pattern<'r>, Chain<'r>)> {
        let patterns = self.0.keys().copied();
        patterns.map(|pattern| (pattern, self.chain(pattern)))
    }

    fn chain(&self, pattern: Pattern<'r>) -> Chain<'r> {
        let mut chain = Vec::new();
        // The longest pattern is the first parent of a name that is under it.
        for pattern in [pattern].into_iter().chain(pattern.parents()) {
            let Some(routes) = self.0.get(&pattern) else {
                continue;
            };
            let for_all = |route: &&Route| route.from.is_empty() && route.alpn.is_empty();
            let reached = routes
                .iter()
                .position(for_all)
                .map_or(routes.len(), |at| at + 1);
            let reached: Vec<&Route> = routes.iter().copied().take(reached).collect();
            let is_for_any_protocol = reached.iter().any(|route| route.alpn.is_empty());
            chain.push(reached);
            if is_for_any_protocol {
                break;
            }
        }
        Chain(chain)
    }
}

/// The routes that clients of a name may take: its own, and behind them, as far as they are for some protocols only, those of what
/// it is under; without those behind one that all clients take.
struct Chain<'r>(Vec<Vec<&'r Route>>);

impl<'r> Chain<'r> {
    fn is_by_class(&self) -> bool {
        self.0.iter().flatten().any(|route| !route.from.is_empty())
    }

    fn is_by_protocol(&self) -> bool {
        self.0.iter().flatten().any(|route| !route.alpn.is_empty())
    }

    /// The route of a client: as that of [`crate::proxy::route`]. None where the process has to say it.
    fn route(&self, client: &Client<'_>) -> Option<&'r Route> {
        for routes in &self.0 {
            if !routes.iter().any(|route| is_for(route, client)) {
                return None;
            }
            let mut spoken = routes
                .iter()
                .filter(|route| speaks(route, client))
                .peekable();
            if spoken.peek().is_some() {
                return spoken.find(|route| is_for(route, client)).copied();
            }
        }
        None
    }
}

fn is_for(route: &Route, client: &Client<'_>) -> bool {
    let mut from = route.from.iter();
    let class = client.prefix.map(IpNet::V4);
    route.from.is_empty() || class.is_some_and(|class| from.any(|prefix| prefix.contains(&class)))
}

fn speaks(route: &Route, client: &Client<'_>) -> bool {
    let mut protocols = route.alpn.iter();
    route.alpn.is_empty() || protocols.any(|protocol| client.offers.contains(&&**protocol))
}

/// Whether the data plane may open connections of this service at all.
fn is_bound(sni: &Sni) -> bool {
    sni.late_binding == LateBinding::Always
        && sni.syn_cookies == SynCookies::Always
        && sni.proxies.is_empty()
        && sni.ech == Ech::Route
        && sni.max_hello >= MAX_HELLO_BYTES
}

/// The pool of a route, and how its backend is chosen.
fn pool(route: &Route, config: &Config, ids: &Ids) -> Option<(u32, u16)> {
    let To::Pool(name) = &route.to else {
        return None;
    };
    let pool = config.pool(name).filter(|pool| takes(pool))?;
    let flags = u16::try_from(pool.balance.flag()).ok()?;
    let header = match pool.proxy_protocol {
        Some(ProxyProtocol::V2) => WITH_HEADER,
        None => 0,
    };
    Some((ids.get(Kind::Pool, name)?, flags | header))
}

/// Whether the data plane can open connections to the backends of a pool, which are of IPv4.
const fn takes(pool: &Pool) -> bool {
    pool.source_timeout.is_none()
}

#[cfg(test)]
mod tests;
