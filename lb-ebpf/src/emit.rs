//! Out of a NIC or into a cell, to a next hop that is already known.

use aya_ebpf::{helpers::bpf_redirect, programs::XdpContext};
use lb_common::{
    maps::network::{NETWORK_PARTIAL, Network},
    nat,
    verdict::{DropReason, Verdict},
    wire::{Frame, Ip, Tag},
};

use crate::{frame::vlan, lookup::network_by_id, maps::EGRESS, reject};

/// The network with this id, if the frame may go on to it. Call it after the frame has a flow or policy has
/// admitted it, so that other senders cannot probe MTU and hops; and before the frame changes any flow state.
#[inline(always)]
pub(crate) fn check<I: Ip>(frame: &Frame<'_, I>, id: u16) -> Result<&'static Network, DropReason> {
    let network = network_by_id(id)?;
    let mtu = network.mtu;
    let mut size = u64::from(nat::check_size(frame.ip, mtu).is_err());
    // SAFETY: no instruction. The compiler would fold this test into those of the layer-4 header, on
    // registers that are not set on every way there.
    unsafe { core::arch::asm!("", inlateout("r1") size) };
    nat::check_hops(frame.ip)?;
    if size == 0 {
        return Ok(network);
    }
    reject::limits::note_mtu(mtu);
    Err(DropReason::TooBig)
}

/// Sends the frame, which is addressed already, out of the NIC of `network` with its tag.
#[inline(always)]
pub(crate) fn out(ctx: &XdpContext, network: &Network) -> Result<Verdict, DropReason> {
    if network.vlan != 0 {
        vlan::put_on(ctx, Tag::of(network.vlan))?;
    }
    if network.ifindex == ctx.ingress_ifindex() as u32 {
        return Ok(Verdict::Transmitted);
    }
    to_nic(network.ifindex)?;
    Ok(Verdict::Forwarded)
}

/// Sends an answer back to the station that the question came from, out of the NIC of `network` with its tag. Where a
/// local stack may be behind the NIC, by a redirect: a veth loses `XDP_TX` unless its peer has a program.
#[inline(always)]
pub(crate) fn back(ctx: &XdpContext, network: &Network) -> Result<Verdict, DropReason> {
    if network.flags & NETWORK_PARTIAL == 0 {
        return out(ctx, network);
    }
    if network.vlan != 0 {
        vlan::put_on(ctx, Tag::of(network.vlan))?;
    }
    to_nic(network.ifindex)?;
    Ok(Verdict::Returned)
}

/// Hands the frame, as it is, to the cell of `network`.
#[inline(always)]
pub(crate) fn to_cell(network: &Network) -> Result<Verdict, DropReason> {
    redirect(network.cell_ifindex)?;
    Ok(Verdict::Delivered)
}

/// Sends the frame, as it is, out of the NIC with this index.
///
/// By a map of devices, whose program makes copies of frames segments (`syn_cookie::clone`): what one poll sends to a NIC is a
/// queue, which has the program of its first frame for all of them.
#[inline(always)]
fn to_nic(ifindex: u32) -> Result<(), DropReason> {
    match EGRESS.redirect(ifindex, 0) {
        Ok(_) => Ok(()),
        // One that userspace has not written yet.
        Err(_) => redirect(ifindex),
    }
}

/// Sends the frame, as it is, to the interface with this index.
#[inline(always)]
fn redirect(ifindex: u32) -> Result<(), DropReason> {
    if ifindex == 0 {
        return Err(DropReason::RecordMissing);
    }
    // SAFETY: the helper notes the target for this CPU's current frame; an interface that is gone
    // loses the frame after the verdict, in the driver's counters. The flags are zero, so the
    // answer is always XDP_REDIRECT.
    let _action: i64 = unsafe { bpf_redirect(ifindex, 0) };
    Ok(())
}
