//! Services: which network's clients reach which pool, and at which VIPs.

use std::{
    collections::{HashMap, hash_map},
    net::Ipv4Addr,
};

use lb_common::maps;

use super::{Names, check_name, network::Known};
use crate::config::{
    address,
    model::{Listen, Service},
    place::{At, Place},
    problem::Findings,
    schema::{List, Named, RawService},
};

/// The most VIPs and SNAT addresses of all networks: the size of the map `ADDRESSES`.
const MAX_ADDRESSES: usize = 4096;

const _: () = assert!(MAX_ADDRESSES == maps::MAX_ADDRESSES as usize);

/// A service and the line that something of it stands in.
#[derive(Clone, Copy)]
pub(super) struct Mention<'r> {
    pub(super) service: &'r str,
    pub(super) line: usize,
}

/// What the services use, for the pools to be checked against.
#[derive(Default)]
pub(super) struct Usage<'r> {
    /// (index of the network, VIP) -> its first listen entry.
    pub(super) vips: HashMap<(usize, Ipv4Addr), Mention<'r>>,
    /// Index of the pool -> the first service that uses it.
    pub(super) pools: HashMap<usize, Mention<'r>>,
    /// (index of the network, listen entry) -> where it was written first.
    listen: HashMap<(usize, Listen), Mention<'r>>,
    /// Whether it is reported that the VIPs are too many.
    crowded: bool,
}

/// The services, and what they use.
pub(super) fn validate<'r>(
    raw: &'r List<Named<RawService>>,
    networks: &Known<'r>,
    pools: &Names<'r>,
    findings: &mut Findings,
) -> (Vec<Service>, Usage<'r>) {
    let mut usage = Usage::default();
    let mut services = Vec::new();
    for named in &raw.elements {
        check_name(&named.name, &named.place, findings);
        let network = named.value.network.as_ref();
        let network_index = network.and_then(|network| networks.names.find(network, findings));
        let pool = named.value.pool.as_ref();
        if let Some(index) = pool.and_then(|pool| pools.find(pool, findings)) {
            let user = Mention {
                service: &named.name,
                line: named.place.line,
            };
            usage.pools.entry(index).or_insert(user);
        }
        let mut listen = Vec::new();
        for At { place, value } in &named.value.listen.elements {
            let Some(entry) = findings.check(place, address::listen(value)) else {
                continue;
            };
            listen.push(entry);
            if let Some(index) = network_index {
                usage.add_listen((index, entry), &named.name, place, networks, findings);
            }
        }
        if let (Some(network), Some(pool)) = (network, pool) {
            services.push(Service {
                name: named.name.clone(),
                network: network.value.clone(),
                listen,
                pool: pool.value.clone(),
            });
        }
    }
    (services, usage)
}

impl<'r> Usage<'r> {
    fn add_listen(
        &mut self,
        (network, entry): (usize, Listen),
        service: &'r str,
        place: &Place,
        networks: &Known<'r>,
        findings: &mut Findings,
    ) {
        let facts = networks.facts(network);
        findings.check(place, facts.check_host(entry.address, "VIP"));
        if let Some(line) = facts.snat_line(entry.address) {
            let words = format!(
                "{} is a SNAT address of network {} in line {line}; expected an address of its own",
                entry.address, facts.name
            );
            findings.add(place, words);
        }
        let line = place.line;
        let mention = Mention { service, line };
        self.vips.entry((network, entry.address)).or_insert(mention);
        if !self.crowded && self.vips.len() + networks.snat_addresses() > MAX_ADDRESSES {
            self.crowded = true;
            let words = format!("more than {MAX_ADDRESSES} VIPs and SNAT addresses in all");
            findings.add(place, words);
        }
        match self.listen.entry((network, entry)) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(mention);
            }
            hash_map::Entry::Occupied(first) => {
                let Mention { service, line } = first.get();
                let words = format!("{entry} is already used by service {service} in line {line}");
                findings.add(place, words);
            }
        }
    }
}
