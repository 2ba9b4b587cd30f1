//! ipv6: what happens to a frame of IPv6 for us: neighbour discovery, ICMP, pieces, flows.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Be32,
    maps::network::Network,
    verdict::{DropReason, Verdict},
    wire::{
        Chain, Packet,
        header::{Ethernet, Ipv6},
    },
};

use crate::{
    count, emit, forward, fragment6, icmp6, lookup, neighbour, open, parse::Xdp, pipeline,
};

/// ICMPv6 (RFC 4443).
pub(crate) const ICMP: u8 = 58;
/// What [`lb_chain`] says of a packet that may not go on is above all chains.
const REFUSED: u32 = 1 << 24;

/// The end of a packet of IPv6 from the network `id`, as [`count::number`]. A function of its own for the
/// verifier, as `lb_refuse`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_ipv6(ctx: *mut xdp_md, id: u32) -> u32 {
    count::number(ipv6(&XdpContext::new(ctx), id as u16))
}

#[inline(always)]
fn ipv6(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let network = emit::network(id)?;
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv6 = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    if ethernet.destination.get().is_group() {
        return neighbour::group(&xdp, id, network);
    }
    let label = lookup::label(ip.destination.get());
    let ours = label.filter(|&label| lookup::labelled(id, label).is_some());
    match ours {
        Some(_) if network.is_stopped() => Err(DropReason::Stopped),
        Some(label) => to_us(ctx, id, network, label),
        None => pipeline::elsewhere(network, ip),
    }
}

/// To the address of ours with this label.
#[inline(always)]
fn to_us(ctx: &XdpContext, id: u16, network: &Network, label: Be32) -> Result<Verdict, DropReason> {
    let said = lb_chain(ctx.ctx);
    if said >= REFUSED {
        return Err(count::reason(said - REFUSED));
    }
    let chain = Chain::from_raw(said);
    let xdp = Xdp::new(ctx);
    if let Some(fragment) = chain.fragment(&xdp)
        && fragment.offset() != 0
    {
        return count::end(fragment6::lb_fragment6(ctx.ctx, u32::from(id), said));
    }
    if chain.protocol() != ICMP {
        return flow(ctx, id, label, said);
    }
    if neighbour::is_asked(&xdp, chain) {
        return emit::to_cell(network);
    }
    count::end(icmp6::lb_icmp6(ctx.ctx, u32::from(id), said))
}

/// A packet of TCP or UDP goes the way of its flow.
#[inline(always)]
fn flow(ctx: &XdpContext, id: u16, label: Be32, chain: u32) -> Result<Verdict, DropReason> {
    let (id, label) = (u32::from(id), label.raw());
    match forward::lb_flow6(ctx.ctx, id, label, chain) {
        forward::OPENS => count::end(open::lb_open6(ctx.ctx, id, label, chain)),
        said => count::end(said as u32),
    }
}

/// Walks the extension headers: [`Chain::raw`], or [`REFUSED`] and the number of a reason. A function of its
/// own for the verifier.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_chain(ctx: *mut xdp_md) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    let ip: Option<&Ipv6> = xdp.header(size_of::<Ethernet>());
    let walked = ip
        .ok_or(DropReason::Malformed)
        .and_then(|ip| Chain::walk(&xdp, ip));
    match walked {
        Ok(chain) => chain.raw(),
        Err(reason) => REFUSED + reason as u32,
    }
}
