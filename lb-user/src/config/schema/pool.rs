//! The keys of a pool, and of a group of nodes.

use std::net::SocketAddr;

use super::{
    declare::section,
    health_and_drain::Care,
    kinds::{Address, All, Flag, Name, NodePort, kinds},
    kubernetes::RawDiscovered,
    reader::{at, list, list_not_empty, text, whole},
    selection::Selection,
    values::{checked, parsed, within},
};
use crate::config::{
    address,
    list::List,
    model::ProxyProtocol,
    names,
    place::{At, Location, quote},
    problem::Findings,
    yaml::{Entry, Kind, Node},
};

section! {
    /// Backends that serve the same thing. A pool that no service uses is allowed.
    struct RawPool = "pool" {
        /// The network that the backends are on.
        required network: Name,
        /// Keys that the parts of a cluster have, too.
        optional selection: All<Selection>,
        /// `v2`: each connection to a backend begins, before the client's own bytes, with a header of the PROXY
        /// protocol: client, VIP, with `sni` the requested name, and a unique id `SNATIP:PORT-MILLISECONDS` for `lb
        /// who`, or that of a proxy in front. Backends must expect it, also from checks of their own port, whose header
        /// has no client. With `sni` XDP sends it (`late_binding`); the connections of a service with `pool` are accepted by the
        /// process, which hands them over. Not for udp listeners. `none`: no header, where the defaults have `v2`.
        optional proxy_protocol: Header = "none",
        /// Keys that the parts of a cluster have, too.
        optional care: All<Care>,
        /// Backends: `ADDRESS:PORT` (IPv6: `[ADDRESS]:PORT`), the long form, or a port of each node of a group, which
        /// may stand alone instead of a list, as what a cluster of Kubernetes says may. All are of one family. The list may be empty: the VIP can be there before
        /// its NodePort is.
        required[own] backends: Members,
    }
}

section! {
    /// A literal backend; a text alone is its address.
    struct RawBackend = "backend" {
        /// Address and port.
        required address: AddressAndPort,
        /// The name that commands and counters have for it.
        optional name: BackendName => "`ADDRESS:PORT`",
        /// Its share of new flows in relation to the others, 1 to 256.
        optional weight: Weight = "1",
        /// Whether it gets new flows only as long as too few of the others are up: fewer than `min_up`, or none.
        optional backup: Flag = "false",
    }
    also(_keys) {
        /// The name of the node that it was expanded from.
        node: Option<String> = None,
    }
}

section! {
    /// A port of all nodes of a group.
    struct NodesOf = "nodes" {
        /// The group.
        required nodes: Name,
        /// The port, usually a NodePort.
        required port: NodePort,
        /// The share of new flows of each node, 1 to 256.
        optional weight: Weight = "1",
        /// Whether they get new flows only as long as too few of the other backends are up.
        optional backup: Flag = "false",
    }
}

section! {
    /// A group of nodes, for pools and clusters to refer to.
    struct RawGroup = "group" {
        /// The network that the nodes are on. A cluster needs it.
        optional network: Name => "that of the pool",
        /// The nodes; at least one. A text alone is an address.
        required addresses: Nodes,
    }
}

section! {
    /// A node of a group.
    struct RawNode = "node" {
        /// The name that commands and counters have for a backend on it: a-z, 0-9, - and dots.
        optional name: NodeName => "the address",
        /// The address.
        required address: Address,
    }
}

/// A pool whose backends are written out.
#[derive(Debug)]
pub(in crate::config) struct LiteralPool {
    /// The other keys.
    pub(in crate::config) keys: RawPool,
    pub(in crate::config) backends: List<At<RawBackend>>,
    /// What is asked for at clusters of Kubernetes.
    pub(in crate::config) discovered: Vec<At<RawDiscovered>>,
}

/// An element of `backends`.
#[derive(Clone, Debug)]
pub(in crate::config) enum Member {
    Backend(At<RawBackend>),
    Nodes(At<NodesOf>),
    Discovered(At<RawDiscovered>),
}

/// The largest weight of a backend. A Maglev table has room for a few of them, not for thousands.
const MAX_WEIGHT: u16 = 256;

/// The one version of the PROXY protocol that backends get, and the value of a pool that wants none where a
/// default has it.
const V2: &str = "v2";
const NONE: &str = "none";

kinds! {
    BackendName("name"): Option<At<String>> = checked(names::check_backend);
    NodeName("name"): Option<At<String>> = checked(names::check_node);
    Header("word"): Option<At<Option<ProxyProtocol>>> = proxy_protocol;
    AddressAndPort("`ADDRESS:PORT`"): Option<At<SocketAddr>> = parsed(address_and_port);
    Weight("number"): Option<At<u16>> = within(1..=MAX_WEIGHT);
    /// A list, or `{ nodes: GROUP, port: N }` or `{ discover: ... }` alone.
    Members("list of backends", RawBackend, NodesOf, RawDiscovered): List<Member> = members;
    /// A text alone is an address.
    Nodes("list of addresses, or mappings", RawNode): List<RawNode> = nodes;
}

fn address_and_port(text: &str) -> Result<SocketAddr, String> {
    address::address_and_port(text).map(SocketAddr::from)
}

fn proxy_protocol(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<At<Option<ProxyProtocol>>> {
    let At { place, value } = text(node, place, findings)?;
    if value != V2 && value != NONE {
        let words = format!("found {}, expected {V2} or {NONE}", quote(&value));
        findings.add(&place, words);
    }
    let value = (value != NONE).then_some(ProxyProtocol::V2);
    Some(At { place, value })
}

fn members(node: &Node, place: Location, findings: &mut Findings) -> Option<List<Member>> {
    if let Kind::Mapping(entries) = &node.kind {
        let member = match has(entries, "discover") {
            true => Member::Discovered(at(node, place, findings)?),
            false => Member::Nodes(at(node, place, findings)?),
        };
        return Some(List {
            elements: vec![member],
            whole: true,
        });
    }
    // Read once: a list may have hundreds.
    let unwritten = RawBackend::default();
    Some(list(node, &place, findings, |node, place, findings| {
        member(node, place, &unwritten, findings)
    }))
}

fn has(entries: &[Entry], key: &str) -> bool {
    entries.iter().any(|entry| entry.key == key)
}

/// `unwritten` is what a backend is of which only the address is written.
fn member(
    node: &Node,
    place: Location,
    unwritten: &RawBackend,
    findings: &mut Findings,
) -> Option<Member> {
    match &node.kind {
        Kind::Mapping(entries) if has(entries, "nodes") => {
            at(node, place, findings).map(Member::Nodes)
        }
        Kind::Mapping(entries) if has(entries, "discover") => {
            at(node, place, findings).map(Member::Discovered)
        }
        Kind::Mapping(_) => at(node, place, findings).map(Member::Backend),
        _ => {
            let At { place, value } = text(node, place, findings)?;
            let address = findings.check(&place, address_and_port(&value));
            let value = RawBackend {
                address: address.map(|value| At {
                    place: place.clone(),
                    value,
                }),
                ..unwritten.clone()
            };
            Some(Member::Backend(At { place, value }))
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a reader")]
fn nodes(node: &Node, place: Location, findings: &mut Findings) -> Option<List<RawNode>> {
    list_not_empty(node, &place, findings, |node, place, findings| {
        if let Kind::Mapping(_) = node.kind {
            return whole(node, place, findings);
        }
        let At { place, value } = text(node, place, findings)?;
        let address = findings.check(&place, address::address(&value));
        Some(RawNode {
            name: None,
            address: address.map(|value| At { place, value }),
        })
    })
}
