//! A frame becomes a segment of a client's hello to its backend.

use aya_ebpf::{
    helpers::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail},
    programs::XdpContext,
};
use lb_common::{
    addr::Be16,
    late_binding::HelloSegment,
    maps::network::Network,
    nat,
    wire::{Packet, header::Ethernet},
};
use network_types::eth::EtherType;

use super::slot::ClaimedSlot;
use crate::{flow::entry::Entry, frame::xdp::Xdp, maps::BACKENDS};

/// Gives a frame this length, if there is room.
#[inline(always)]
pub(super) fn resize(ctx: &XdpContext, bytes: usize) -> Option<()> {
    let longer = bytes as i32 - Xdp::new(ctx).len() as i32;
    // SAFETY: the context is that of the running program; no reference into the frame is used afterwards.
    let resized = unsafe { bpf_xdp_adjust_tail(ctx.ctx, longer) };
    (resized == 0).then_some(())
}

/// Gives a frame this length, for headers that are written anew, all of them: in front there is always room (`XDP_PACKET_HEADROOM`, of
/// 256 bytes less what the driver takes), where a veth leaves none behind a small frame.
#[inline(always)]
pub(super) fn resize_for_headers(ctx: &XdpContext, bytes: usize) -> Option<()> {
    let longer = bytes as i32 - Xdp::new(ctx).len() as i32;
    if longer <= 0 {
        return resize(ctx, bytes);
    }
    // SAFETY: the context is that of the running program; no reference into the frame is used afterwards.
    let resized = unsafe { bpf_xdp_adjust_head(ctx.ctx, -longer) };
    if resized != 0 {
        return None;
    }
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    ethernet
        .ethertype
        .set(Be16::from_raw(EtherType::Ipv4 as u16));
    Some(())
}

/// Writes a segment of the hello in its slot, for the backend of its flow in this network, over a frame of its length.
#[inline(always)]
pub(super) fn write(
    ctx: &XdpContext,
    network: &Network,
    entry: &Entry,
    segment: &HelloSegment,
    slot: &mut ClaimedSlot,
) -> Option<()> {
    let backend = BACKENDS.get(entry.backend_id())?;
    let stored = slot.head().segment(segment.part);
    let (_, data) = segment.frame_bytes(slot.head());
    if stored.length != 0 {
        slot.store(ctx, data as u32, segment.part, stored).ok()?;
    }
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    nat::address_frame(ethernet, network.mac, backend.next_hop);
    segment.write(&xdp, slot.head())
}
