//! Networks: where they are, what hosts are on them, and which addresses may be used there.

use std::{collections::HashMap, ops::RangeInclusive};

use lb_common::maps::half_open::DEFAULT_PLACES;

use super::{
    address_index::{Facts, Known},
    limit,
    service::Usage,
    timeouts::max_flows,
};
use crate::config::{
    model::{Network, Role, TCP_IP_BYTES},
    names::Names,
    place::{At, quote},
    problem::Findings,
    quota::MIN_PLACES,
    schema::{List, Named, RawNetwork},
};

/// The longest interface name in bytes: the kernel's `IFNAMSIZ` less the terminating zero.
const MAX_INTERFACE: usize = 15;

/// IEEE 802.1Q: 0 is no VLAN, and 4095 is reserved.
const VLAN_IDS: RangeInclusive<u16> = 1..=4094;

/// How many places a ring may have: fewer are churned by a few clients that come at once, and more
/// could be most of the flows there are.
const RING: RangeInclusive<u32> = MIN_PLACES..=65_536;

/// How much data a segment may have: less makes no connection that is of use, and more is in no IP
/// packet.
const MSS: RangeInclusive<u16> = 64..=65_535 - TCP_IP_BYTES;

/// The one value of `address`.
const HOST: &str = "host";

/// (interface, VLAN id) -> the first network there.
type Carried<'r> = HashMap<(&'r str, Option<u64>), &'r Named<RawNetwork>>;

/// The networks, and what is known of each one, whether it has problems or not.
pub(super) fn validate<'r>(
    raw: &'r List<Named<RawNetwork>>,
    findings: &mut Findings,
) -> (Vec<Network>, Known<'r>) {
    let mut carried = Carried::new();
    let mut networks = Vec::new();
    let mut facts = Vec::new();
    for named in &raw.elements {
        let role = role(&named.value, findings);
        let interface = interface(&named.value, findings);
        let vlan = vlan(&named.value, findings);
        check_place(named, &mut carried, findings);
        let host = host(named, role, findings);
        let known = Facts::read(named, role, host, findings);
        if let (Some(interface), Some(role)) = (interface, role) {
            networks.push(Network {
                name: named.name.clone(),
                role,
                interface,
                vlan,
                host,
                prefixes: known.prefixes.clone(),
                routes: known.routes.clone(),
                sources: known.sources.clone(),
                backends: known.backends.clone(),
                snat: known.snat.clone(),
                reject: named.value.reject.as_ref().is_some_and(|at| at.value),
                max_flows: max_flows(&named.value.max_flows, findings),
                half_open: limit(&named.value.half_open, RING, DEFAULT_PLACES, findings),
                udp_flows: limit(&named.value.udp_flows, RING, DEFAULT_PLACES, findings),
                mss: mss(&named.value.mss, findings),
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

fn role(raw: &RawNetwork, findings: &mut Findings) -> Option<Role> {
    let At { place, value } = raw.role.as_ref()?;
    match value.as_str() {
        "mgmt" => Some(Role::Mgmt),
        "tenant" => Some(Role::Tenant),
        "uplink" => Some(Role::Uplink),
        _ => {
            let words = format!(
                "{} is not a role; expected tenant, mgmt or uplink",
                quote(value)
            );
            findings.add(place, words);
            None
        }
    }
}

fn interface(raw: &RawNetwork, findings: &mut Findings) -> Option<String> {
    let At { place, value } = raw.interface.as_ref()?;
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
    Some(value.clone())
}

fn vlan(raw: &RawNetwork, findings: &mut Findings) -> Option<u16> {
    let At { place, value } = raw.vlan.as_ref()?;
    let id = u16::try_from(*value).ok();
    let id = id.filter(|id| VLAN_IDS.contains(id));
    if id.is_none() {
        let (first, last) = (VLAN_IDS.start(), VLAN_IDS.end());
        let words = format!("{value} is not a VLAN id; expected {first} to {last}");
        findings.add(place, words);
    }
    id
}

/// The most data in a segment, if it is not the interface that says it.
fn mss(raw: &Option<At<u64>>, findings: &mut Findings) -> Option<u16> {
    raw.as_ref()?;
    Some(limit(raw, MSS, *MSS.end(), findings))
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
    let id = vlan.as_ref().map(|at| at.value);
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
    if value != HOST {
        findings.add(place, format!("found {}, expected {HOST}", quote(value)));
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
