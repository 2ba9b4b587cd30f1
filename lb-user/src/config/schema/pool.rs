//! The keys of a pool, and of a group of nodes.

use super::{
    List,
    health_and_drain::{self, Care, care},
    reader::{Mapping, Preset, list, list_not_empty, text, whole_number},
};
use crate::config::{
    place::{At, Location},
    problem::Findings,
    yaml::{Kind, Node},
};

/// An entry of `pools`; once expanded, its backends are all literal.
#[derive(Debug)]
pub(in crate::config) struct RawPool<M = At<RawBackend>> {
    pub(in crate::config) network: Option<At<String>>,
    pub(in crate::config) balance: Option<At<String>>,
    pub(in crate::config) proxy_protocol: Option<At<String>>,
    pub(in crate::config) care: Care,
    pub(in crate::config) backends: List<M>,
}

impl<M> Default for RawPool<M> {
    fn default() -> Self {
        Self {
            network: None,
            balance: None,
            proxy_protocol: None,
            care: Care::default(),
            backends: List::default(),
        }
    }
}

/// An element of `backends`.
#[derive(Debug)]
pub(in crate::config) enum Member {
    Backend(At<RawBackend>),
    Nodes(At<NodesOf>),
}

/// A literal backend; a text alone is its address.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct RawBackend {
    pub(in crate::config) address: Option<At<String>>,
    pub(in crate::config) name: Option<At<String>>,
    /// The name of the node that it was expanded from.
    pub(in crate::config) node: Option<String>,
    pub(in crate::config) weight: Option<At<u64>>,
}

/// A port of all nodes of a group.
#[derive(Debug)]
pub(in crate::config) struct NodesOf {
    pub(in crate::config) nodes: Option<At<String>>,
    pub(in crate::config) port: Option<At<u64>>,
    pub(in crate::config) weight: Option<At<u64>>,
}

/// An entry of `nodes`.
#[derive(Debug, Default)]
pub(in crate::config) struct RawGroup {
    pub(in crate::config) network: Option<At<String>>,
    pub(in crate::config) addresses: List<RawNode>,
}

/// An element of `addresses`; a text alone is its address.
#[derive(Debug)]
pub(in crate::config) struct RawNode {
    pub(in crate::config) name: Option<At<String>>,
    pub(in crate::config) address: Option<At<String>>,
}

/// The keys, first those that can have a default.
const KEYS: [&str; 9] = {
    let [health, drain_timeout, slow_start, min_up, below_min_up] = health_and_drain::KEYS;
    [
        "network",
        "balance",
        "proxy_protocol",
        health,
        drain_timeout,
        slow_start,
        min_up,
        below_min_up,
        "backends",
    ]
};

pub(super) fn read_defaults(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<Preset<RawPool<Member>>> {
    let keys = Mapping::open(node, place, &KEYS[..8], findings)?.lenient();
    let value = pool(&keys, &Preset::default(), findings);
    Some(Preset::new(&keys, value))
}

pub(super) fn read(
    node: &Node,
    place: Location,
    defaults: &Preset<RawPool<Member>>,
    findings: &mut Findings,
) -> Option<RawPool<Member>> {
    let keys = Mapping::open(node, place, &KEYS, findings)?;
    Some(pool(&keys, defaults, findings))
}

fn pool(
    keys: &Mapping<'_>,
    defaults: &Preset<RawPool<Member>>,
    findings: &mut Findings,
) -> RawPool<Member> {
    RawPool {
        network: keys.required_or("network", defaults, |pool| &pool.network, findings, text),
        balance: keys.optional_or("balance", defaults, |pool| &pool.balance, findings, text),
        proxy_protocol: keys.optional_or(
            "proxy_protocol",
            defaults,
            |pool| &pool.proxy_protocol,
            findings,
            text,
        ),
        care: care(keys, defaults, |pool| &pool.care, findings),
        backends: keys
            .required("backends", findings, members)
            .unwrap_or_default(),
    }
}

/// A list, or `{ nodes: GROUP, port: N }` alone.
fn members(node: &Node, place: Location, findings: &mut Findings) -> Option<List<Member>> {
    if let Kind::Mapping(_) = node.kind {
        let nodes = nodes_of(node, place, findings)?;
        return Some(List {
            elements: vec![Member::Nodes(nodes)],
            whole: true,
        });
    }
    Some(list(node, &place, findings, member))
}

fn member(node: &Node, place: Location, findings: &mut Findings) -> Option<Member> {
    match &node.kind {
        Kind::Mapping(entries) if entries.iter().any(|entry| entry.key == "nodes") => {
            nodes_of(node, place, findings).map(Member::Nodes)
        }
        Kind::Mapping(_) => {
            let known = ["address", "name", "weight"];
            let keys = Mapping::open(node, place.clone(), &known, findings)?;
            let value = RawBackend {
                address: keys.required("address", findings, text),
                name: keys.optional("name", findings, text),
                node: None,
                weight: keys.optional("weight", findings, whole_number),
            };
            Some(Member::Backend(At { place, value }))
        }
        _ => {
            let address = text(node, place.clone(), findings)?;
            let value = RawBackend {
                address: Some(address),
                ..RawBackend::default()
            };
            Some(Member::Backend(At { place, value }))
        }
    }
}

fn nodes_of(node: &Node, place: Location, findings: &mut Findings) -> Option<At<NodesOf>> {
    let known = ["nodes", "port", "weight"];
    let keys = Mapping::open(node, place.clone(), &known, findings)?;
    let value = NodesOf {
        nodes: keys.required("nodes", findings, text),
        port: keys.required("port", findings, whole_number),
        weight: keys.optional("weight", findings, whole_number),
    };
    Some(At { place, value })
}

pub(super) fn read_group(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<RawGroup> {
    let keys = Mapping::open(node, place, &["network", "addresses"], findings)?;
    Some(RawGroup {
        network: keys.optional("network", findings, text),
        addresses: keys
            .required("addresses", findings, |node, place, findings| {
                list_not_empty(node, &place, findings, group_node)
            })
            .unwrap_or_default(),
    })
}

fn group_node(node: &Node, place: Location, findings: &mut Findings) -> Option<RawNode> {
    if let Kind::Mapping(_) = node.kind {
        let keys = Mapping::open(node, place, &["name", "address"], findings)?;
        Some(RawNode {
            name: keys.optional("name", findings, text),
            address: keys.required("address", findings, text),
        })
    } else {
        Some(RawNode {
            name: None,
            address: Some(text(node, place, findings)?),
        })
    }
}
