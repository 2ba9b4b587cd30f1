//! What happens to a frame of IPv6 for us: neighbour discovery, ICMP, pieces, flows.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Be32,
    verdict::{DropReason, Verdict},
    wire::Chain,
};

use crate::{
    frame::xdp::Xdp,
    ip::v6::{
        forward::{lb_flow6, lb_rewrite6},
        fragment,
        headers::{ICMP, REFUSED, chain},
        icmp, neighbour,
    },
    lookup, new_flow,
    subprogram::{Next6, Outcome, Step6},
};

/// What is next for a packet, beside its end: in the upper eight bits of what [`lb_ipv6`] returns, which then
/// has `Chain::raw` in the next 24 and the label of our address in the lower half.
const FLOW: u64 = 1;
/// As [`FLOW`]: ICMP.
const MESSAGE: u64 = 2;
/// As [`FLOW`]: a fragment other than the first.
const FRAGMENT: u64 = 3;
/// As [`FLOW`]: to a group, or of neighbour discovery.
const NEIGHBOUR: u64 = 4;

/// The end of a packet of IPv6 from the network `id`.
#[inline(always)]
pub(crate) fn ipv6(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let (ctx, id) = (ctx.ctx, u32::from(id));
    let said = lb_ipv6(ctx, id);
    let (chain, label) = ((said >> 32) as u32 & (REFUSED - 1), said as u32);
    match said >> 56 {
        FLOW => crate::ip::v6::receive::forward6(ctx, id, label, chain),
        MESSAGE => Outcome::from_raw(icmp::lb_icmp6(ctx, id, chain)).result(),
        FRAGMENT => Outcome::from_raw(fragment::lb_fragment6(ctx, id, chain)).result(),
        NEIGHBOUR => Outcome::from_raw(neighbour::lb_neighbour(ctx, id)).result(),
        _ => Outcome::from_raw(said as u32).result(),
    }
}

/// What is next for a packet of IPv6 from the network `id`, or its end as [`Outcome`]. A function of its
/// own for the verifier, as `lb_refuse`; what is next is called from the way in, because stacks add up.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_ipv6(ctx: *mut xdp_md, id: u32) -> u64 {
    let ctx = &XdpContext::new(ctx);
    match door(ctx, id as u16) {
        Ok(Next::Way { what, chain, label }) => {
            what << 56 | u64::from(chain.raw()) << 32 | u64::from(label.raw())
        }
        Ok(Next::End(verdict)) => u64::from(Outcome::of(Ok(verdict)).raw()),
        Err(reason) => u64::from(Outcome::of(Err(reason)).raw()),
    }
}

/// What is next for a packet.
enum Next {
    /// Nothing.
    End(Verdict),
    /// To the address of ours with this label.
    Way {
        what: u64,
        chain: Chain,
        label: Be32,
    },
}

impl Next {
    const NEIGHBOUR: Self = Self::Way {
        what: NEIGHBOUR,
        chain: Chain::none(ICMP),
        label: Be32::from_raw(0),
    };
}

#[inline(always)]
fn door(ctx: &XdpContext, id: u16) -> Result<Next, DropReason> {
    let network = crate::lookup::network_by_id(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    // A switch that knows the members of a group may send to each of them alone (RFC 6085).
    if ethernet.destination.get().is_group() || ip.destination.get().is_group() {
        return Ok(Next::NEIGHBOUR);
    }
    let label = lookup::label(ip.destination.get());
    let ours = label.filter(|&label| lookup::labelled(id, label).is_some());
    match ours {
        Some(_) if network.is_stopped() => Err(DropReason::Stopped),
        Some(label) => to_us(ctx, label),
        None => crate::new_flow::policy::not_for_us(network, ip).map(Next::End),
    }
}

/// To the address of ours with this label.
#[inline(always)]
fn to_us(ctx: &XdpContext, label: Be32) -> Result<Next, DropReason> {
    let chain = chain(ctx)?;
    let xdp = Xdp::new(ctx);
    let is_later = chain
        .fragment(&xdp)
        .is_some_and(|fragment| fragment.offset() != 0);
    let what = if is_later {
        FRAGMENT
    } else if chain.protocol() != ICMP {
        FLOW
    } else if neighbour::is_asked(&xdp, chain) {
        return Ok(Next::NEIGHBOUR);
    } else {
        MESSAGE
    };
    Ok(Next::Way { what, chain, label })
}

/// The end of a packet to the address of ours with this label, in the network `id`.
#[inline(always)]
pub(crate) fn forward6(
    ctx: *mut xdp_md,
    id: u32,
    label: u32,
    chain: u32,
) -> Result<Verdict, DropReason> {
    let mut next = Next6::from_raw(lb_flow6(ctx, id, label, chain));
    if let Step6::NewFlow = next.step() {
        next = Next6::from_raw(new_flow::lb_open6(ctx, id, label, chain));
    }
    let outcome = match next.step() {
        Step6::Flow { flow_id, way } => {
            Outcome::from_raw(lb_rewrite6(ctx, id, flow_id, way.raw(), chain))
        }
        // What was to open a flow has ended.
        Step6::NewFlow => Outcome::of(Err(DropReason::NoFlow)),
        Step6::Ended(outcome) => outcome,
    };
    outcome.result()
}
