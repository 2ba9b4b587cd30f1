//! Where a client that requests a name goes: the routes of a service. Pure.
//!
//! The most exact name decides. A route that is for some protocols only is not there for a client that offers
//! none of them: a less exact name may take it. A name that is not for a client is denied to it, whatever it
//! offers and whatever route a less exact one has: no tenant gets at a name of another by a wildcard.
//!
//! A client that requests no name takes the first route for such clients that is for it and its protocols.
//!
//! A client of a cluster, where the proxy in front may announce that, takes the first route for it in the
//! same way, before any name is looked at.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use lb_common::{client_hello::Alpn, server_name::ServerName};

use crate::config::{NameRoute, Otherwise, To, server_names::ServerNameMap};

/// The routes of a service.
#[derive(Debug)]
pub struct RouteTable {
    names: ServerNameMap<Arc<CompiledRoute>>,
    /// Of clients that request no name, in their order.
    no_name: Vec<Arc<CompiledRoute>>,
    /// Of clusters, in their order.
    clusters: HashMap<Vec<u8>, Vec<Arc<CompiledRoute>>>,
}

#[derive(Debug)]
struct CompiledRoute {
    /// Proxies that may announce clients of its clusters.
    proxies: Vec<IpNet>,
    alpn: Vec<String>,
    from: Vec<IpNet>,
    to: To,
}

/// Where a client goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTarget<'r> {
    /// To this pool.
    Pool(&'r str),
    /// To the same place by https.
    Https(&'r ServerName),
    /// Nowhere: the name is not for this client.
    Denied,
    /// Nowhere, and the client gets a TLS alert or an HTTP status.
    Nothing,
    /// Nowhere, and the connection is closed without an answer.
    Close,
}

impl RouteTable {
    /// The routes of a valid configuration.
    pub fn new(routes: &[NameRoute]) -> Self {
        let (mut names, mut nameless) = (ServerNameMap::default(), Vec::new());
        let mut of_clusters: HashMap<Vec<u8>, Vec<Arc<CompiledRoute>>> = HashMap::new();
        for route in routes {
            let NameRoute {
                names: patterns,
                expressions,
                no_name,
                clusters,
                proxies,
                alpn,
                from,
                to,
            } = route;
            let route = Arc::new(CompiledRoute {
                proxies: proxies.clone(),
                alpn: alpn.clone(),
                from: from.clone(),
                to: to.clone(),
            });
            for pattern in patterns {
                names.add(pattern, Arc::clone(&route));
            }
            for expression in expressions {
                // What the configuration was checked with.
                let _valid = names.add_expression(expression, Arc::clone(&route));
            }
            for cluster in clusters {
                let routes = of_clusters.entry(cluster.clone().into_bytes());
                routes.or_default().push(Arc::clone(&route));
            }
            if *no_name {
                nameless.push(route);
            }
        }
        Self {
            names,
            no_name: nameless,
            clusters: of_clusters,
        }
    }

    /// Where `client` goes, which offers `alpn`, if `proxy` announces that it is of this cluster; none: as if
    /// it were of none. Denied to proxies that may not announce it, whatever the client requests.
    pub fn of_cluster(
        &self,
        cluster: &[u8],
        proxy: IpAddr,
        alpn: &Alpn<'_>,
        client: IpAddr,
    ) -> Option<RouteTarget<'_>> {
        let routes = self.clusters.get(cluster)?;
        if !routes.iter().any(|route| route.hears(proxy)) {
            return Some(RouteTarget::Denied);
        }
        let heard = routes.iter().filter(|route| route.hears(proxy));
        first(heard, alpn, client)?.way(None)
    }

    /// Where `client` goes, which requests `name`, or none, and offers `alpn`: by a route, or else by
    /// `otherwise`.
    pub fn way<'r>(
        &'r self,
        name: Option<&'r ServerName>,
        alpn: &Alpn<'_>,
        client: IpAddr,
        otherwise: &'r Otherwise,
    ) -> RouteTarget<'r> {
        let routed = self.find(name, alpn, client);
        routed.unwrap_or(match otherwise {
            Otherwise::Alert => RouteTarget::Nothing,
            Otherwise::Close => RouteTarget::Close,
            Otherwise::Pool(pool) => RouteTarget::Pool(pool),
        })
    }

    /// The same; none: no route is there for that.
    fn find<'r>(
        &'r self,
        name: Option<&'r ServerName>,
        alpn: &Alpn<'_>,
        client: IpAddr,
    ) -> Option<RouteTarget<'r>> {
        let Some(name) = name else {
            return first(self.no_name.iter(), alpn, client)?.way(None);
        };
        for routes in self.names.of(name) {
            if !routes.iter().any(|route| route.is_for(client)) {
                return Some(RouteTarget::Denied);
            }
            let mut spoken = routes.iter().filter(|route| route.speaks(alpn)).peekable();
            if spoken.peek().is_none() {
                continue;
            }
            let found = spoken.find(|route| route.is_for(client));
            return found.map_or(Some(RouteTarget::Denied), |route| route.way(Some(name)));
        }
        None
    }
}

/// The first of them that is for this client and its protocols.
fn first<'r>(
    mut routes: impl Iterator<Item = &'r Arc<CompiledRoute>>,
    alpn: &Alpn<'_>,
    client: IpAddr,
) -> Option<&'r CompiledRoute> {
    let found = routes.find(|route| route.speaks(alpn) && route.is_for(client))?;
    Some(found)
}

impl CompiledRoute {
    /// Where it leads a client that requests `name`; none: nowhere without one.
    fn way<'r>(&'r self, name: Option<&'r ServerName>) -> Option<RouteTarget<'r>> {
        match &self.to {
            To::Pool(pool) => Some(RouteTarget::Pool(pool)),
            To::Https => name.map(RouteTarget::Https),
        }
    }

    /// Whether this proxy may announce clients of its clusters.
    fn hears(&self, proxy: IpAddr) -> bool {
        self.proxies.is_empty() || self.proxies.iter().any(|prefix| prefix.contains(&proxy))
    }

    fn speaks(&self, alpn: &Alpn<'_>) -> bool {
        let mut protocols = self.alpn.iter();
        self.alpn.is_empty() || protocols.any(|protocol| alpn.offers(protocol.as_bytes()))
    }

    fn is_for(&self, client: IpAddr) -> bool {
        self.from.is_empty() || self.from.iter().any(|prefix| prefix.contains(&client))
    }
}

#[cfg(test)]
mod tests;
