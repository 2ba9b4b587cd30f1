//! A packet of TCP or UDP over IPv6 goes the way of its flow.
//!
//! As over IPv4, in two steps, because two addresses of sixteen bytes more do not fit on the stack of one:
//! conntrack finds the flow, and [`lb_rewrite6`] makes of the packet what the flow's other end expects.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be16, Be32, Be128, Mac},
    csum_partial::{self, OPEN, TOO_LONG},
    maps::{
        fragment::{FROM_BACKEND, FROM_CLIENT},
        network::{Address, KIND_VIP, NETWORK_GENERIC, NETWORK_PARTIAL, Network},
    },
    mss,
    nat::{self, Translation},
    verdict::{DropReason, Verdict},
    wire::{Chain, Ipv6Frame, parse_ipv6},
};

use crate::{
    cell::enter,
    emit,
    flow::{conntrack, entry::Hit},
    frame::xdp::Xdp,
    ip::{v6::fragment, version},
    lookup,
    maps::BACKENDS,
    subprogram::{Next6, Outcome, Way6},
};

/// Bytes that an IPv6 header is longer than one of IPv4.
const LONGER: u16 = 20;
/// No layer-4 header begins beyond: see [`Chain`].
const OFFSETS: usize = 511;

/// What is next for a packet to the address of ours with this label in the network `id`, as [`Next6`]. `chain`
/// is [`Chain::raw`].
///
/// A function of its own for the verifier, as `lb_flow`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_flow6(ctx: *mut xdp_md, id: u32, label: u32, chain: u32) -> u64 {
    let (label, chain) = (Be32::from_raw(label), Chain::from_raw(chain));
    match flow(&XdpContext::new(ctx), id as u16, label, chain) {
        Ok(next) => next.raw(),
        Err(reason) => Next6::ended(Err(reason)).raw(),
    }
}

#[inline(always)]
fn flow(ctx: &XdpContext, id: u16, label: Be32, chain: Chain) -> Result<Next6, DropReason> {
    let network = crate::lookup::network_by_id(id)?;
    let address = lookup::labelled(id, label).ok_or(DropReason::NotDeclared)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain)?;
    let (_, port) = frame.l4.ports();
    match address.flow_id(port.get()) {
        Some(flow_id) => {
            let hit = conntrack::reply(&frame, flow_id)?;
            Ok(Next6::flow(
                flow_id,
                Way6::new(hit.generation, FROM_BACKEND),
            ))
        }
        None if address.kind & KIND_VIP != 0 => request(&frame, label, id),
        None => {
            let peer = local_peer(&frame, id, address).ok_or(DropReason::ReplyMismatch)?;
            enter::check(&frame, (peer, label), id)?;
            local(ctx, &frame, network)
        }
    }
}

/// Client to VIP.
#[inline(always)]
fn request(frame: &Ipv6Frame<'_>, vip: Be32, id: u16) -> Result<Next6, DropReason> {
    let key = version::key(frame, vip, id).ok_or(DropReason::RecordMissing)?;
    let hit = conntrack::request(frame, &key)?;
    Ok(hit.map_or(Next6::NEW_FLOW, |hit| {
        Next6::flow(hit.entry.id, Way6::new(hit.generation, FROM_CLIENT))
    }))
}

/// The label of the source of a frame to `address`, if that is for a socket of the network's cell, as for IPv4.
#[inline(always)]
fn local_peer(frame: &Ipv6Frame<'_>, id: u16, address: &Address) -> Option<Be32> {
    let (from, port) = frame.l4.ports();
    if !address.is_local(port.get()) || !frame.is_plain_tcp() || frame.asks() {
        return None;
    }
    lookup::label(frame.ip.source.get()).filter(|&peer| lookup::is_local_peer(id, peer, from))
}

/// What a socket of the cell has to do with.
#[inline(always)]
fn local(ctx: &XdpContext, frame: &Ipv6Frame<'_>, network: &Network) -> Result<Next6, DropReason> {
    let _open = complete(ctx, frame, network)?;
    let verdict = emit::to_cell(network)?;
    Ok(Next6::ended(Ok(verdict)))
}

