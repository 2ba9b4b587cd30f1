//! The keys of a network.

use super::{
    List,
    declare::section,
    kinds::{
        Address, Choice, Clients, Flag, Number, Ports, Prefix, Prefixes, SomePrefixes, Text, kinds,
    },
    reader::{at, bounded, list, text, whole},
};
use crate::config::{
    place::{At, Location},
    problem::Findings,
    yaml::{Kind, Node},
};

section! {
    /// A layer-2 network that the load balancer is attached to; at least one.
    struct RawNetwork = "network" {
        /// `mgmt` (the nodes of the hub), `tenant` (workers of one tenant) or `uplink` (everything else). From
        /// tenant networks nothing but services can be reached; from `mgmt` no service of a tenant.
        required role: Choice,
        /// The physical port. Several networks share it if all but one have a `vlan`.
        required interface: Text,
        /// The 802.1Q id of its frames, 1 to 4094.
        optional vlan: Number = "untagged frames",
        /// `host`: VIPs and SNAT addresses are the host's own addresses on this interface, and all other traffic
        /// stays the host's. SNAT addresses then need `ports`, in 1024-65535 and at most 56320, that nothing
        /// else on the host uses. Only for untagged networks that are not a tenant's.
        optional address: Choice = "all addresses are lb's alone",
        /// The addresses that clients may have, of any prefix length.
        optional sources: Clients = "`prefixes`, and `routes` except 0.0.0.0/0 and ::/0",
        /// Whether a client that connects to a port of a VIP without a service gets a TCP reset or an ICMP port
        /// unreachable.
        optional reject: Flag = "`false`",
        /// The maximum number of established connections and answered UDP flows of its clients; further ones are
        /// refused.
        optional max_flows: Number = "an equal part of SNAT ports that other networks use too, else no limit",
        /// Slots for TCP connections that are not established yet, 64 to 65536. A new connection takes the
        /// oldest slot, and ends the flow that had it if that is still half-open.
        optional half_open: Number = "a quarter of its part of shared SNAT ports, 64 to 8192",
        /// Slots for UDP flows, 64 to 65536. A new flow takes the oldest slot, and ends the flow that had it if
        /// that has no reply, or no packet for 10 s.
        optional udp_flows: Number = "a quarter of its part of shared SNAT ports, 64 to 8192",
        /// The maximum of data bytes in a TCP segment to or from this network, 64 to 65495; a SYN that announces
        /// more is changed. Clients behind an MTU of less than 1280 bytes need it. It does not count where lb
        /// accepts connections itself.
        optional mss: Number = "the MTU of the interface less 40; with IPv6 less 60",
        /// The on-link prefixes, of IPv4 (/8 to /30), IPv6 (/16 to /126) or both. VIPs and SNAT addresses lie in
        /// them. As every list of prefixes it has at most 1024.
        required[own] prefixes: Prefixes,
        /// What is behind gateways.
        optional[own] routes: Routes = "none",
        /// The addresses that backends may have: on-link, or behind a gateway.
        optional[own] backends: SomePrefixes = "as `sources`",
        /// The addresses that flows to this network's backends come from: free ones, for lb alone; at most 16.
        /// Each holds as many flows at a time as it has ports. A text alone is an address.
        optional[own] snat: Snat = "none; no service can use backends here",
    }
}

section! {
    /// A route to what is behind a gateway.
    struct RawRoute = "route" {
        /// A prefix outside of the on-link ones, or 0.0.0.0/0 or ::/0.
        required to: Prefix,
        /// The gateway: an on-link address of the same family; with IPv6 it may be a link-local one.
        required via: Address,
    }
}

section! {
    /// A SNAT address.
    struct RawSnat = "snat" {
        /// The address.
        required address: Address,
        /// The ports that flows have, in 1024-57343.
        optional ports: Ports = "1024-57343",
    }
}

kinds! {
    Routes("list of mappings"): List<RawRoute> = routes;
    /// A text alone is an address.
    Snat("list of addresses, or mappings"): List<At<RawSnat>> = snat;
}

#[expect(clippy::needless_pass_by_value, reason = "the signature of a reader")]
fn routes(node: &Node, place: Location, findings: &mut Findings) -> Option<List<RawRoute>> {
    bounded(node, &place, findings)?;
    Some(list(node, &place, findings, whole))
}

#[expect(
    clippy::needless_pass_by_value,
    clippy::unnecessary_wraps,
    reason = "the signature of a reader"
)]
fn snat(node: &Node, place: Location, findings: &mut Findings) -> Option<List<At<RawSnat>>> {
    Some(list(node, &place, findings, |node, place, findings| {
        if let Kind::Mapping(_) = node.kind {
            return at(node, place, findings);
        }
        let value = RawSnat {
            address: Some(text(node, place.clone(), findings)?),
            ports: None,
        };
        Some(At { place, value })
    }))
}
