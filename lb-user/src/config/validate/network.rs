//! Networks: where they are, what hosts are on them, and which addresses may be used there.

use std::collections::HashMap;

use lb_common::maps::half_open::DEFAULT_PLACES;

use super::{
    address_index::{Facts, Known},
    ha::Boxes,
    service::Usage,
};
use crate::config::{
    list::{List, Named},
    model::{Network, Role},
    names::Names,
    place::{At, quote, value_of},
    problem::Findings,
    schema::RawNetwork,
};

/// (interface, VLAN id) -> the first network there.
type Carried<'r> = HashMap<(&'r str, Option<u16>), &'r Named<RawNetwork>>;

/// The networks, and what is known of each one, whether it has problems or not.
pub(super) fn validate<'r>(
    raw: &'r List<Named<RawNetwork>>,
    boxes: &Boxes<'_>,
    findings: &mut Findings,
) -> (Vec<Network>, Known<'r>) {
    let mut carried = Carried::new();
    let mut networks = Vec::new();
    let mut facts = Vec::new();
    for named in &raw.elements {
        let role = named.value.role.as_ref().map(|at| at.value);
        let interface = named.value.interface.as_ref();
        let vlan = named.value.vlan.as_ref().and_then(|at| at.value);
        check_place(named, &mut carried, findings);
        let host = host(named, role, findings);
        let known = Facts::read(named, role, host, boxes, findings);
        boxes.check_shares(named, findings);
        boxes.check_sources(named, findings);
        if let (Some(interface), Some(role)) = (interface, role) {
            networks.push(Network {
                name: named.name.clone(),
                role,
                interface: interface.value.clone(),
                vlan,
                host,
                prefixes: known.prefixes.clone(),
                routes: known.routes.clone(),
                sources: known.sources.clone(),
                backends: known.backends.clone(),
                snat: known.snat.clone(),
                peer_snat: known.peer_snat.clone(),
                checks_from: known.checks.own.clone(),
                peer_checks_from: known.checks.of_peer.clone(),
                reject: value_of(&named.value.reject),
                max_flows: named.value.max_flows.as_ref().map(|at| at.value),
                half_open: slots(&named.value.half_open),
                udp_flows: slots(&named.value.udp_flows),
                mss: named.value.mss.as_ref().map(|at| at.value),
                second_segment: value_of(&named.value.second_segment),
            });
        }
        facts.push(known);
    }
    let names = Names::new("network", raw);
    (networks, Known { names, facts })
}

/// No gateway is one of our own addresses.
pub(super) fn check_gateways(networks: &Known<'_>, usage: &Usage<'_>, findings: &mut Findings) {
    for (network, facts) in networks.facts.iter().enumerate() {
        for (route, place) in facts.routes.iter().zip(&facts.gateways) {
            let address = route.via;
            if let Some(snat) = facts.snat_place(address) {
                let line = findings.line(snat, place);
                let words = format!("{address} is a SNAT address in {line}; expected a gateway");
                findings.add(place, words);
            } else if let Some(checks) = facts.checks.place(address) {
                let line = findings.line(checks, place);
                let words = format!("checks come from {address} in {line}; expected a gateway");
                findings.add(place, words);
            } else if let Some(vip) = usage.vips.get(&(network, address)) {
                let words = format!(
                    "{address} is the VIP of service {} in {}; expected a gateway",
                    vip.service,
                    findings.line(vip.place, place)
                );
                findings.add(place, words);
            }
        }
    }
}

/// The slots of a ring.
fn slots(written: &Option<At<u32>>) -> u32 {
    written.as_ref().map_or(DEFAULT_PLACES, |at| at.value)
}

/// A frame belongs to one network: its interface and VLAN id say to which.
fn check_place<'r>(
    named: &'r Named<RawNetwork>,
    carried: &mut Carried<'r>,
    findings: &mut Findings,
) {
    let RawNetwork {
        interface: Some(interface),
        vlan,
        ..
    } = &named.value
    else {
        return;
    };
    let id = match vlan {
        Some(At { value: None, .. }) => return,
        Some(At { value, .. }) => *value,
        None => None,
    };
    let first = *carried.entry((&interface.value, id)).or_insert(named);
    if first.place == named.place {
        return;
    }
    let at = vlan.as_ref().map_or(&interface.place, |at| &at.place);
    let place = named.blame(at);
    let what = match id {
        Some(id) => format!("VLAN {id} of {}", quote(&interface.value)),
        None => format!("{} without a vlan", quote(&interface.value)),
    };
    let words = format!(
        "{what} already carries network {} in {}; expected an interface, or a vlan, for each",
        first.name,
        findings.line(&first.place, place)
    );
    findings.add(place, words);
}

/// Whether the addresses are the host's. Its stack sees what is not ours, so no tenant may be there,
/// and only an untagged network has the interface, and its addresses, for itself.
fn host(named: &Named<RawNetwork>, role: Option<Role>, findings: &mut Findings) -> bool {
    let Some(At { place, value }) = &named.value.address else {
        return false;
    };
    let mut add = |words: String| findings.add(named.blame(place), words);
    if !value {
        return true;
    }
    if role == Some(Role::Tenant) {
        add("a tenant's network has addresses of its own, never the host's".to_owned());
    }
    if named.value.vlan.is_some() {
        add("a network with a vlan has addresses of its own; expected one or the other".to_owned());
    }
    true
}
