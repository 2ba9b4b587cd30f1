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
use crate::config::{NameRoute, To};

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
pub enum Found<'r> {
    /// There.
    To(&'r To),
    /// The name is not for him.
    Denied,
    /// Nowhere.
    Nothing,
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

    /// Where `client` goes, which asks for `name` and offers `alpn`.
    pub fn find(&self, name: &ServerName, alpn: &Alpn, client: Ipv4Addr) -> Found<'_> {
        for routes in self.0.of(name) {
            let mut spoken = routes.iter().filter(|route| route.speaks(alpn)).peekable();
            if spoken.peek().is_none() {
                continue;
            }
            let found = spoken.find(|route| route.is_for(client));
            return found.map_or(Found::Denied, |route| Found::To(&route.to));
        }
        Found::Nothing
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
