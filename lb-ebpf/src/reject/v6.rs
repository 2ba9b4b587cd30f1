//! As for IPv4, by the same rules and at the same rate.

use aya_ebpf::{bindings::xdp_md, helpers::bpf_xdp_adjust_head, programs::XdpContext};
use lb_common::{
    reject::{
        self,
        v6::{ICMP6_BYTES, Icmp6Error, RESET6_BYTES},
    },
    verdict::DropReason,
    wire::{
        L4, Packet,
        header::{RST, Tcp},
        parse_ipv6,
    },
};

use crate::{
    flow::rewrite::is_noted,
    frame::xdp::Xdp,
    ip::v6::{self, rewrite::lb_complete6},
    lookup::{self, NetworkRef},
    reject::{
        judge::{cut, is_of_the_way, must_know},
        limits::{mtu_in_hand, token},
    },
};

/// What every network of IPv6 carries (RFC 8200 section 5).
const LEAST_MTU: u32 = 1280;

/// Makes a frame of IPv6 from the network `id`, which is dropped for the reason with this number, the answer to its
/// sender; returns whether there is one. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_refuse6(ctx: *mut xdp_md, id: u32, reason: u32) -> u32 {
    let ctx = &XdpContext::new(ctx);
    let answered = NetworkRef::of_raw(id).and_then(|network| refuse(ctx, network, reason));
    u32::from(answered.is_some())
}

#[inline(always)]
fn refuse(ctx: &XdpContext, network: NetworkRef, reason: u32) -> Option<()> {
    let chain = v6::headers::chain(ctx).ok()?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6()?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain).ok()?;
    // None is no service's; an option would be half undefined.
    let vip = lookup::label(ip.destination.get()).unwrap_or_default();
    if !must_know(&frame, vip, network, reason) {
        return None;
    }
    match frame.l4 {
        L4::Tcp(tcp) if !is_of_the_way(reason) => {
            // A RST is never answered, so it uses up no token of the other answers.
            if tcp.flags.get() & RST != 0 || !token(network.id) {
                return None;
            }
            let (protocol, first) = (frame.l4.protocol(), frame.at);
            let state = lb_complete6(ctx.ctx, protocol.into(), first as u32, 1);
            reject::v6::reset(&xdp, &frame)?;
            if is_noted(state, &network) {
                // As for IPv4: nothing may have stood before the header.
                if first != RESET6_BYTES - size_of::<Tcp>() {
                    return None;
                }
                reject::v6::reopen(&xdp)?;
            }
            cut(ctx, xdp.len(), RESET6_BYTES)
        }
        _ => {
            let error = error(reason);
            if !reject::v6::is_quotable(&frame, error) || !token(network.id) {
                return None;
            }
            // SAFETY: the context is that of the running program; no reference into the frame is
            // used afterwards.
            let grown = unsafe { bpf_xdp_adjust_head(ctx.ctx, -(ICMP6_BYTES as i32)) };
            if grown != 0 {
                return None;
            }
            let xdp = Xdp::new(ctx);
            reject::v6::error(&xdp, error)?;
            cut(ctx, xdp.len(), error.frame_bytes())
        }
    }
}

/// The ICMP error for the reason.
#[inline(always)]
fn error(reason: u32) -> Icmp6Error {
    if reason == DropReason::TooBig as u32 {
        Icmp6Error::too_big(mtu_in_hand().unwrap_or(LEAST_MTU))
    } else if reason == DropReason::TtlExpired as u32 {
        Icmp6Error::TIME_EXCEEDED
    } else {
        Icmp6Error::PORT_UNREACHABLE
    }
}
