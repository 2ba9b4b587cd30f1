//! The outer VLAN tag, taken off at the door and put on at the exit, so that everything in
//! between sees an untagged frame.

use aya_ebpf::{helpers::bpf_xdp_adjust_head, programs::XdpContext};
use lb_common::{
    verdict::DropReason,
    wire::{
        Packet, Tag,
        header::{Ethernet, TaggedEthernet, Vlan},
    },
};

use crate::frame::xdp::Xdp;

/// Bytes of a tag.
const TAG_BYTES: i32 = size_of::<Vlan>() as i32;

/// Takes the tag off; every pointer into the frame is stale afterwards.
#[inline(always)]
pub(crate) fn take_off(ctx: &XdpContext) -> Result<(), DropReason> {
    let xdp = Xdp::new(ctx);
    let from: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let (destination, source) = (from.destination.get(), from.source.get());
    let to: &Ethernet = xdp.header(size_of::<Vlan>()).ok_or(DropReason::Malformed)?;
    // The type of what follows stands in its place already.
    to.destination.set(destination);
    to.source.set(source);
    move_start(ctx, TAG_BYTES)
}

/// Puts `tag` on; every pointer into the frame is stale afterwards.
#[inline(always)]
pub(crate) fn put_on(ctx: &XdpContext, tag: Tag) -> Result<(), DropReason> {
    move_start(ctx, -TAG_BYTES)?;
    let xdp = Xdp::new(ctx);
    let from: &Ethernet = xdp
        .header(size_of::<Vlan>())
        .ok_or(DropReason::NoHeadroom)?;
    let (destination, source) = (from.destination.get(), from.source.get());
    let to: &TaggedEthernet = xdp.header(0).ok_or(DropReason::NoHeadroom)?;
    to.destination.set(destination);
    to.source.set(source);
    to.protocol.set(tag.protocol);
    to.tci.set(tag.tci);
    Ok(())
}

/// Moves the start of the frame by `bytes`, forward if positive.
#[inline(always)]
fn move_start(ctx: &XdpContext, bytes: i32) -> Result<(), DropReason> {
    // SAFETY: the context is that of the running program; the caller holds no reference into the
    // frame any more.
    let moved = unsafe { bpf_xdp_adjust_head(ctx.ctx, bytes) };
    if moved == 0 {
        Ok(())
    } else {
        Err(DropReason::NoHeadroom)
    }
}
