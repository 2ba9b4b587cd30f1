//! Networks: their prefixes, their SNAT addresses, and which addresses may be used on them.

use std::{
    collections::{HashMap, hash_map},
    net::Ipv4Addr,
};

use ipnet::Ipv4Net;
use lb_common::maps::network::MAX_SNAT_PER_NETWORK;

use super::{MAX_LISTED, Names, check_name};
use crate::config::{
    address,
    model::{Network, Role},
    place::{At, Place, quote},
    problem::Findings,
    schema::{List, Named, RawNetwork},
};

/// The longest interface name in bytes: the kernel's `IFNAMSIZ` less the terminating zero.
const MAX_INTERFACE: usize = 15;

/// The networks as far as others depend on them, in the order of the file.
pub(super) struct Known<'r> {
    pub(super) names: Names<'r>,
    facts: Vec<Facts<'r>>,
}

impl<'r> Known<'r> {
    /// SNAT addresses of all networks.
    pub(super) fn snat_addresses(&self) -> usize {
        self.facts.iter().map(|facts| facts.snat.len()).sum()
    }

    /// The network at an index that `names` gave.
    pub(super) fn facts(&self, index: usize) -> &Facts<'r> {
        &self.facts[index]
    }
}

/// What pools and services need to know of one network.
pub(super) struct Facts<'r> {
    pub(super) name: &'r str,
    /// The line of its name.
    pub(super) line: usize,
    prefixes: Vec<Ipv4Net>,
    /// Whether these are all the prefixes; only then an address can be outside of them.
    whole: bool,
    /// In the order of the file: they are used in this order.
    snat: Vec<Ipv4Addr>,
    /// SNAT address -> line.
    snat_lines: HashMap<Ipv4Addr, usize>,
    /// Whether it was written without any SNAT address.
    pub(super) without_snat: bool,
}

