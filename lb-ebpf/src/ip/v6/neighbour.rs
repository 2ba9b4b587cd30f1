//! Neighbour discovery (RFC 4861): solicitations for our addresses are answered here, and advertisements to
//! the cell go into it; none goes from a tenant to the host.

use aya_ebpf::{bindings::xdp_md, helpers::bpf_xdp_adjust_head, programs::XdpContext};
use lb_common::{
    discovery::{self, ADVERTISEMENT, ANSWER_BYTES, HOPS, SOLICITATION, Solicitation},
    rate::{NOTICES, QUERIES, QUESTIONS, REPLIES},
    verdict::{DropReason, Verdict},
    wire::{
        Chain, Packet,
        header::{Ethernet, Extension, Icmp, Ipv6, Neighbour},
    },
};

use crate::{
    cell::enter,
    emit,
    frame::xdp::Xdp,
    ip::v6::headers,
    lookup::{self, NetworkRef},
    new_flow::policy,
    reject,
    subprogram::Outcome,
};

/// Hop-by-hop options, with which every message about groups begins.
const HOP_BY_HOP: u8 = 0;
/// No message of neighbours has this type.
const NONE: u8 = 0;
/// Question for the groups that any station has joined (RFC 3810).
const QUERY: u8 = 130;
/// Its answers: with them switches learn where the stations of a group are. Both versions, because a host speaks
/// that of the querier (RFC 3810 section 8.2.1): report and leave of the first, report of the second.
const REPORTS: [u8; 3] = [131, 132, 143];

/// Whether a packet to an address of ours is of neighbour discovery.
#[inline(always)]
pub(crate) fn is_asked(xdp: &Xdp, chain: Chain) -> bool {
    chain.bytes() == 0 && message(xdp).is_some()
}

/// The message behind an IPv6 header, if it is one of neighbours.
#[inline(always)]
fn message(xdp: &Xdp) -> Option<&Neighbour> {
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    let message: &Neighbour = xdp.header(size_of::<Ethernet>() + size_of::<Ipv6>())?;
    let is_of_neighbours = ip.next_header.get() == headers::ICMP
        && ip.hop_limit.get() == HOPS
        && matches!(message.kind.get(), SOLICITATION | ADVERTISEMENT);
    is_of_neighbours.then_some(message)
}

/// The end of a packet from the network `id` to a group, or of one that [`is_asked`], as [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_neighbour(ctx: *mut xdp_md, id: u32) -> u32 {
    Outcome::of(steer(&XdpContext::new(ctx), id as u16)).raw()
}

/// Steers a message by its target, as ARP.
#[inline(always)]
fn steer(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    // A number in any case: of one that is not there the verifier would find an unset register.
    let kind = message(&xdp).map_or(NONE, |message| message.kind.get());
    if kind == SOLICITATION && !network.is_host() && is_of_ours(&xdp, id) {
        if network.is_stopped() {
            return Err(DropReason::Stopped);
        }
        return answer(ctx, &xdp, network);
    }
    if is_to_one(&xdp) {
        return match kind {
            ADVERTISEMENT => {
                enter::at_rate(id, &network, |rates, now| rates.replies.take(now, REPLIES))
            }
            _ => Err(DropReason::ArpNotOurs),
        };
    }
    if !network.is_tenant() {
        return Ok(Verdict::Passed);
    }
    match kind {
        // The cell may learn the address of a station that announces it.
        ADVERTISEMENT => {
            enter::at_rate(id, &network, |rates, now| rates.notices.take(now, NOTICES))
        }
        SOLICITATION => Err(DropReason::ArpNotOurs),
        _ if of_groups(&xdp) == Some(QUERY) => {
            enter::at_rate(id, &network, |rates, now| rates.queries.take(now, QUERIES))
        }
        _ => Err(DropReason::GroupAddress),
    }
}

/// Whether a frame is for one station; it is for an address of ours then.
#[inline(always)]
fn is_to_one(xdp: &Xdp) -> bool {
    let (ethernet, ip): (Option<&Ethernet>, Option<&Ipv6>) =
        (xdp.header(0), xdp.header(size_of::<Ethernet>()));
    ethernet.is_some_and(|ethernet| !ethernet.destination.get().is_group())
        && ip.is_some_and(|ip| !ip.destination.get().is_group())
}

/// Makes a solicitation for an address of ours the answer to it.
#[inline(always)]
fn answer(ctx: &XdpContext, xdp: &Xdp, network: NetworkRef) -> Result<Verdict, DropReason> {
    let asked = Solicitation::read(xdp)?;
    let source = asked.source;
    if lookup::label(source).is_some_and(|label| lookup::labelled(network.id, label).is_some()) {
        // A station that has an address of ours as well.
        return enter::at_rate(network.id, &network, |rates, now| {
            rates.notices.take(now, NOTICES)
        });
    }
    let is_neighbour = asked.is_probe()
        || discovery::is_link_local(source)
        || !source.is_bogon() && policy::is_neighbour(lookup::rule6(network.sources, source));
    if !is_neighbour {
        return Err(DropReason::NeighbourForged);
    }
    if !enter::take(network.id, |rates, now| {
        rates.questions.take(now, QUESTIONS)
    }) {
        return Err(DropReason::RateLimited);
    }
    resize(ctx, xdp.len())?;
    let answered = asked.answer(&Xdp::new(ctx), network.mac);
    answered.ok_or(DropReason::NoHeadroom)?;
    emit::back(ctx, &network)
}

/// Makes the frame of `length` bytes one of [`ANSWER_BYTES`]; all of it is written anew. It grows in front, where
/// there is room in either mode.
#[inline(always)]
fn resize(ctx: &XdpContext, length: usize) -> Result<(), DropReason> {
    if length >= ANSWER_BYTES {
        return reject::judge::cut(ctx, length, ANSWER_BYTES).ok_or(DropReason::Malformed);
    }
    let missing = (ANSWER_BYTES - length) as i32;
    // SAFETY: the context is that of the running program; no reference into the frame is used afterwards.
    match unsafe { bpf_xdp_adjust_head(ctx.ctx, -missing) } {
        0 => Ok(()),
        _ => Err(DropReason::NoHeadroom),
    }
}

/// The kind of a message about groups.
#[inline(always)]
fn of_groups(xdp: &Xdp) -> Option<u8> {
    const EXTENSION_BYTES: usize = 8;
    let at = size_of::<Ethernet>() + size_of::<Ipv6>();
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    let options: &Extension = xdp.header(at)?;
    let message: &Icmp = xdp.header(at + EXTENSION_BYTES)?;
    let is_of_groups = ip.next_header.get() == HOP_BY_HOP
        && options.next_header.get() == headers::ICMP
        && options.length.get() == 0;
    is_of_groups.then_some(message.kind.get())
}

/// Whether a message is about an address of ours in the network `id`.
#[inline(always)]
fn is_of_ours(xdp: &Xdp, id: u16) -> bool {
    message(xdp)
        .and_then(|message| lookup::label(message.target.get()))
        .is_some_and(|label| lookup::labelled(id, label).is_some())
}

/// Whether the cell of the network `id` may send this: a solicitation or advertisement from an address of
/// ours, or a report of the groups that it has joined.
#[inline(always)]
pub(crate) fn may_leave(xdp: &Xdp, id: u16) -> Option<()> {
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    if message(xdp).is_none() {
        of_groups(xdp).filter(|kind| REPORTS.contains(kind))?;
    }
    let label = lookup::label(ip.source.get())?;
    lookup::labelled(id, label).map(|_| ())
}
