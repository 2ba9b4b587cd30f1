//! Who cannot be served is told so, in the frame that it sent.

use aya_ebpf::{
    bindings::xdp_md,
    helpers::{bpf_xdp_adjust_head, bpf_xdp_adjust_tail},
    programs::XdpContext,
};
use lb_common::{
    addr::Be32,
    maps::{
        flow::FlowKey,
        network::{NETWORK_REJECT, Network},
        service::SERVICE_REJECT,
    },
    rate::REFUSALS,
    reject::{
        self,
        v4::{Answers, ERROR_BYTES, ICMP_BYTES, IcmpError, RESET_BYTES},
    },
    verdict::{DropReason, Hook},
    wire::{
        Frame, L4, Packet, Tag,
        header::{ACK, Ethernet, Ipv4, RST, SYN},
        parse_ipv4,
    },
};

use network_types::eth::EtherType;

use crate::{
    count, drop_sample,
    flow::{
        conntrack,
        entry::now,
        rewrite::{is_noted, lb_complete},
    },
    frame::{vlan, xdp::Xdp},
    ip::version::{self, IpVersion},
    lookup,
    maps::{ANSWERS, NETWORKS},
    new_flow::policy,
    reject::v6::lb_refuse6,
};

/// Shortest frame on a wire without its checksum (IEEE 802.3): an answer is not made longer.
pub(crate) const SHORTEST: usize = 60;

/// The end of a frame of the network `id` that is dropped for the reason with this number: sampled,
/// answered where its sender must know, counted. Returns the XDP action.
///
/// A function of its own for the verifier, which walks it once and not once for each reason: so its
/// arguments are the context and plain numbers.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_refuse(ctx: *mut xdp_md, id: u32, reason: u32) -> u32 {
    let ctx = &XdpContext::new(ctx);
    drop_sample::keep(ctx, Hook::Nic, id, reason);
    let answered = NETWORKS
        .get(id)
        .and_then(|network| refuse(ctx, id as u16, network, reason));
    count::refused(ctx, id as u16, reason, answered.is_some())
}

/// Writes the answer into the frame; `None` if there is none, and the frame is lost then.
#[inline(always)]
fn refuse(ctx: &XdpContext, id: u16, network: &Network, reason: u32) -> Option<()> {
    if !may_answer(reason) {
        return None;
    }
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    // What is not declared on a tenant network may be anything.
    let ethertype = ethernet.ethertype.get().raw();
    if ethertype == EtherType::Ipv6 as u16 {
        if lb_refuse6(ctx.ctx, u32::from(id), reason) == 0 {
            return None;
        }
    } else if ethertype == EtherType::Ipv4 as u16 {
        refuse4(ctx, id, network, reason)?;
    } else {
        return None;
    }
    if network.vlan != 0 {
        vlan::put_on(ctx, Tag::of(network.vlan)).ok()?;
    }
    Some(())
}

