//! What is behind the IPv6 header.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    verdict::DropReason,
    wire::{
        Chain, Packet,
        header::{Ethernet, Ipv6},
    },
};

use crate::{frame::xdp::Xdp, subprogram::Walked};

/// ICMPv6 (RFC 4443).
pub(crate) const ICMP: u8 = 58;

/// What is behind the IPv6 header.
#[inline(always)]
pub(crate) fn chain(ctx: &XdpContext) -> Result<Chain, DropReason> {
    Walked::from_raw(lb_chain(ctx.ctx)).chain()
}

/// Walks the extension headers: [`Walked`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_chain(ctx: *mut xdp_md) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    let ip: Option<&Ipv6> = xdp.header(size_of::<Ethernet>());
    let walked = ip
        .ok_or(DropReason::Malformed)
        .and_then(|ip| Chain::walk(&xdp, ip));
    Walked::of(walked).raw()
}
