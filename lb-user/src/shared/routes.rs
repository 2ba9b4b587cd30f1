//! Where who asks for a name goes: the routes of a service. Pure.
//!
//! The most exact name decides. A route that is for some protocols only is not there for a client that
//! offers none of them: a less exact name may take it. A name that is not for a client is denied to it,
//! whatever a less exact one says: no tenant gets at a name of another by a wildcard.

use std::{net::Ipv4Addr, sync::Arc};

use ipnet::Ipv4Net;

use super::{
    hello::{Alpn, ServerName},
    names::Names,
};
use crate::config::{NameRoute, Otherwise, To};

/// The routes of a service.
#[derive(Debug)]
pub struct Routes(Names<Arc<Route>>);

#[derive(Debug)]
struct Route {
    alpn: Vec<String>,
    from: Vec<Ipv4Net>,
    to: To,
}

/// Where somebody goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way<'r> {
    /// To this pool.
    Pool(&'r str),
    /// To the same place by https.
    Https(&'r ServerName),
    /// Nowhere: the name is not for him.
    Denied,
    /// Nowhere, and he is told so.
    Nothing,
    /// Nowhere, and nothing is said.
    Close,
}

impl Routes {
    /// The routes of a valid configuration.
    pub fn new(routes: &[NameRoute]) -> Self {
        let mut names = Names::default();
        for route in routes {
            let NameRoute {
                names: patterns,
                expressions,
                alpn,
                from,
                to,
            } = route;
            let route = Arc::new(Route {
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
        }
        Self(names)
    }

    /// Where `client` goes, which asks for `name`, or for none, and offers `alpn`: by a route, or else
    /// as `otherwise` says.
    pub fn way<'r>(
        &'r self,
        name: Option<&'r ServerName>,
        alpn: &Alpn,
        client: Ipv4Addr,
        otherwise: &'r Otherwise,
    ) -> Way<'r> {
        let routed = name.and_then(|name| self.find(name, alpn, client));
        routed.unwrap_or(match otherwise {
            Otherwise::Alert => Way::Nothing,
            Otherwise::Close => Way::Close,
            Otherwise::Pool(pool) => Way::Pool(pool),
        })
    }

    /// The same; none: no route is for that name.
    fn find<'r>(&'r self, name: &'r ServerName, alpn: &Alpn, client: Ipv4Addr) -> Option<Way<'r>> {
        for routes in self.0.of(name) {
            let mut spoken = routes.iter().filter(|route| route.speaks(alpn)).peekable();
            if spoken.peek().is_none() {
                continue;
            }
            let found = spoken.find(|route| route.is_for(client));
            return Some(found.map_or(Way::Denied, |route| match &route.to {
                To::Pool(pool) => Way::Pool(pool),
                To::Https => Way::Https(name),
            }));
        }
        None
    }
}

impl Route {
    fn speaks(&self, alpn: &Alpn) -> bool {
        let mut protocols = self.alpn.iter();
        self.alpn.is_empty() || protocols.any(|protocol| alpn.offers(protocol.as_bytes()))
    }

    fn is_for(&self, client: Ipv4Addr) -> bool {
        self.from.is_empty() || self.from.iter().any(|prefix| prefix.contains(&client))
    }
}

#[cfg(test)]
mod tests;
