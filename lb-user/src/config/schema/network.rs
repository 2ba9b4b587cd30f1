//! The keys of a network.

use super::{
    List,
    reader::{Mapping, Preset, boolean, bounded, list, prefixes, text, whole_number},
    service::{Sources, sources},
};
use crate::config::{
    place::{At, Location},
    problem::Findings,
    yaml::{Kind, Node},
};

/// An entry of `networks`.
#[derive(Debug, Default)]
pub(in crate::config) struct RawNetwork {
    pub(in crate::config) role: Option<At<String>>,
    pub(in crate::config) interface: Option<At<String>>,
    pub(in crate::config) vlan: Option<At<u64>>,
    pub(in crate::config) address: Option<At<String>>,
    pub(in crate::config) sources: Option<At<Sources>>,
    pub(in crate::config) reject: Option<At<bool>>,
    pub(in crate::config) max_flows: Option<At<u64>>,
    pub(in crate::config) half_open: Option<At<u64>>,
    pub(in crate::config) udp_flows: Option<At<u64>>,
    pub(in crate::config) mss: Option<At<u64>>,
    pub(in crate::config) prefixes: List<At<String>>,
    pub(in crate::config) routes: List<RawRoute>,
    /// Absent: what is on-link or behind a gateway.
    pub(in crate::config) backends: Option<List<At<String>>>,
    pub(in crate::config) snat: List<At<RawSnat>>,
}

/// An element of `routes`.
#[derive(Debug)]
pub(in crate::config) struct RawRoute {
    pub(in crate::config) to: Option<At<String>>,
    pub(in crate::config) via: Option<At<String>>,
}

/// An element of `snat`; a text alone is its address.
#[derive(Debug)]
pub(in crate::config) struct RawSnat {
    pub(in crate::config) address: Option<At<String>>,
    pub(in crate::config) ports: Option<At<String>>,
}

/// The keys, first those that can have a default.
const KEYS: [&str; 14] = [
    "role",
    "interface",
    "vlan",
    "address",
    "sources",
    "reject",
    "max_flows",
    "half_open",
    "udp_flows",
    "mss",
    "prefixes",
    "routes",
    "backends",
    "snat",
];

pub(super) fn read_defaults(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<Preset<RawNetwork>> {
    let keys = Mapping::open(node, place, &KEYS[..10], findings)?.lenient();
    let value = network(&keys, &Preset::default(), findings);
    Some(Preset::new(&keys, value))
}

pub(super) fn read(
    node: &Node,
    place: Location,
    defaults: &Preset<RawNetwork>,
    findings: &mut Findings,
) -> Option<RawNetwork> {
    let keys = Mapping::open(node, place, &KEYS, findings)?;
    Some(network(&keys, defaults, findings))
}

fn network(
    keys: &Mapping<'_>,
    defaults: &Preset<RawNetwork>,
    findings: &mut Findings,
) -> RawNetwork {
    let number = |key: &str, of: fn(&RawNetwork) -> &Option<At<u64>>, findings: &mut Findings| {
        keys.optional_or(key, defaults, of, findings, whole_number)
    };
    RawNetwork {
        role: keys.required_or("role", defaults, |network| &network.role, findings, text),
        interface: keys.required_or(
            "interface",
            defaults,
            |network| &network.interface,
            findings,
            text,
        ),
        vlan: number("vlan", |network| &network.vlan, findings),
        address: keys.optional_or(
            "address",
            defaults,
            |network| &network.address,
            findings,
            text,
        ),
        sources: keys.optional_or(
            "sources",
            defaults,
            |network| &network.sources,
            findings,
            sources,
        ),
        reject: keys.optional_or(
            "reject",
            defaults,
            |network| &network.reject,
            findings,
            boolean,
        ),
        max_flows: number("max_flows", |network| &network.max_flows, findings),
        half_open: number("half_open", |network| &network.half_open, findings),
        udp_flows: number("udp_flows", |network| &network.udp_flows, findings),
        mss: number("mss", |network| &network.mss, findings),
        prefixes: keys
            .required("prefixes", findings, prefixes)
            .unwrap_or_default(),
        routes: keys
            .optional("routes", findings, |node, place, findings| {
                bounded(node, &place, findings)?;
                Some(list(node, &place, findings, route))
            })
            .unwrap_or_else(|| List::absent(keys, "routes")),
        backends: if keys.is_absent("backends") {
            None
        } else {
            let backends = keys.optional("backends", findings, prefixes);
            Some(backends.unwrap_or_default())
        },
        snat: keys
            .optional("snat", findings, |node, place, findings| {
                Some(list(node, &place, findings, snat))
            })
            .unwrap_or_else(|| List::absent(keys, "snat")),
    }
}

fn route(node: &Node, place: Location, findings: &mut Findings) -> Option<RawRoute> {
    let keys = Mapping::open(node, place, &["to", "via"], findings)?;
    Some(RawRoute {
        to: keys.required("to", findings, text),
        via: keys.required("via", findings, text),
    })
}

fn snat(node: &Node, place: Location, findings: &mut Findings) -> Option<At<RawSnat>> {
    let value = if let Kind::Mapping(_) = node.kind {
        let keys = Mapping::open(node, place.clone(), &["address", "ports"], findings)?;
        RawSnat {
            address: keys.required("address", findings, text),
            ports: keys.optional("ports", findings, text),
        }
    } else {
        RawSnat {
            address: Some(text(node, place.clone(), findings)?),
            ports: None,
        }
    };
    Some(At { place, value })
}
