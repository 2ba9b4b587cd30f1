//! Which sources may open a flow; judged before any state is made.

use lb_common::{
    addr::Be32,
    maps::{
        network::Network,
        rule::{ALLOW, DENY, NEIGHBOUR},
        service::Service,
    },
    verdict::{DropReason, Verdict},
};

use crate::{ip::version::IpVersion, lookup::rule};

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

/// Whether an address for which the sources of a network have this rule may be a station of it.
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

/// IP to none of our addresses: from a tenant it is dropped; else it goes to the host, but not through it.
#[inline(always)]
pub(crate) fn not_for_us(network: &Network, ip: &impl IpVersion) -> Result<Verdict, DropReason> {
    if network.is_tenant() {
        Err(DropReason::NotDeclared)
    } else if may_pass(network, ip) {
        Ok(Verdict::Passed)
    } else {
        Err(DropReason::ToTenant)
    }
}
