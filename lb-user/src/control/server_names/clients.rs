//! The kinds of clients that the routes of a service tell apart: by the class of their address, and by the protocols that they
//! offer.
//!
//! There is a class for each prefix that a route is for, to which the clients belong that are in no longer one; and that of all
//! others. Of protocols those count that a route is for.

use std::{collections::BTreeSet, net::Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use lb_common::{
    addr::Be32,
    client_hello::is_grease,
    maps::server_name::{
        self, MAX_NAME_BYTES, MAX_ROUTED_PROTOCOLS, OTHER_CLIENTS, class, protocol,
    },
};

use crate::{config::NameRoute as Route, model::rules::Rules};

/// A kind of clients of a service.
#[derive(Clone, Debug, Default)]
pub(super) struct Client<'r> {
    /// That of their class; of the clients in no prefix none.
    pub(super) prefix: Option<Ipv4Net>,
    /// The protocols of the service's routes that they offer.
    pub(super) offers: Vec<&'r str>,
}

/// What tells the clients of a service apart.
pub(super) struct Clients<'r> {
    /// All of IPv4.
    prefixes: BTreeSet<Ipv4Net>,
    /// With their numbers; none if the data plane cannot know one, or so many.
    protocols: Option<Vec<(&'r str, u32)>>,
    /// No two kinds have one number.
    are_distinct: bool,
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
        let protocols: BTreeSet<&str> = routes
            .flat_map(|route| &route.alpn)
            .map(|protocol| &**protocol)
            .collect();
        let mut clients = Self {
            prefixes: prefixes.collect(),
            protocols: numbered(&protocols),
            are_distinct: false,
        };
        let has_protocols = clients.protocols.is_some();
        let numbers: Vec<u32> = clients
            .all(true, has_protocols)
            .map(|client| clients.number(&client))
            .collect();
        clients.are_distinct = numbers.iter().collect::<BTreeSet<_>>().len() == numbers.len();
        clients
    }

    /// Whether the data plane can tell them apart, also by what they offer.
    pub(super) const fn are_known(&self, by_protocol: bool) -> bool {
        self.are_distinct && (self.protocols.is_some() || !by_protocol)
    }

    /// Each kind of them; those of one class only, or that offer nothing, where this does not count.
    pub(super) fn all(
        &self,
        by_class: bool,
        by_protocol: bool,
    ) -> impl Iterator<Item = Client<'r>> {
        let classes = self.prefixes.iter().copied().filter(move |_| by_class);
        let protocols = self.protocols().filter(move |_| by_protocol);
        let protocols: Vec<&str> = protocols.map(|(protocol, _)| protocol).collect();
        classes.map(Some).chain([None]).flat_map(move |prefix| {
            subsets(&protocols)
                .map(move |offers| Client { prefix, offers })
                .collect::<Vec<_>>()
        })
    }

    /// What the data plane calls a kind.
    pub(super) fn number(&self, client: &Client<'_>) -> u32 {
        let class = client.prefix.map_or(OTHER_CLIENTS, class_of);
        let offered = |(protocol, _): &(&str, u32)| client.offers.contains(protocol);
        let offers = self.protocols().filter(offered).map(|(_, number)| number);
        server_name::clients(class, offers)
    }

    /// The protocols, with their numbers.
    pub(super) fn protocols(&self) -> impl Iterator<Item = (&'r str, u32)> {
        self.protocols.iter().flatten().copied()
    }

    /// The classes, by their prefixes.
    pub(super) fn rules(&self) -> Rules {
        let prefixes = self.prefixes.iter();
        prefixes
            .map(|prefix| (IpNet::V4(*prefix), class_of(*prefix)))
            .collect()
    }
}

/// These protocols with their numbers, if the data plane can know them.
fn numbered<'r>(protocols: &BTreeSet<&'r str>) -> Option<Vec<(&'r str, u32)>> {
    let can_be_known =
        |protocol: &&str| protocol.len() <= MAX_NAME_BYTES as usize && !is_grease(protocol.bytes());
    let are_few = protocols.len() <= MAX_ROUTED_PROTOCOLS;
    let all = || protocols.iter().map(|protocol| protocol.as_bytes());
    (are_few && protocols.iter().all(can_be_known)).then(|| {
        let numbered = protocols.iter().enumerate();
        numbered
            .map(|(place, name)| (*name, protocol(place, all())))
            .collect()
    })
}

/// All that some of these may be, none and all included.
fn subsets<'r>(all: &[&'r str]) -> impl Iterator<Item = Vec<&'r str>> {
    (0..1_u32 << all.len()).map(|chosen| {
        let places = all.iter().enumerate();
        places
            .filter(|(place, _)| chosen >> place & 1 != 0)
            .map(|(_, protocol)| *protocol)
            .collect()
    })
}

/// The number of the class of the clients in a prefix.
fn class_of(prefix: Ipv4Net) -> u32 {
    let address: Ipv4Addr = prefix.addr();
    class(Be32::new(address.into()), prefix.prefix_len())
}
