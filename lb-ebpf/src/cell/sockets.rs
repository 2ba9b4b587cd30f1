//! Segments that go to the sockets of a cell: of its checks, and of the connections of shared VIPs.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    addr::Be32,
    maps::{
        addr6,
        network::{Address, Network},
    },
    verdict::{DropReason, Verdict},
    wire::{Ipv4Frame, Ipv6Frame},
};

use crate::{
    emit,
    flow::{rewrite, splice},
    ip::v6,
    lookup::{self, NetworkRef},
};

/// Whether a frame to `address` is for a socket of the network's cell: plain TCP from a peer that the cell
/// talks to. The cell only opens connections, so a bare SYN is never for it; whether the segment is of a
/// connection, the cell's kernel judges.
#[inline(always)]
pub(crate) fn is_local(frame: &Ipv4Frame<'_>, from: NetworkRef, address: &Address) -> bool {
    let source = frame.ip.source.get();
    let (source_port, port) = frame.l4.ports();
    address.is_local(port.get())
        && !from.is_host()
        && frame.is_plain_tcp()
        && !frame.asks()
        && addr6::index(source).is_none()
        && lookup::is_local_peer(from.id, source, source_port)
}

/// The label of the source of a frame of IPv6 to `address`, if that is for a socket of the network's cell, as for
/// IPv4.
#[inline(always)]
pub(crate) fn local_peer6(frame: &Ipv6Frame<'_>, id: u16, address: &Address) -> Option<Be32> {
    let (from, port) = frame.l4.ports();
    if !address.is_local(port.get()) || !frame.is_plain_tcp() || frame.asks() {
        return None;
    }
    lookup::label(frame.ip.source.get()).filter(|&peer| lookup::is_local_peer(id, peer, from))
}

/// Delivers a segment into the cell; or to the host, whose socket it is for then.
#[inline(always)]
pub(crate) fn deliver(ctx: &XdpContext, network: &Network) -> Result<Verdict, DropReason> {
    if network.is_host() {
        return Ok(Verdict::Passed);
    }
    // Where the kernel's stack will, it does so in the cell as well.
    let _open = rewrite::complete(ctx, network)?;
    emit::to_cell(network)
}

/// The same of IPv6.
#[inline(always)]
pub(crate) fn deliver6(
    ctx: &XdpContext,
    frame: &Ipv6Frame<'_>,
    network: &Network,
) -> Result<Verdict, DropReason> {
    let _open = v6::rewrite::complete(ctx, frame, network)?;
    emit::to_cell(network)
}

/// Delivers a backend's segment to the socket of the cell that has the flow.
#[inline(always)]
pub(crate) fn deliver_of_flow(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    network: &Network,
    flow_id: u32,
) -> Result<Verdict, DropReason> {
    if !frame.is_plain_tcp() {
        return Err(DropReason::UnsupportedProtocol);
    }
    if frame.answers() {
        splice::lb_note_opening(ctx.ctx, flow_id);
    }
    deliver(ctx, network)
}
