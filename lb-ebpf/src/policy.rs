//! policy: who may open a flow; asked before any state is made.

use aya_ebpf::btf_maps::lpm_trie::Key;
use lb_common::{
    addr::Be32,
    maps::{
        network::Network,
        rule::{ALLOW, DENY, RuleKey, SET_BITS},
        service::Service,
    },
    verdict::DropReason,
};

use crate::{lookup, maps::RULES};

/// Bits of a rule's key when it is looked up: the set and a whole address.
const WHOLE_KEY: u32 = SET_BITS + 32;

/// Whether `client`, which sent a frame from the network `id`, may open a flow to `service`.
#[inline(always)]
pub(crate) fn admit(
    id: u16,
    network: &Network,
    service: &Service,
    client: Be32,
) -> Result<(), DropReason> {
    check_source(id, network, client)?;
    if service.rules != 0 && rule(service.rules, client) != ALLOW {
        return Err(DropReason::Denied);
    }
    Ok(())
}

/// Whether `client` may be the source of a frame from the network `id`.
#[inline(always)]
pub(crate) fn check_source(id: u16, network: &Network, client: Be32) -> Result<(), DropReason> {
    if client.is_bogon() {
        return Err(DropReason::Bogon);
    }
    if !is_own(id, network, client) {
        return Err(DropReason::Spoofed);
    }
    Ok(())
}

/// Whether `source` may come from the network `id`, and is no address of ours.
#[inline(always)]
pub(crate) fn is_own(id: u16, network: &Network, source: Be32) -> bool {
    rule(network.sources, source) == ALLOW && lookup::address(id, source).is_none()
}

/// Whether a frame of `network` that is not ours may go on to the host: not if the host could
/// route it to a tenant.
#[inline(always)]
pub(crate) fn may_pass(network: &Network, destination: Be32) -> bool {
    network.destinations == 0 || rule(network.destinations, destination) != DENY
}

/// What the longest matching prefix of `set` says; 0 where none matches.
#[inline(always)]
fn rule(set: u32, address: Be32) -> u32 {
    let key = Key::new(WHOLE_KEY, RuleKey { set, address });
    RULES.get(&key).copied().unwrap_or(0)
}
