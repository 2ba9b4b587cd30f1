//! What of a network matters to others: which addresses are where.

use std::{
    collections::{HashMap, hash_map},
    net::IpAddr,
    ops::RangeInclusive,
};

use ipnet::IpNet;
use lb_common::maps::snat::{FIRST_FLOW_PORT, FIRST_LEG_PORT, FLOWS_PER_ADDRESS};

use super::{
    checks_from::CheckSources,
    ha::Boxes,
    prefixes::{any_prefixes, check_disjoint},
};
use crate::config::{
    address::family,
    list::{List, Named},
    listen::Listen,
    model::{Role, Route, Snat, any, has_ipv6, reachable},
    names::{Names, listed},
    place::{At, Location},
    problem::Findings,
    schema::{AnyOrPrefixes, RawNetwork, RawRoute, RawSnat},
};

/// The networks as far as others depend on them, in the order of the file.
pub(super) struct Known<'r> {
    pub(super) names: Names<'r>,
    pub(super) facts: Vec<Facts<'r>>,
}

impl<'r> Known<'r> {
    /// SNAT addresses of all networks, those that checks come from, and the link-local ones of their cells.
    pub(super) fn addresses(&self) -> usize {
        let of = |facts: &Facts<'_>| {
            let own = facts.snat_places.len() + facts.checks.own.len();
            own + usize::from(has_ipv6(&facts.prefixes))
        };
        self.facts.iter().map(of).sum()
    }

    /// The network at an index that `names` gave.
    pub(super) fn facts(&self, index: usize) -> &Facts<'r> {
        &self.facts[index]
    }

    /// The role of the network called `name`.
    pub(super) fn role(&self, name: &str) -> Option<Role> {
        self.facts(self.names.position(name)?).role
    }
}

/// What pools and services need to know of one network.
pub(super) struct Facts<'r> {
    pub(super) name: &'r str,
    /// Of its name.
    pub(super) place: &'r Location,
    role: Option<Role>,
    host: bool,
    pub(super) prefixes: Vec<IpNet>,
    /// Whether these are all the prefixes; only then an address can be outside of them.
    whole: bool,
    pub(super) routes: Vec<Route>,
    /// The places of the gateways in `routes`.
    pub(super) gateways: Vec<&'r Location>,
    pub(super) sources: Vec<IpNet>,
    /// Whether these are all the prefixes that clients may have.
    sources_whole: bool,
    pub(super) backends: Vec<IpNet>,
    /// Whether these are all the prefixes that backends may have.
    backends_whole: bool,
    /// Of this box, in the order of the file: they are used in this order.
    pub(super) snat: Vec<Snat>,
    /// Those of other boxes.
    pub(super) peer_snat: Vec<Snat>,
    /// SNAT address -> its ports, unless they could not be read, and its place.
    snat_places: HashMap<IpAddr, (Option<RangeInclusive<u16>>, &'r Location)>,
    /// Whether `snat` is all that was written there.
    snat_whole: bool,
    /// Where checks come from.
    pub(super) checks: CheckSources<'r>,
}

impl<'r> Facts<'r> {
    /// Whether none of the clients that the network lets in has an address in `prefix`, as far as sources could be read.
    pub(super) fn has_no_client_in(&self, prefix: &IpNet) -> bool {
        let overlaps = |source: &IpNet| source.contains(prefix) || prefix.contains(source);
        !self.sources.iter().any(overlaps)
    }

    pub(super) fn read(
        named: &'r Named<RawNetwork>,
        role: Option<Role>,
        host: bool,
        boxes: &Boxes<'_>,
        findings: &mut Findings,
    ) -> Self {
        let raw = &named.value;
        let mut placed = Vec::new();
        for At { place, value } in &raw.prefixes.elements {
            let prefix = *value;
            if host && prefix.addr().is_ipv6() {
                let words = format!(
                    "{prefix} is of IPv6, which a network with address: host cannot have; leave it \
                     out, or give the network addresses of its own"
                );
                findings.add(place, words);
            }
            placed.push((prefix, place));
        }
        let mut facts = Self {
            name: &named.name,
            place: &named.place,
            role,
            host,
            prefixes: placed.iter().map(|(prefix, _)| *prefix).collect(),
            whole: raw.prefixes.whole,
            routes: Vec::new(),
            gateways: Vec::new(),
            sources: Vec::new(),
            sources_whole: false,
            backends: Vec::new(),
            backends_whole: false,
            snat: Vec::new(),
            peer_snat: Vec::new(),
            snat_places: HashMap::new(),
            snat_whole: raw.snat.whole,
            checks: CheckSources::default(),
        };
        check_disjoint(placed, findings);
        facts.add_routes(&raw.routes, findings);
        facts.add_sources(raw.sources.as_ref(), findings);
        facts.add_backends(raw, findings);
        facts.add_snat_addresses(&raw.snat, boxes, findings);
        facts.checks = CheckSources::read(&raw.checks_from, &facts, boxes, findings);
        facts
    }

