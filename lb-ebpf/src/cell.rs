//! The outer end of a cell: only what a cell must send gets out.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    maps::network::Network,
    verdict::{DropReason, Hook, Verdict},
    wire::{
        Packet,
        header::{Arp, Ethernet},
    },
};
use network_types::eth::EtherType;

use crate::{count, emit, lookup, parse::Xdp};

/// `lb_cell`.
#[inline(always)]
pub(crate) fn cell(ctx: &XdpContext) -> u32 {
    let Some((id, network)) = lookup::network(ctx.ingress_ifindex() as u32, 0) else {
        let verdict = Verdict::Dropped(DropReason::RecordMissing);
        return count::finish(ctx, Hook::Cell, 0, verdict);
    };
    let verdict = leave(ctx, &Xdp::new(ctx), id, network).unwrap_or_else(Verdict::Dropped);
    count::finish(ctx, Hook::Cell, id, verdict)
}

/// ARP that speaks for one of the network's addresses leaves by the NIC; nothing else does.
#[inline(always)]
fn leave(ctx: &XdpContext, xdp: &Xdp, id: u16, network: &Network) -> Result<Verdict, DropReason> {
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    if ethernet.ethertype.get().raw() != EtherType::Arp as u16 {
        return Err(DropReason::CellForbidden);
    }
    let arp: &Arp = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    if lookup::address(id, arp.sender.get()).is_none() {
        return Err(DropReason::CellForbidden);
    }
    emit::out(ctx, network)
}