impl Facts<'_> {
    /// Checks that `address`, which is a `what`, can be a host's address on this network.
    pub(super) fn check_host(&self, address: Ipv4Addr, what: &str) -> Result<(), String> {
        let on_link = self.prefixes.iter().find(|net| net.contains(&address));
        match on_link {
            Some(net) if net.network() == address => {
                Err(format!("{address} is the network address of {net}"))
            }
            Some(net) if net.broadcast() == address => {
                Err(format!("{address} is the broadcast address of {net}"))
            }
            None if self.whole => Err(format!(
                "{address} is a {what} outside its network's prefixes; network {} has {}",
                self.name,
                self.listed_prefixes()
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// The line in which `address` is a SNAT address of this network, if it is one.
    pub(super) fn snat_line(&self, address: Ipv4Addr) -> Option<usize> {
        self.snat_lines.get(&address).copied()
    }

    fn listed_prefixes(&self) -> String {
        let mut listed: Vec<String> = self.prefixes.iter().map(Ipv4Net::to_string).collect();
        if listed.len() > MAX_LISTED {
            listed.truncate(MAX_LISTED);
            listed.push("...".to_owned());
        }
        listed.join(", ")
    }
}

/// The networks, and what is known of each one, whether it has problems or not.
pub(super) fn validate<'r>(
    raw: &'r List<Named<RawNetwork>>,
    findings: &mut Findings,
) -> (Vec<Network>, Known<'r>) {
    // Interface -> the first network on it.
    let mut interfaces = HashMap::new();
    let mut networks = Vec::new();
    let mut facts = Vec::new();
    for named in &raw.elements {
        check_name(&named.name, &named.place, findings);
        let interface = interface(named, &mut interfaces, findings);
        let role = role(&named.value, findings);
        let known = Facts::read(named, findings);
        if let (Some(interface), Some(role)) = (interface, role) {
            networks.push(Network {
                name: named.name.clone(),
                role,
                interface,
                prefixes: known.prefixes.clone(),
                snat: known.snat.clone(),
            });
        }
        facts.push(known);
    }
    let names = Names::new("network", raw);
    (networks, Known { names, facts })
}

fn role(raw: &RawNetwork, findings: &mut Findings) -> Option<Role> {
    let At { place, value } = raw.role.as_ref()?;
    match value.as_str() {
        "mgmt" => Some(Role::Mgmt),
        "tenant" => Some(Role::Tenant),
        _ => {
            let words = format!("{} is not a role; expected tenant or mgmt", quote(value));
            findings.add(place, words);
            None
        }
    }
}

fn interface<'r>(
    named: &'r Named<RawNetwork>,
    interfaces: &mut HashMap<&'r str, &'r Named<RawNetwork>>,
    findings: &mut Findings,
) -> Option<String> {
    let At { place, value } = named.value.interface.as_ref()?;
    // What the kernel refuses as a name (dev_valid_name in net/core/dev.c).
    let forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let length = 1..=MAX_INTERFACE;
    if !length.contains(&value.len()) || value.contains(forbidden) || value == "." || value == ".."
    {
        let words = format!(
            "{} is not an interface name; expected 1 to {MAX_INTERFACE} characters, no /, : or \
             space",
            quote(value)
        );
        findings.add(place, words);
        return None;
    }
    let first = interfaces.entry(value).or_insert(named);
    if first.place != named.place {
        let words = format!(
            "{} already carries network {} in line {}; expected an interface for each network",
            quote(value),
            first.name,
            first.place.line
        );
        findings.add(place, words);
        return None;
    }
    Some(value.clone())
}

impl<'r> Facts<'r> {
    fn read(named: &'r Named<RawNetwork>, findings: &mut Findings) -> Self {
        let RawNetwork { prefixes, snat, .. } = &named.value;
        let mut placed = Vec::new();
        for At { place, value } in &prefixes.elements {
            if let Some(prefix) = findings.check(place, address::prefix(value)) {
                placed.push((prefix, place));
            }
        }
        let mut facts = Self {
            name: &named.name,
            line: named.place.line,
            prefixes: placed.iter().map(|(prefix, _)| *prefix).collect(),
            whole: prefixes.whole && placed.len() == prefixes.elements.len(),
            snat: Vec::new(),
            snat_lines: HashMap::new(),
            without_snat: snat.whole && snat.elements.is_empty(),
        };
        check_disjoint(placed, findings);
        if let Some(At { place, .. }) = snat.elements.get(MAX_SNAT_PER_NETWORK) {
            let words = format!(
                "{} SNAT addresses in this network, but there is room for {MAX_SNAT_PER_NETWORK}",
                snat.elements.len()
            );
            findings.add(place, words);
        }
        for At { place, value } in &snat.elements {
            if let Some(address) = findings.check(place, address::address(value)) {
                let result = facts.check_host(address, "SNAT address");
                findings.check(place, result);
                facts.add_snat(address, place, findings);
            }
        }
        facts
    }

    fn add_snat(&mut self, address: Ipv4Addr, place: &Place, findings: &mut Findings) {
        match self.snat_lines.entry(address) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(place.line);
                self.snat.push(address);
            }
            hash_map::Entry::Occupied(line) => {
                let words = format!("{address} is already listed in line {}", line.get());
                findings.add(place, words);
            }
        }
    }
}

/// Prefixes are disjoint or one contains the other. Sorted by first address, shortest first, each
/// one can therefore only be inside the last one that was outside of all before.
fn check_disjoint(mut placed: Vec<(Ipv4Net, &Place)>, findings: &mut Findings) {
    placed.sort_by_key(|(prefix, _)| (prefix.network(), prefix.prefix_len()));
    let mut cover: Option<(Ipv4Net, &Place)> = None;
    for (prefix, place) in placed {
        match cover {
            Some((outer, outer_place)) if outer.contains(&prefix) => {
                let outer_is_first =
                    (outer_place.line, outer_place.column) < (place.line, place.column);
                let (later, at, earlier, line) = if outer_is_first {
                    (prefix, place, outer, outer_place.line)
                } else {
                    (outer, outer_place, prefix, place.line)
                };
                findings.add(at, format!("{later} overlaps {earlier} in line {line}"));
            }
            _ => cover = Some((prefix, place)),
        }
    }
}