    /// As [`Self::check_host`] for a VIP, to which clients of its family must come. A host takes frames for
    /// any of its addresses on any of its interfaces, so with `address: host` it need not be on the link.
    pub(super) fn check_vip(&self, address: IpAddr) -> Result<(), String> {
        if self.host && address.is_ipv6() {
            return Err(format!(
                "{address} is a VIP of IPv6, which network {} cannot have with address: host; expected \
                 an IPv4 address, or a network with addresses of its own",
                self.name
            ));
        }
        let on_link = self.prefixes.iter().any(|net| net.contains(&address));
        if !self.host || on_link {
            self.check_host(address, "VIP")?;
        }
        let is_alike = |net: &IpNet| net.addr().is_ipv4() == address.is_ipv4();
        if self.sources_whole && !self.sources.iter().any(is_alike) {
            return Err(format!(
                "{address} is of {family}, but clients of network {} come from {} alone; expected a prefix \
                 of {family} among its sources",
                self.name,
                listed(self.sources.iter().map(IpNet::to_string)),
                family = family(address)
            ));
        }
        Ok(())
    }

    /// Checks that `address`, which is a `what`, can be a host's address on this network.
    pub(super) fn check_host(&self, address: IpAddr, what: &str) -> Result<(), String> {
        let on_link = self.prefixes.iter().find(|net| net.contains(&address));
        match on_link {
            Some(net) if net.network() == address && address.is_ipv6() => Err(format!(
                "{address} is the address of any router of {net} (RFC 4291 section 2.6.1)"
            )),
            Some(net) if net.network() == address => {
                Err(format!("{address} is the network address of {net}"))
            }
            Some(net) if net.broadcast() == address && address.is_ipv4() => {
                Err(format!("{address} is the broadcast address of {net}"))
            }
            None if self.whole => Err(format!(
                "{address} is a {what} outside its network's prefixes; network {} has {}",
                self.name,
                listed(self.prefixes.iter().map(IpNet::to_string))
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that `address` can be that of a backend, which may be behind a gateway.
    pub(super) fn check_backend(&self, address: IpAddr) -> Result<(), String> {
        if self.prefixes.iter().any(|net| net.contains(&address)) {
            self.check_host(address, "backend")?;
        }
        if self.backends_whole && !self.backends.iter().any(|net| net.contains(&address)) {
            return Err(format!(
                "{address} is a backend outside its network's prefixes; network {} has backends \
                 in {}",
                self.name,
                listed(self.backends.iter().map(IpNet::to_string))
            ));
        }
        Ok(())
    }

    /// A link-local gateway is on every link, but only a network with IPv6 has such a one itself.
    fn check_gateway(&self, via: IpAddr) -> Result<(), String> {
        if !matches!(via, IpAddr::V6(via) if via.is_unicast_link_local()) {
            return self.check_host(via, "gateway");
        }
        if self.whole && !has_ipv6(&self.prefixes) {
            return Err(format!(
                "{via} is a gateway of IPv6, of which network {} has no prefix; expected one in prefixes",
                self.name
            ));
        }
        Ok(())
    }

    /// Whether it has no SNAT address of the family of `like`, or none at all without that.
    pub(super) fn lacks_snat(&self, like: Option<IpAddr>) -> bool {
        let is_like =
            |address: &IpAddr| like.is_none_or(|like| like.is_ipv4() == address.is_ipv4());
        self.snat_whole && !self.snat_places.keys().any(is_like)
    }

    /// The place where `address` is a SNAT address of this network, if it is one.
    pub(super) fn snat_place(&self, address: IpAddr) -> Option<&'r Location> {
        self.snat_places.get(&address).map(|(_, place)| *place)
    }

    /// Why a service cannot listen at `entry`, if it is at a SNAT address.
    pub(super) fn snat_conflict(
        &self,
        entry: Listen,
        place: &Location,
        findings: &Findings,
    ) -> Option<String> {
        let (ports, snat_place) = self.snat_places.get(&entry.address)?;
        let line = findings.line(snat_place, place);
        let name = self.name;
        if !self.host {
            return Some(format!(
                "{} is a SNAT address of network {name} in {line}; expected an address of its own",
                entry.address
            ));
        }
        let ports = ports.as_ref().filter(|ports| ports.contains(&entry.port))?;
        Some(format!(
            "port {} belongs to flows: network {name} has SNAT ports {}-{} there in {line}",
            entry.port,
            ports.start(),
            ports.end()
        ))
    }

    fn add_routes(&mut self, raw: &'r List<RawRoute>, findings: &mut Findings) {
        let mut known = HashMap::new();
        for RawRoute { to, via } in &raw.elements {
            let destination = to.as_ref().map(|At { place, value }| {
                let to = *value;
                let first = *known.entry(to).or_insert(place);
                if first != place {
                    let line = findings.line(first, place);
                    findings.add(place, format!("{to} is already routed in {line}"));
                }
                let overlaps = |net: &&IpNet| net.contains(&to) || to.contains(*net);
                let on_link = self.prefixes.iter().find(overlaps);
                if let Some(net) = on_link.filter(|_| to.prefix_len() > 0) {
                    findings.add(
                        place,
                        format!("{to} overlaps {net}, which needs no gateway"),
                    );
                }
                to
            });
            let gateway = via.as_ref().map(|At { place, value }| {
                let via = *value;
                findings.check(place, self.check_gateway(via));
                if let Some(to) = destination.filter(|to| to.addr().is_ipv4() != via.is_ipv4()) {
                    let family = family(to.addr());
                    let words = format!(
                        "{via} cannot be the gateway of {to}; expected a gateway of {family}"
                    );
                    findings.add(place, words);
                }
                (via, place)
            });
            if let (Some(to), Some((via, place))) = (destination, gateway) {
                self.routes.push(Route { to, via });
                self.gateways.push(place);
            }
        }
    }

    fn add_sources(&mut self, raw: Option<&At<AnyOrPrefixes>>, findings: &mut Findings) {
        self.sources = match raw.map(|at| &at.value) {
            None => reachable(&self.prefixes, &self.routes),
            Some(AnyOrPrefixes::Any) => any().to_vec(),
            Some(AnyOrPrefixes::Prefixes(list)) => {
                let placed = any_prefixes(list, findings);
                self.sources_whole = list.whole;
                placed.into_iter().map(|(prefix, _)| prefix).collect()
            }
        };
    }

    fn add_backends(&mut self, raw: &RawNetwork, findings: &mut Findings) {
        let routes_whole = raw.routes.whole && self.routes.len() == raw.routes.elements.len();
        let reached_whole = self.whole && routes_whole;
        let Some(list) = &raw.backends else {
            self.backends = reachable(&self.prefixes, &self.routes);
            self.backends_whole = reached_whole;
            return;
        };
        let placed = any_prefixes(list, findings);
        self.backends_whole = list.whole;
        for (prefix, place) in placed {
            let routed = self.routes.iter().map(|route| route.to);
            let mut reached = self.prefixes.iter().copied().chain(routed);
            if reached_whole && !reached.any(|net| net.contains(&prefix)) {
                let words = format!(
                    "{prefix} is neither on-link nor behind one gateway; expected a part of {}",
                    listed(self.prefixes.iter().map(IpNet::to_string))
                );
                findings.add(place, words);
                self.backends_whole = false;
            }
            self.backends.push(prefix);
        }
    }

    fn add_snat_addresses(
        &mut self,
        raw: &'r List<At<RawSnat>>,
        boxes: &Boxes<'_>,
        findings: &mut Findings,
    ) {
        for At {
            place: whole,
            value,
        } in &raw.elements
        {
            let ports = self.snat_ports(value, whole, findings);
            let is_of_peer = boxes.is_of_peer(value.r#box.as_ref(), whole, findings);
            let Some(At { place, value }) = &value.address else {
                self.snat_whole = false;
                continue;
            };
            let address = *value;
            findings.check(place, self.check_host(address, "SNAT address"));
            match self.snat_places.entry(address) {
                hash_map::Entry::Vacant(vacant) => {
                    vacant.insert((ports.clone(), place));
                    let list = if is_of_peer {
                        &mut self.peer_snat
                    } else {
                        &mut self.snat
                    };
                    list.extend(ports.map(|ports| Snat {
                        address,
                        first_port: *ports.start(),
                        ports: ports.end() - ports.start() + 1,
                    }));
                }
                hash_map::Entry::Occupied(first) => {
                    let line = findings.line(first.get().1, place);
                    findings.add(place, format!("{address} is already listed in {line}"));
                }
            }
        }
    }

    /// The ports that belong to flows. An address of a cell has others for its own sockets; one of
    /// the host shares its ports with everything that runs there, so they must be named.
    fn snat_ports(
        &self,
        raw: &RawSnat,
        place: &Location,
        findings: &mut Findings,
    ) -> Option<RangeInclusive<u16>> {
        let all = FIRST_FLOW_PORT..=FIRST_LEG_PORT - 1;
        let Some(At { place, value }) = &raw.ports else {
            if self.host {
                let words = "an address of the host needs its ports: { address: ADDRESS, ports: \
                             FIRST-LAST }";
                findings.add(place, words);
            }
            return (!self.host).then_some(all);
        };
        let ports = value.clone()?;
        let (first, last) = (*ports.start(), *ports.end());
        let most = if self.host { u16::MAX } else { *all.end() };
        if first < FIRST_FLOW_PORT || last > most {
            let words = format!("found {first}-{last}, expected ports in {FIRST_FLOW_PORT}-{most}");
            findings.add(place, words);
            return None;
        }
        if last - first >= FLOWS_PER_ADDRESS {
            let count = u32::from(last - first) + 1;
            let words = format!("found {count} ports, expected at most {FLOWS_PER_ADDRESS}");
            findings.add(place, words);
            return None;
        }
        Some(ports)
    }
}
