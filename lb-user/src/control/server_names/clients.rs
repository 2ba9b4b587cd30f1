//! The kinds of clients that the routes of a service tell apart: by the class of their address, and by the protocols that they
//! offer.
//!
//! There is a class for each prefix that a route is for, to which the clients belong that are in no longer one; and that of all
//! others. Of protocols those count that a route is for.

use std::collections::BTreeSet;

use ipnet::{IpNet, Ipv4Net};
use lb_common::{
    client_hello::is_grease,
    maps::server_name::{MAX_NAME_BYTES, MAX_ROUTED_PROTOCOLS, OTHER_CLIENTS, class, protocol},
};

use crate::{config::NameRoute as Route, model::rules::Rules};

/// A kind of clients of a service.
#[derive(Clone, Debug, Default)]
pub(super) struct Client<'r> {
    /// What the data plane calls it.
    pub(super) number: u32,
    /// The prefix of their class; none of the clients in no prefix.
    pub(super) prefix: Option<Ipv4Net>,
    /// The protocols of the service's routes that they offer.
    pub(super) offers: Vec<&'r str>,
}

/// What tells the clients of a service apart.
pub(super) struct Clients<'r> {
    /// All of IPv4, and the number of the class of each.
    prefixes: Vec<(Ipv4Net, u32)>,
    /// With their numbers; none if the data plane cannot know one of them, or so many.
    protocols: Option<Vec<(&'r str, u32)>>,
}

impl<'r> Clients<'r> {
    /// Those of the clients that these routes are for.
    pub(super) fn of<'a>(routes: impl Iterator<Item = &'a &'r Route> + Clone) -> Self
    where
        'r: 'a,
    {
        let from = routes.clone().flat_map(|route| &route.from);
        let prefixes = from.filter_map(|prefix| match prefix {
            IpNet::V4(prefix) => Some(prefix.trunc()),
            IpNet::V6(_) => None,
        });
        let prefixes: BTreeSet<Ipv4Net> = prefixes.collect();
        let protocols: BTreeSet<&str> = routes
            .flat_map(|route| &route.alpn)
            .map(|protocol| &**protocol)
            .collect();
        let is_known = |protocol: &&str| {
            protocol.len() <= MAX_NAME_BYTES as usize && !is_grease(protocol.bytes())
        };
        let are_known = protocols.len() <= MAX_ROUTED_PROTOCOLS && protocols.iter().all(is_known);
        let hash = hash(&prefixes);
        let class = |place| class(hash, place);
        let numbered = || protocols.iter().copied().zip((0..).map(protocol));
        Self {
            prefixes: prefixes.into_iter().zip((0..).map(class)).collect(),
            protocols: are_known.then(|| numbered().collect()),
        }
    }

    /// Each kind of them, by their class or without, and by their protocols or without; none if the data plane cannot tell them
    /// apart.
    pub(super) fn kinds(
        &self,
        by_class: bool,
        by_protocol: bool,
    ) -> Option<impl Iterator<Item = Client<'r>>> {
        let protocols = match by_protocol {
            true => self.protocols.as_deref()?,
            false => &[],
        };
        let prefixes = self.prefixes.iter().filter(move |_| by_class);
        let classes = prefixes.map(|(prefix, number)| (Some(*prefix), *number));
        let classes = classes.chain([(None, OTHER_CLIENTS)]);
        Some(classes.flat_map(move |(prefix, class)| {
            subsets(protocols).map(move |offered| Client {
                number: offered.iter().fold(class, |all, (_, number)| all | number),
                prefix,
                offers: offered.iter().map(|(protocol, _)| *protocol).collect(),
            })
        }))
    }

    /// The protocols, with their numbers.
    pub(super) fn protocols(&self) -> impl Iterator<Item = (&'r str, u32)> {
        self.protocols.iter().flatten().copied()
    }

    /// The classes, by their prefixes.
    pub(super) fn rules(&self) -> Rules {
        let prefixes = self.prefixes.iter();
        prefixes
            .map(|(prefix, number)| (IpNet::V4(*prefix), *number))
            .collect()
    }
}

/// Of all prefixes together (FNV-1a).
fn hash(prefixes: &BTreeSet<Ipv4Net>) -> u32 {
    let bytes = prefixes.iter().flat_map(|prefix| {
        let [a, b, c, d] = prefix.addr().octets();
        [a, b, c, d, prefix.prefix_len()]
    });
    bytes.fold(0x811c_9dc5, |hash: u32, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Some of these, in all ways, none and all of them included.
fn subsets<T: Copy>(all: &[T]) -> impl Iterator<Item = Vec<T>> {
    (0..1_u32 << all.len()).map(|chosen| {
        let places = all.iter().enumerate();
        places
            .filter(|(place, _)| chosen >> place & 1 != 0)
            .map(|(_, one)| *one)
            .collect()
    })
}
