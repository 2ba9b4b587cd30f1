//! A frame becomes the first segment of a client to its backend.

use aya_ebpf::{helpers::bpf_xdp_adjust_tail, programs::XdpContext};
use lb_common::{
    late_binding::FirstSegment,
    maps::{hello::HelloHead, network::Network},
    nat,
    wire::{Packet, header::Ethernet},
};

use super::slot::ClaimedSlot;
use crate::{flow::entry::Entry, frame::xdp::Xdp, maps::BACKENDS};

/// Gives a frame the length of a client's first segment, if there is room.
#[inline(always)]
pub(super) fn grow(ctx: &XdpContext, head: &HelloHead) -> Option<()> {
    let (bytes, _) = FirstSegment::frame_bytes(head);
    let longer = bytes as i32 - Xdp::new(ctx).len() as i32;
    // SAFETY: the context is that of the running program; no reference into the frame is used afterwards.
    let grown = unsafe { bpf_xdp_adjust_tail(ctx.ctx, longer) };
    (grown == 0).then_some(())
}

/// Writes a client's first segment, for the backend of its flow in this network, over a frame of its length.
#[inline(always)]
pub(super) fn write(
    ctx: &XdpContext,
    network: &Network,
    entry: &Entry,
    segment: &FirstSegment,
    slot: &mut ClaimedSlot,
) -> Option<()> {
    let backend = BACKENDS.get(entry.backend_id())?;
    let [length, _] = slot.head().lengths;
    let (_, data) = FirstSegment::frame_bytes(slot.head());
    slot.store(ctx, data as u32, length.into()).ok()?;
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    nat::address_frame(ethernet, network.mac, backend.next_hop);
    segment.write(&xdp, slot.head())
}
