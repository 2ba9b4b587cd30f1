//! Which frames are answered, and how much of them.

use aya_ebpf::{helpers::bpf_xdp_adjust_tail, programs::XdpContext};
use lb_common::{
    addr::Be32,
    maps::{
        flow::FlowKey,
        network::{Address, NETWORK_REJECT, Network},
        service::SERVICE_REJECT,
    },
    verdict::DropReason,
    wire::{
        Frame, L4,
        header::{ACK, RST, SYN},
    },
};

use crate::{
    flow::conntrack,
    ip::version::{self, IpVersion},
    lookup::{self, NetworkRef},
    new_flow::policy,
    subprogram::whole,
};

/// Shortest frame on a wire without its checksum (IEEE 802.3): an answer is not made longer.
pub(crate) const SHORTEST: usize = 60;

/// Whether the reason is one of the way to the service, which a router would report by ICMP, and not of the
/// service itself.
#[inline(always)]
pub(crate) const fn is_of_the_way(reason: u32) -> bool {
    reason == DropReason::TooBig as u32 || reason == DropReason::TtlExpired as u32
}

/// Whether the sender must know, as far as the frame itself decides it; `vip` is its destination, or the
/// label of that.
#[inline(always)]
pub(crate) fn must_know<I: IpVersion>(
    frame: &Frame<'_, I>,
    vip: Be32,
    network: NetworkRef,
    reason: u32,
) -> bool {
    if has(OF_FLOWS, reason) && I::ours(network.id, vip).is_some_and(Address::is_quiet) {
        return false;
    }
    if has(OF_POLICY, reason) {
        let Some(key) = version::key(frame, vip, network.id) else {
            return false;
        };
        let key = whole(&key);
        return rejects(key, frame.ip, &network, reason)
            || goes_on(frame) && conntrack::was_ended(key, frame.ip);
    }
    if reason == DropReason::ReplyMismatch as u32 {
        // The rest of a connection that is gone; a prober of a SNAT port learns nothing.
        return match frame.l4 {
            L4::Tcp(tcp) => tcp.flags.get() & (SYN | RST | ACK) == ACK,
            L4::Udp(_) => false,
        };
    }
    true
}

/// Cuts the frame of `length` bytes to `wanted`, if it is longer.
#[inline(always)]
pub(crate) fn cut(ctx: &XdpContext, length: usize, wanted: usize) -> Option<()> {
    if length <= wanted {
        return Some(());
    }
    let excess = (length - wanted) as i32;
    // SAFETY: the context is that of the running program; no reference into the frame is used
    // afterwards.
    let cut = unsafe { bpf_xdp_adjust_tail(ctx.ctx, -excess) };
    (cut == 0).then_some(())
}

/// Reasons that mean only that the sender is not served there; a change may have made them.
pub(crate) const OF_POLICY: u64 = 1 << DropReason::NotDeclared as u32
    | 1 << DropReason::NoService as u32
    | 1 << DropReason::Spoofed as u32
    | 1 << DropReason::Denied as u32;

/// Reasons that mean only that the flow is not known.
const OF_FLOWS: u64 = 1 << DropReason::NoFlow as u32 | 1 << DropReason::ReplyMismatch as u32;

/// Whether `reasons` have the bit of this one.
#[inline(always)]
pub(crate) const fn has(reasons: u64, reason: u32) -> bool {
    reason < u64::BITS && reasons >> reason & 1 != 0
}

/// Whether the configuration says that requests of this key, which policy refuses, have an answer.
#[inline(always)]
fn rejects(key: &FlowKey, ip: &impl IpVersion, network: &Network, reason: u32) -> bool {
    if reason == DropReason::NoService as u32 {
        // Policy has not judged it yet.
        return network.flags & NETWORK_REJECT != 0 && policy::is_own(key.network, network, ip);
    }
    reason == DropReason::Denied as u32
        && lookup::service(key).is_some_and(|service| service.flags & SERVICE_REJECT != 0)
}

/// Whether the frame is a segment of a connection that its sender takes for open. A reset is answered in no
/// case.
#[inline(always)]
fn goes_on<I>(frame: &Frame<'_, I>) -> bool {
    matches!(frame.l4, L4::Tcp(tcp) if tcp.flags.get() & SYN == 0)
}
