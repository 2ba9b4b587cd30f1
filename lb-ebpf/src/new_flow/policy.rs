//! Who may open a flow; asked before any state is made.

use aya_ebpf::btf_maps::lpm_trie::Key;
use lb_common::{
    addr::{Be32, Be128},
    maps::{
        network::Network,
        rule::{ALLOW, DENY, NEIGHBOUR, RuleKey, RuleKey6, SET_BITS},
        service::Service,
    },
    verdict::DropReason,
};

use crate::{
    ip::version::IpVersion,
    maps::{RULES, RULES6},
};

/// Whether the source of a packet from the network `id` may open a flow to `service`.
#[inline(always)]
pub(crate) fn admit(
    id: u16,
    network: &Network,
    service: &Service,
    client: &impl IpVersion,
) -> Result<(), DropReason> {
    check_source(id, network, client)?;
    if service.rules != 0 && client.source_rule(service.rules) != ALLOW {
        return Err(DropReason::Denied);
    }
    Ok(())
}

/// Whether a packet from the network `id` may have the source that it has.
#[inline(always)]
pub(crate) fn check_source(
    id: u16,
    network: &Network,
    ip: &impl IpVersion,
) -> Result<(), DropReason> {
    if ip.has_bogon_source() {
        return Err(DropReason::Bogon);
    }
    if !is_own(id, network, ip) {
        return Err(DropReason::Spoofed);
    }
    Ok(())
}

/// Whether the source of a packet may come from the network `id`, and is no address of ours.
#[inline(always)]
pub(crate) fn is_own(id: u16, network: &Network, ip: &impl IpVersion) -> bool {
    ip.source_rule(network.sources) == ALLOW && !ip.has_our_source(id)
}

/// Whether an address of which the sources of a network say this may be a station of it.
#[inline(always)]
pub(crate) const fn is_neighbour(rule: u32) -> bool {
    matches!(rule, ALLOW | NEIGHBOUR)
}

/// Whether the cell of `network` answers this address on the link, and not through a gateway.
#[inline(always)]
pub(crate) fn is_on_link(network: &Network, address: Be32) -> bool {
    network.destinations != 0 && rule(network.destinations, address) == NEIGHBOUR
}

/// Whether a packet from `network` that is not ours may go on to the host: not if the host could
/// route it to a tenant.
#[inline(always)]
pub(crate) fn may_pass(network: &Network, ip: &impl IpVersion) -> bool {
    network.destinations == 0 || ip.destination_rule(network.destinations) != DENY
}

/// What the longest matching prefix of `set` says; 0 where none matches.
#[inline(always)]
pub(crate) fn rule(set: u32, address: Be32) -> u32 {
    let key = Key::new(SET_BITS + 32, RuleKey { set, address });
    RULES.get(&key).copied().unwrap_or(0)
}

/// The same of IPv6.
#[inline(always)]
pub(crate) fn rule6(set: u32, address: Be128) -> u32 {
    let key = Key::new(SET_BITS + 128, RuleKey6 { set, address });
    RULES6.get(&key).copied().unwrap_or(0)
}
