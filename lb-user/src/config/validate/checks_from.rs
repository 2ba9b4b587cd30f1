//! The addresses that stay with their boxes, where checks come from.

use std::{collections::HashMap, net::IpAddr};

use super::{address_index::Facts, ha::Boxes};
use crate::config::{
    list::{List, Named},
    place::{At, Location},
    problem::Findings,
    schema::{RawChecksFrom, RawNetwork},
};

/// Those of one network.
#[derive(Default)]
pub(super) struct CheckSources<'r> {
    /// Of this box.
    pub(super) own: Vec<IpAddr>,
    /// Of other boxes.
    pub(super) of_peer: Vec<IpAddr>,
    /// The places of both.
    places: HashMap<IpAddr, &'r Location>,
}

impl<'r> CheckSources<'r> {
    /// Those of the network that is otherwise known as `facts`.
    pub(super) fn read(
        raw: &'r List<At<RawChecksFrom>>,
        facts: &Facts<'_>,
        boxes: &Boxes<'_>,
        findings: &mut Findings,
    ) -> Self {
        let mut sources = Self::default();
        for At {
            place: whole,
            value,
        } in &raw.elements
        {
            // It is required, and was reported if it is missing.
            let owner = value.r#box.as_ref();
            let is_of_peer = owner.is_some() && boxes.is_of_peer(owner, whole, findings);
            let Some(At { place, value }) = &value.address else {
                continue;
            };
            let address = *value;
            let checked = facts.check_host(address, "address of `checks_from`");
            findings.check(place, checked);
            if let Some(snat) = facts.snat_place(address) {
                let line = findings.line(snat, place);
                let words =
                    format!("{address} is a SNAT address in {line}; expected one that no flow has");
                findings.add(place, words);
            }
            if let Some(first) = sources.place(address) {
                let line = findings.line(first, place);
                findings.add(place, format!("{address} is already listed in {line}"));
                continue;
            }
            sources.places.insert(address, place);
            match is_of_peer {
                true => sources.of_peer.push(address),
                false => sources.own.push(address),
            }
        }
        sources
    }

    /// The place of `address` if checks come from there, of any box.
    pub(super) fn place(&self, address: IpAddr) -> Option<&'r Location> {
        self.places.get(&address).copied()
    }
}

impl Boxes<'_> {
    /// Reports each box that has not one address for its checks of each family that the network's SNAT addresses have.
    pub(super) fn check_sources(&self, network: &Named<RawNetwork>, findings: &mut Findings) {
        let RawNetwork {
            snat, checks_from, ..
        } = &network.value;
        let of_checks = checks_from.elements.iter();
        let first = of_checks.clone().map(|at| &at.place).next();
        let first = first.or_else(|| snat.elements.first().map(|at| &at.place));
        let Some(place) = first.filter(|_| snat.whole && checks_from.whole) else {
            return;
        };
        let place = place.with_key(format!("{}.checks_from", network.place.key));
        let sources = of_checks.map(|at| {
            let owner = at.value.r#box.as_ref()?.value.as_str();
            Some((at.value.address.as_ref()?.value, owner))
        });
        let Some(sources) = sources.collect::<Option<Vec<_>>>() else {
            return;
        };
        let is_known = |owner: &str| self.raw.iter().any(|one| one.name == owner);
        if !sources.iter().all(|(_, owner)| is_known(owner)) {
            return;
        }
        let snat = snat.elements.iter();
        let snat = snat.filter_map(|at| Some(at.value.address.as_ref()?.value));
        for is_ipv4 in [true, false] {
            let is_needed = snat.clone().any(|address| address.is_ipv4() == is_ipv4);
            for one in self.raw {
                let is_of_box = |(address, owner): &&(IpAddr, &str)| {
                    address.is_ipv4() == is_ipv4 && *owner == one.name
                };
                let count = sources.iter().filter(is_of_box).count();
                if count > 1 || count == 0 && is_needed {
                    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
                    let words = format!(
                        "box {name} has {count} addresses of {family} in network {} that its checks come from; \
                         expected one: {{ address: ADDRESS, box: {name} }}",
                        network.name,
                        name = one.name
                    );
                    findings.add(&place, words);
                }
            }
        }
    }
}