/// The same of IPv4.
#[inline(always)]
fn refuse4(ctx: &XdpContext, id: u16, network: &Network, reason: u32) -> Option<()> {
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0)?;
    let ip: &Ipv4 = xdp.header(size_of::<Ethernet>())?;
    let frame = parse_ipv4(&xdp, ethernet, ip).ok()?;
    if !must_know(&frame, ip.destination.get(), (id, network), reason) {
        return None;
    }
    if reason == DropReason::TooBig as u32 && !reject::v4::must_stay_whole(ip) {
        return None;
    }
    match frame.l4 {
        L4::Tcp(tcp) if !is_of_the_way(reason) => {
            // What is never answered takes no answer from anybody else.
            if tcp.flags.get() & RST != 0 || !token(id) {
                return None;
            }
            let (state, version_ihl) = (lb_complete(ctx.ctx, 1), ip.version_ihl.get());
            reject::v4::reset(&xdp, &frame)?;
            if !is_noted(state, network) {
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
            if !reject::v4::is_quotable(&frame) || !token(id) {
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

/// Reasons that may have an answer: what is declared is never met with silence; what policy denies is,
/// unless the configuration says `reject`, or a change has ended the sender's connection.
#[inline(always)]
const fn may_answer(reason: u32) -> bool {
    const DECLARED: u32 = 1 << DropReason::NoFlow as u32
        | 1 << DropReason::NoBackend as u32
        | 1 << DropReason::NoNextHop as u32
        | 1 << DropReason::SnatExhausted as u32
        | 1 << DropReason::FlowTableFull as u32
        | 1 << DropReason::BudgetSpent as u32
        | 1 << DropReason::ReplyMismatch as u32
        | 1 << DropReason::TooBig as u32
        | 1 << DropReason::TtlExpired as u32;
    has(DECLARED | OF_POLICY, reason)
}

/// Reasons that say nothing but that nobody serves the sender there; a change may have made them.
const OF_POLICY: u32 = 1 << DropReason::NotDeclared as u32
    | 1 << DropReason::NoService as u32
    | 1 << DropReason::Spoofed as u32
    | 1 << DropReason::Denied as u32;

/// Whether `reasons` have the bit of this one.
#[inline(always)]
const fn has(reasons: u32, reason: u32) -> bool {
    reason < u32::BITS && reasons >> reason & 1 != 0
}

/// The error that says so.
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

/// Whether the reason is one of the way to the service, which a router would tell by ICMP, and not of
/// the service itself.
#[inline(always)]
pub(crate) const fn is_of_the_way(reason: u32) -> bool {
    reason == DropReason::TooBig as u32 || reason == DropReason::TtlExpired as u32
}

/// What the frame itself says about that; `vip` is its destination, or the label of that.
#[inline(always)]
pub(crate) fn must_know<I: IpVersion>(
    frame: &Frame<'_, I>,
    vip: Be32,
    (id, network): (u16, &Network),
    reason: u32,
) -> bool {
    if has(OF_POLICY, reason) {
        let Some(key) = version::key(frame, vip, id) else {
            return false;
        };
        return rejects(&key, frame.ip, network, reason)
            || goes_on(frame) && conntrack::was_ended(&key, frame.ip);
    }
    if reason == DropReason::ReplyMismatch as u32 {
        // The rest of a connection that is gone; who knocks at a SNAT port learns nothing.
        return match frame.l4 {
            L4::Tcp(tcp) => tcp.flags.get() & (SYN | RST | ACK) == ACK,
            L4::Udp(_) => false,
        };
    }
    true
}

/// Whether the configuration says that requests of this key, which policy refuses, have an answer.
#[inline(always)]
fn rejects(key: &FlowKey, ip: &impl IpVersion, network: &Network, reason: u32) -> bool {
    if reason == DropReason::NoService as u32 {
        // Policy was not asked yet.
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

/// What this CPU keeps for its answers in the network `id`.
#[inline(always)]
fn answers(id: u16) -> Option<&'static mut Answers> {
    let answers = ANSWERS.get_ptr_mut(u32::from(id))?;
    // SAFETY: the pointer is this CPU's slot, which nothing else writes while the program runs, and
    // no caller holds another reference to it.
    Some(unsafe { &mut *answers })
}

/// Takes one of the refusals that this CPU may give in the network `id`.
#[inline(always)]
pub(crate) fn token(id: u16) -> bool {
    answers(id).is_some_and(|answers| answers.refusals.take(now(), REFUSALS))
}

/// Takes one of the replies to an echo request that this CPU may give in the network `id`.
#[inline(always)]
pub(crate) fn take_echo(id: u16) -> bool {
    answers(id).is_some_and(|answers| answers.echoes.take(now(), REFUSALS))
}

/// The network that no frame comes from: what is kept there belongs to the frame in hand.
const IN_HAND: u16 = 0;

/// Keeps the MTU that the frame in hand is too big for: its sender may have to be told.
#[inline(always)]
pub(crate) fn note_mtu(mtu: u16) {
    if let Some(answers) = answers(IN_HAND) {
        answers.mtu = u32::from(mtu);
    }
}

/// The MTU that was kept.
#[inline(always)]
pub(crate) fn mtu_in_hand() -> Option<u32> {
    Some(answers(IN_HAND)?.mtu)
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