/// Makes the checksum of a frame that came `from` a network whole, as `rewrite::complete`.
#[inline(always)]
fn complete(ctx: &XdpContext, frame: &Ipv6Frame<'_>, from: &Network) -> Result<bool, DropReason> {
    if from.flags & NETWORK_PARTIAL == 0 {
        return Ok(false);
    }
    let keep = u32::from(from.flags & NETWORK_GENERIC != 0);
    let protocol = u32::from(frame.l4.protocol());
    match lb_complete6(ctx.ctx, protocol, frame.at as u32, keep) {
        TOO_LONG => Err(DropReason::PartialChecksum),
        state => Ok(state == OPEN),
    }
}

/// [`partial::complete6`], as a function of its own for the verifier; the header of `protocol` begins at
/// `first`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_complete6(
    ctx: *mut xdp_md,
    protocol: u32,
    first: u32,
    keep: u32,
) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    csum_partial::complete6(&xdp, protocol as u8, first as usize & OFFSETS, keep != 0)
}

/// [`mss::clamp_at`], as [`lb_complete6`]. Returns whether it wrote.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_clamp6(ctx: *mut xdp_md, first: u32, most: u32) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    u32::from(mss::clamp_at(&xdp, first as usize & OFFSETS, most as u16).is_some())
}

/// Sends a packet that came from the network `id` on to the other end of its flow. `way` is a
/// [`Way6`]. Returns an [`Outcome`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_rewrite6(
    ctx: *mut xdp_md,
    id: u32,
    flow_id: u32,
    way: u32,
    chain: u32,
) -> u32 {
    let ctx = &XdpContext::new(ctx);
    Outcome::of(rewrite(
        ctx,
        id as u16,
        (flow_id, Way6::from_raw(way)),
        Chain::from_raw(chain),
    ))
    .raw()
}

#[inline(always)]
fn rewrite(
    ctx: &XdpContext,
    id: u16,
    (flow_id, way): (u32, Way6),
    chain: Chain,
) -> Result<Verdict, DropReason> {
    let from = crate::lookup::network_by_id(id)?;
    let hit = conntrack::by_id(flow_id).ok_or(DropReason::FlowRace)?;
    if hit.generation != way.generation() {
        return Err(DropReason::FlowRace);
    }
    let direction = way.direction();
    let is_reply = direction == FROM_BACKEND;
    let (network, next_hop) = next(&hit, is_reply)?;
    let out = crate::lookup::network_by_id(network)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain)?;
    let open = if chain.fragment_at().is_some() {
        let network = fragment::both(id, direction);
        let _written = fragment::lb_identify6(ctx.ctx, network, flow_id, chain.raw());
        // What is cut was whole before: see `partial`.
        false
    } else {
        complete(ctx, &frame, from)?
    };
    nat::translate6(&frame, &translation(&hit, is_reply)?);
    if mss::is_asked(&frame) {
        let most = if from.mss < out.mss {
            from.mss
        } else {
            out.mss
        };
        lb_clamp6(
            ctx.ctx,
            frame.at as u32,
            u32::from(most.saturating_sub(LONGER)),
        );
    }
    if open {
        csum_partial::reopen6(&frame);
    }
    nat::address_frame(ethernet, out.mac, next_hop);
    emit::out(ctx, out)
}

/// The network of the flow's other end, and its next hop.
#[inline(always)]
fn next(hit: &Hit, is_reply: bool) -> Result<(u16, Mac), DropReason> {
    if is_reply {
        return Ok((hit.key.network, hit.client_mac));
    }
    let backend = BACKENDS
        .get(hit.backend_id)
        .ok_or(DropReason::RecordMissing)?;
    Ok((backend.network, backend.next_hop))
}

/// What the packet's tuple becomes.
#[inline(always)]
fn translation(hit: &Hit, is_reply: bool) -> Result<Translation<Be128>, DropReason> {
    let address = |label| lookup::unlabel(label).ok_or(DropReason::RecordMissing);
    if is_reply {
        return Ok(Translation {
            source: address(hit.key.vip)?,
            destination: hit.client6().ok_or(DropReason::FlowRace)?,
            source_port: hit.key.vip_port,
            destination_port: hit.key.client_port,
        });
    }
    let flow_id = hit.entry.id;
    let page = crate::flow::snat::snat_page(flow_id).ok_or(DropReason::RecordMissing)?;
    Ok(Translation {
        source: address(page.address)?,
        destination: address(hit.backend)?,
        source_port: Be16::new(page.port(flow_id)),
        destination_port: hit.backend_port,
    })
}
