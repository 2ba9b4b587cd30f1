//! Turns a refused frame into a RST or an ICMP error to its sender, in place.

use aya_ebpf::{bindings::xdp_md, helpers::bpf_xdp_adjust_head, programs::XdpContext};
use lb_common::{
    reject::{
        self,
        v4::{ERROR_BYTES, ICMP_BYTES, IcmpError, RESET_BYTES},
    },
    verdict::{DropReason, Hook},
    wire::{
        L4, Packet, Tag,
        header::{Ethernet, RST},
        parse_ipv4,
    },
};
use network_types::eth::EtherType;

use crate::{
    count, drop_sample,
    flow::rewrite::{is_noted, lb_complete},
    frame::{vlan, xdp::Xdp},
    lookup::NetworkRef,
    reject::{
        judge::{OF_POLICY, SHORTEST, cut, has, is_of_the_way, must_know},
        limits::{mtu_in_hand, token},
        v6::lb_refuse6,
    },
};

/// The end of a frame of the network `id` that is dropped for the reason with this number: sampled,
/// answered where its sender must know, counted. Returns the XDP action.
///
/// A subprogram, which the verifier walks once and not once for each reason: so its arguments are the context and
/// plain numbers.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_refuse(ctx: *mut xdp_md, id: u32, reason: u32) -> u32 {
    let ctx = &XdpContext::new(ctx);
    drop_sample::keep(ctx, Hook::Nic, id, reason);
    let answered = NetworkRef::of_raw(id).and_then(|network| refuse(ctx, network, reason));
    count::refused(ctx, id as u16, reason, answered.is_some())
}

/// Writes the answer into the frame; `None` if there is none, and the frame is lost then.
#[inline(always)]
fn refuse(ctx: &XdpContext, network: NetworkRef, reason: u32) -> Option<()> {
    if !may_answer(reason) {
        return None;
    }
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    // What is not declared on a tenant network may be anything.
    let ethertype = ethernet.ethertype.get().raw();
    let id = u32::from(network.id);
    let is_answered = if ethertype == EtherType::Ipv6 as u16 {
        lb_refuse6(ctx.ctx, id, reason)
    } else if ethertype == EtherType::Ipv4 as u16 {
        lb_refuse4(ctx.ctx, id, reason)
    } else {
        0
    };
    if is_answered == 0 {
        return None;
    }
    if network.vlan != 0 {
        vlan::put_on(ctx, Tag::of(network.vlan)).ok()?;
    }
    Some(())
}

/// Makes a frame of IPv4 from the network `id`, which is dropped for the reason with this number, the answer to its
/// sender; returns whether there is one. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_refuse4(ctx: *mut xdp_md, id: u32, reason: u32) -> u32 {
    let ctx = &XdpContext::new(ctx);
    let answered = NetworkRef::of_raw(id).and_then(|network| refuse4(ctx, network, reason));
    u32::from(answered.is_some())
}

#[inline(always)]
fn refuse4(ctx: &XdpContext, network: NetworkRef, reason: u32) -> Option<()> {
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4()?;
    let frame = parse_ipv4(&xdp, ethernet, ip).ok()?;
    if !must_know(&frame, ip.destination.get(), network, reason) {
        return None;
    }
    if reason == DropReason::TooBig as u32 && !reject::v4::must_stay_whole(ip) {
        return None;
    }
    match frame.l4 {
        L4::Tcp(tcp) if !is_of_the_way(reason) => {
            // A RST is never answered, so it uses up no token of the other answers.
            if tcp.flags.get() & RST != 0 || !token(network.id) {
                return None;
            }
            let (state, version_ihl) = (lb_complete(ctx.ctx, 1), ip.version_ihl.get());
            reject::v4::reset(&xdp, &frame)?;
            if !is_noted(state, &network) {
                return cut(ctx, xdp.len(), SHORTEST);
            }
            // The kernel has noted where the header was, which options have pushed back.
            if version_ihl != 0x45 {
                return None;
            }
            reject::v4::reopen(&xdp)?;
            cut(ctx, xdp.len(), RESET_BYTES)
        }
        _ => {
            if !reject::v4::is_quotable(&frame) || !token(network.id) {
                return None;
            }
            // SAFETY: the context is that of the running program; no reference into the frame is
            // used afterwards.
            let grown = unsafe { bpf_xdp_adjust_head(ctx.ctx, -(ICMP_BYTES as i32)) };
            if grown != 0 {
                return None;
            }
            let xdp = Xdp::new(ctx);
            reject::v4::error(&xdp, error(reason)?)?;
            cut(ctx, xdp.len(), ERROR_BYTES)
        }
    }
}

/// Reasons that may have an answer: what is declared is never met with silence; what policy denies is, unless
/// the configuration has `reject`, or a change has ended the sender's connection.
#[inline(always)]
const fn may_answer(reason: u32) -> bool {
    const DECLARED: u64 = 1 << DropReason::NoFlow as u32
        | 1 << DropReason::NoBackend as u32
        | 1 << DropReason::NoNextHop as u32
        | 1 << DropReason::SnatExhausted as u32
        | 1 << DropReason::FlowTableFull as u32
        | 1 << DropReason::BudgetSpent as u32
        | 1 << DropReason::BackendsFull as u32
        | 1 << DropReason::ReplyMismatch as u32
        | 1 << DropReason::NoProcess as u32
        | 1 << DropReason::TooBig as u32
        | 1 << DropReason::TtlExpired as u32;
    has(DECLARED | OF_POLICY, reason)
}

/// The ICMP error for the reason.
#[inline(always)]
fn error(reason: u32) -> Option<IcmpError> {
    if reason == DropReason::TooBig as u32 {
        Some(IcmpError::too_big(mtu_in_hand()? as u16))
    } else if reason == DropReason::TtlExpired as u32 {
        Some(IcmpError::TIME_EXCEEDED)
    } else {
        Some(IcmpError::PORT_UNREACHABLE)
    }
}
