//! What is behind the IPv6 header.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    verdict::DropReason,
    wire::{
        Chain, Packet,
        header::{Ethernet, Ipv6},
    },
};

use crate::{frame::xdp::Xdp, subprogram};

/// ICMPv6 (RFC 4443).
pub(crate) const ICMP: u8 = 58;

/// What [`lb_chain`] returns for a packet that may not go on is above all chains.
pub(crate) const REFUSED: u32 = 1 << 24;

/// What is behind the IPv6 header.
#[inline(always)]
pub(crate) fn chain(ctx: &XdpContext) -> Result<Chain, DropReason> {
    let said = lb_chain(ctx.ctx);
    if said >= REFUSED {
        return Err(subprogram::reason(said - REFUSED));
    }
    Ok(Chain::from_raw(said))
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
