//! The outer end of a cell: only what a cell must send gets out.

pub(crate) mod enter;
pub(crate) mod sockets;
mod station;

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::network::Network,
    verdict::{DropReason, Hook, Verdict},
    wire::{
        Chain, Packet,
        header::{Arp, Ethernet, Ipv4, Ipv6},
        parse_ipv4, parse_ipv6,
    },
};
use network_types::eth::EtherType;

use self::enter::Addresses;
use crate::{
    count, drop_sample, emit,
    flow::{snat::flow_id, splice},
    frame::xdp::Xdp,
    ip::v6,
    lookup, subprogram,
};

/// `lb_cell`.
#[inline(always)]
pub(crate) fn cell(ctx: &XdpContext) -> u32 {
    let Some((id, network)) = lookup::network(ctx.ingress_ifindex() as u32, 0) else {
        let verdict = Verdict::Dropped(DropReason::RecordMissing);
        return count::finish(ctx, Hook::Cell, 0, verdict);
    };
    match leave(ctx, &Xdp::new(ctx), id, network) {
        Ok(verdict) => count::finish(ctx, Hook::Cell, id, verdict),
        Err(reason) => lb_stay(ctx.ctx, id.into(), reason as u32),
    }
}

/// The end of a frame of the network `id` that stays in the cell for the reason with this number: sampled, counted.
/// Returns the XDP action.
///
/// A subprogram, which the verifier walks once and not once for each way here.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_stay(ctx: *mut xdp_md, id: u32, reason: u32) -> u32 {
    let ctx = &XdpContext::new(ctx);
    drop_sample::keep(ctx, Hook::Cell, id, reason);
    let verdict = Verdict::Dropped(subprogram::reason(reason));
    count::finish(ctx, Hook::Cell, id as u16, verdict)
}

/// What speaks for one of the network's addresses leaves by the NIC; nothing else does.
#[inline(always)]
fn leave(ctx: &XdpContext, xdp: &Xdp, id: u16, network: &Network) -> Result<Verdict, DropReason> {
    if network.is_stopped() {
        return Err(DropReason::Stopped);
    }
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let ethertype = ethernet.ethertype.get().raw();
    let may_leave = if ethertype == EtherType::Arp as u16 {
        let arp: &Arp = xdp
            .header(size_of::<Ethernet>())
            .ok_or(DropReason::Malformed)?;
        lookup::address(id, arp.sender.get()).is_some()
    } else if ethertype == EtherType::Ipv6 as u16 {
        v6::neighbour::may_leave(xdp, id).is_some() || is_local6(xdp, id, ethernet).is_some()
    } else {
        ethertype == EtherType::Ipv4 as u16 && is_local(xdp, id, ethernet).is_some()
    };
    if !may_leave {
        return Err(DropReason::CellForbidden);
    }
    emit::out(ctx, network)
}

/// Whether this is a segment that a socket of the cell sends to a peer on the network: from a local port of a
/// SNAT address, from a flow's port that the socket has, or from a shared VIP.
#[inline(always)]
fn is_local(xdp: &Xdp, id: u16, ethernet: &Ethernet) -> Option<()> {
    let ip: &Ipv4 = xdp.header(size_of::<Ethernet>())?;
    let frame = parse_ipv4(xdp, ethernet, ip).ok()?;
    let (port, _) = frame.l4.ports();
    let ours = lookup::address(id, ip.source.get())?;
    if !frame.is_plain_tcp() || lookup::address(id, ip.destination.get()).is_some() {
        return None;
    }
    if ours.is_quiet() && frame.resets() {
        // Of a connection that another box has carried: its client is not to know before that is sure.
        return None;
    }
    if let Some(flow_id) = flow_id(ours, port) {
        return splice::may_send(&frame, flow_id).then_some(());
    }
    let is_local = ours.is_local(port.get())
        || lookup::is_shared(id, ip.source.get(), port) && !splice::is_taken(&frame, id);
    if !is_local {
        return None;
    }
    let ends = Addresses {
        us: ip.source.get(),
        peer: ip.destination.get(),
    };
    enter::note(&frame, ends, id);
    Some(())
}

/// The same of IPv6, which has checks only.
#[inline(always)]
fn is_local6(xdp: &Xdp, id: u16, ethernet: &Ethernet) -> Option<()> {
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    let frame = parse_ipv6(xdp, ethernet, ip, Chain::none(ip.next_header.get())).ok()?;
    let (port, _) = frame.l4.ports();
    let us = lookup::label(ip.source.get())?;
    let ours = lookup::labelled(id, us)?;
    let peer = lookup::label(ip.destination.get());
    let to_us = peer.and_then(|label| lookup::labelled(id, label));
    if !frame.is_plain_tcp() || to_us.is_some() || !ours.is_local(port.get()) {
        return None;
    }
    if let Some(peer) = peer {
        enter::note(&frame, Addresses { us, peer }, id);
    }
    Some(())
}
