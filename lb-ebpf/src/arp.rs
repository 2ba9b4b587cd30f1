//! ARP goes to the cell that owns the target address, and never from a tenant to the host.

use lb_common::{
    maps::network::Network,
    verdict::{DropReason, Verdict},
    wire::{
        Packet,
        header::{Arp, Ethernet},
    },
};

use crate::{emit, lookup, parse::Xdp};

/// Steers an ARP frame by its target: who is asked in a request, who asked in a reply.
#[inline(always)]
pub(crate) fn arp(xdp: &Xdp, id: u16, network: &Network) -> Result<Verdict, DropReason> {
    let arp: &Arp = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    if !network.is_host() && lookup::address(id, arp.target.get()).is_some() {
        if network.is_stopped() {
            return Err(DropReason::Stopped);
        }
        return emit::to_cell(network);
    }
    if network.is_tenant() {
        // The cell may know who says where he is; nobody else needs to.
        if arp.sender.get() == arp.target.get() {
            return emit::to_cell(network);
        }
        return Err(DropReason::ArpNotOurs);
    }
    Ok(Verdict::Passed)
}
