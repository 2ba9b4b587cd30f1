//! The keys of a network.

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;

use super::{
    declare::section,
    kinds::{Address, Clients, Flag, Flows, Name, kinds},
    reader::{at, bounded, list, text, whole},
    values::{number_of, only_word, parsed, prefixes, within, word},
};
use crate::config::{
    address,
    list::List,
    model::{Role, SecondSegment, TCP_IP_BYTES},
    place::{At, Location, quote},
    problem::Findings,
    quota::MIN_PLACES,
    yaml::{Kind, Node},
};

section! {
    /// A layer-2 network that the load balancer is attached to; at least one.
    struct RawNetwork = "network" {
        /// `mgmt` (the nodes of the hub), `tenant` (workers of one tenant) or `uplink` (everything else). From tenant
        /// networks nothing but services can be reached; from `mgmt` no service of a tenant. What comes from `mgmt` and
        /// `uplink` and is not for lb passes to the host.
        required role: OneRole,
        /// The physical port. Several networks share it if all but one have a `vlan`.
        required interface: Interface,
        /// The 802.1Q id of its frames, 1 to 4094.
        optional vlan: Vlan => "untagged frames",
        /// `host`: VIPs and SNAT addresses are the host's own addresses on this interface, and all other traffic stays
        /// the host's. SNAT addresses then need `ports`, in 1024-65535 and at most 56320, that nothing else on the host
        /// uses. Only for untagged networks that are not a tenant's.
        optional address: Host => "all addresses are lb's alone, and the host has none of them",
        /// The addresses that clients may have: prefixes of any length.
        optional sources: Clients => "`prefixes`, and `routes` except 0.0.0.0/0 and ::/0",
        /// Whether a client that connects to a port of a VIP without a service gets a TCP reset or an ICMP port
        /// unreachable.
        optional reject: Flag = "false",
        /// The maximum number of established connections and answered UDP flows of its clients, 1 or more; further ones
        /// are refused. Without it a network may have, of the SNAT ports of each network that it has backends on, an
        /// equal part of what networks with `max_flows` leave, less `half_open` and `udp_flows`; all of them where no
        /// other network has backends. `lb check` prints the parts, and warns where the ports are too few.
        optional max_flows: Flows => "a part of the SNAT ports that other networks use too, else no limit",
        /// Slots for TCP connections that are not established yet, 64 to 65536. A new connection takes the oldest slot,
        /// and ends the flow that had it if that is still half-open: a flood ends nothing but itself. `lb status` shows
        /// how long a slot lasts.
        optional half_open: Slots => "a quarter of its part of shared SNAT ports (see `max_flows`), 64 to 8192",
        /// Slots for UDP flows, 64 to 65536. A new flow takes the oldest slot, and ends the flow that had it if that
        /// has no reply, or no packet for 10 s. `lb status` shows how long a slot lasts.
        optional udp_flows: Slots => "a quarter of its part of shared SNAT ports (see `max_flows`), 64 to 8192",
        /// The maximum of data bytes in a TCP segment to or from this network, 64 to 65495, and at most what a packet
        /// of its interface has room for. A SYN or SYN-ACK that announces more is changed, to the smaller number of the
        /// networks of its client and its backend. Clients behind an MTU of less than 1280 bytes need it: ICMP
        /// announces none below that to a backend. Where lb accepts connections itself (`sni`, `http`,
        /// `proxy_protocol`) the MTU of the interface alone counts.
        optional mss: Mss => "the MTU of the interface less 40; with IPv6 less 60",
        /// When backends here get the second segment of a long ClientHello to a service with `late_binding`: `at_once`
        /// (XDP has the kernel copy the frame that becomes both; for up to 8 interfaces) or `on_ack` (when they have
        /// acknowledged the first one; for a driver that cannot send copies).
        optional second_segment: WhenSecond = "at_once",
        /// The on-link prefixes, of IPv4 (/8 to /30), IPv6 (/16 to /126) or both. VIPs and SNAT addresses lie in them.
        /// As every list of prefixes it has at most 1024. IPv6 is for services with `pool` alone, without `keepalive`
        /// and `proxy_protocol`, and not for networks with `address: host`.
        required[own] prefixes: OnLink,
        /// What is behind gateways.
        optional[own] routes: Routes,
        /// The addresses that backends may have: on-link, or behind a gateway.
        optional[own] backends: BackendPrefixes => "as `sources`",
        /// The addresses that flows to this network's backends come from: free ones, for lb alone; at most 16, of both
        /// families. Each holds as many flows at a time as it has ports. Flows to IPv6 backends need one of IPv6. A
        /// text alone is an address.
        optional[own] snat: Snat => "none, and no service can use backends here",
        /// With `ha`, the address of each box that stays with it, whichever box is active: its checks of backends and its
        /// questions for next hops come from there. A free one on-link, for lb alone, of each family that `snat` has.
        optional[own] checks_from: ChecksFrom => "required of networks with `snat` if there is `ha`, else not allowed",
    }
}

