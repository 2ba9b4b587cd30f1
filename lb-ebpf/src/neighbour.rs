//! neighbour: neighbour discovery goes to the cell that owns the address, and never from a tenant to the
//! host (RFC 4861).

use lb_common::{
    maps::network::Network,
    verdict::{DropReason, Verdict},
    wire::{
        Chain, Packet,
        header::{Ethernet, Extension, Icmp, Ipv6, Neighbour},
    },
};

use crate::{emit, ipv6, lookup, parse::Xdp};

/// Neighbour solicitation: who has this address?
const SOLICITATION: u8 = 135;
/// Neighbour advertisement: I have.
const ADVERTISEMENT: u8 = 136;
/// Hop-by-hop options, with which every message about groups begins.
const HOP_BY_HOP: u8 = 0;
/// Question for the groups that somebody has joined (RFC 3810).
const QUERY: u8 = 130;
/// Its answers: with them switches learn where those are who are asked by a group. Both versions, because
/// a host speaks that of who asks (RFC 3810 section 8.2.1): report and leave of the first, report of the second.
const REPORTS: [u8; 3] = [131, 132, 143];
/// Hops of a message that no router has passed on.
const HOPS: u8 = 255;

/// Whether a packet to an address of ours is a question for it, or the answer to one of its own.
#[inline(always)]
pub(crate) fn is_asked(xdp: &Xdp, chain: Chain) -> bool {
    chain.bytes() == 0 && message(xdp).is_some()
}

/// The message behind an IPv6 header, if it is one of neighbours.
#[inline(always)]
fn message(xdp: &Xdp) -> Option<&Neighbour> {
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    let message: &Neighbour = xdp.header(size_of::<Ethernet>() + size_of::<Ipv6>())?;
    let is_of_neighbours = ip.next_header.get() == ipv6::ICMP
        && ip.hop_limit.get() == HOPS
        && matches!(message.kind.get(), SOLICITATION | ADVERTISEMENT);
    is_of_neighbours.then_some(message)
}

/// A packet of IPv6 to a group: who is asked is the target of a question. Where he himself is the cell of a
/// tenant's network may know, as with ARP.
#[inline(always)]
pub(crate) fn group(xdp: &Xdp, id: u16, network: &Network) -> Result<Verdict, DropReason> {
    let message = message(xdp);
    let is_ours = message.is_some_and(|message| {
        message.kind.get() == SOLICITATION && !network.is_host() && is_of(id, message)
    });
    if is_ours {
        if network.is_stopped() {
            return Err(DropReason::Stopped);
        }
        return emit::to_cell(network);
    }
    if !network.is_tenant() {
        return Ok(Verdict::Passed);
    }
    match message {
        Some(message) if message.kind.get() == ADVERTISEMENT => emit::to_cell(network),
        Some(_) => Err(DropReason::ArpNotOurs),
        None if of_groups(xdp) == Some(QUERY) => emit::to_cell(network),
        None => Err(DropReason::GroupAddress),
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
        && options.next_header.get() == ipv6::ICMP
        && options.length.get() == 0;
    is_of_groups.then_some(message.kind.get())
}

/// Whether a message is about an address of ours in the network `id`.
#[inline(always)]
fn is_of(id: u16, message: &Neighbour) -> bool {
    lookup::label(message.target.get()).is_some_and(|label| lookup::labelled(id, label).is_some())
}

/// Whether the cell of the network `id` may say this: a question or an answer of an address of ours, or which
/// groups it has joined.
#[inline(always)]
pub(crate) fn may_leave(xdp: &Xdp, id: u16) -> Option<()> {
    let ip: &Ipv6 = xdp.header(size_of::<Ethernet>())?;
    if message(xdp).is_none() {
        of_groups(xdp).filter(|kind| REPORTS.contains(kind))?;
    }
    let label = lookup::label(ip.source.get())?;
    lookup::labelled(id, label).map(|_| ())
}