section! {
    /// A route to what is behind a gateway.
    struct RawRoute = "route" {
        /// A prefix outside of the on-link ones, or 0.0.0.0/0 or ::/0.
        required to: Prefix,
        /// The gateway: an on-link address of the same family; with IPv6 it may be a link-local one.
        required via: Gateway,
    }
}

section! {
    /// A SNAT address.
    struct RawSnat = "snat" {
        /// The address.
        required address: Address,
        /// The ports that flows have, in 1024-57343.
        optional ports: Ports => "`1024-57343`",
        /// The box whose new flows have it, of those in `ha`, without which it is not allowed. Of the networks with SNAT addresses
        /// each box has one or more, of each family that there are some of.
        optional r#box: Name => "required with `ha`",
    }
}

section! {
    /// The address of a box that stays with it.
    struct RawChecksFrom = "checks_from" {
        /// The address.
        required address: Address,
        /// The box that has it, of those in `ha`.
        required r#box: Name,
    }
}

/// The longest interface name in bytes: the kernel's `IFNAMSIZ` less the terminating zero.
const MAX_INTERFACE: usize = 15;

/// IEEE 802.1Q: 0 is no VLAN, and 4095 is reserved.
const VLAN_IDS: RangeInclusive<u16> = 1..=4094;

/// How many slots a ring may have: fewer are churned by a few clients that come at once, and more
/// could be most of the flows there are.
const SLOTS: RangeInclusive<u32> = MIN_PLACES..=65_536;

/// How much data a segment may have: less makes no connection that is of use, and more is in no IP
/// packet.
const MSS: RangeInclusive<u16> = 64..=65_535 - TCP_IP_BYTES;

kinds! {
    OneRole("word"): Option<At<Role>> = role;
    Interface("text"): Option<At<String>> = interface;
    /// Whether it is the host, or what is reported.
    Host("word"): Option<At<bool>> = only_word("host");
    WhenSecond("word"): Option<At<SecondSegment>> = word(&[SecondSegment::AtOnce, SecondSegment::OnAck]);
    Vlan("number"): Option<At<Option<u16>>> = number_of("VLAN id", VLAN_IDS);
    Slots("number"): Option<At<u32>> = within(SLOTS);
    Mss("number"): Option<At<u16>> = within(MSS);
    OnLink("list of prefixes"): List<At<IpNet>> = prefixes(address::prefix);
    BackendPrefixes("list of prefixes"): Option<List<At<IpNet>>> = backend_prefixes;
    Prefix("prefix"): Option<At<IpNet>> = parsed(address::any_prefix);
    Gateway("address"): Option<At<IpAddr>> = parsed(address::gateway);
    /// None in it: they could not be read.
    Ports("`FIRST-LAST`"): Option<At<Option<RangeInclusive<u16>>>> = ports;
    Routes("list of mappings", RawRoute): List<RawRoute> = routes;
    /// A text alone is an address.
    Snat("list of addresses, or mappings", RawSnat): List<At<RawSnat>> = snat;
    ChecksFrom("list of mappings", RawChecksFrom): List<At<RawChecksFrom>> = checks_from;
}

fn role(node: &Node, place: Location, findings: &mut Findings) -> Option<At<Role>> {
    let At { place, value } = text(node, place, findings)?;
    let roles = [Role::Mgmt, Role::Tenant, Role::Uplink];
    let role = roles.into_iter().find(|role| role.to_string() == value);
    if role.is_none() {
        let words = format!(
            "{} is not a role; expected tenant, mgmt or uplink",
            quote(&value)
        );
        findings.add(&place, words);
    }
    role.map(|value| At { place, value })
}

fn interface(node: &Node, place: Location, findings: &mut Findings) -> Option<At<String>> {
    let At { place, value } = text(node, place, findings)?;
    // What the kernel refuses as a name (dev_valid_name in net/core/dev.c).
    let forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    let is_short = (1..=MAX_INTERFACE).contains(&value.len());
    if !is_short || value.contains(forbidden) || value == "." || value == ".." {
        let words = format!(
            "{} is not an interface name; expected 1 to {MAX_INTERFACE} characters, no /, : or \
             space",
            quote(&value)
        );
        findings.add(&place, words);
        return None;
    }
    Some(At { place, value })
}

/// Prefixes whose absence means something else than an empty list.
#[expect(clippy::unnecessary_wraps, reason = "the signature of a reader")]
fn backend_prefixes(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<IpNet>>> {
    let prefixes = prefixes(address::any_prefix)(node, place, findings);
    Some(prefixes.unwrap_or_default())
}

fn ports(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<At<Option<RangeInclusive<u16>>>> {
    let At { place, value } = text(node, place, findings)?;
    let value = findings.check(&place, address::ports(&value));
    Some(At { place, value })
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
fn checks_from(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<RawChecksFrom>>> {
    Some(list(node, &place, findings, at))
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
        let At { place, value } = text(node, place, findings)?;
        let address = findings.check(&place, address::address(&value));
        let value = RawSnat {
            address: address.map(|value| At {
                place: place.clone(),
                value,
            }),
            ports: None,
            r#box: None,
        };
        Some(At { place, value })
    }))
}
