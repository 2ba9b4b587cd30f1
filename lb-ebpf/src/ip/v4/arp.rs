//! ARP requests for our addresses are answered here, and replies to the cell's own requests go into the cell;
//! none goes from a tenant to the host.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    arp::{self, Message},
    rate::{NOTICES, QUESTIONS, REPLIES},
    verdict::{DropReason, Verdict},
    wire::{
        Packet,
        header::{Arp, Ethernet},
    },
};

use crate::{
    cell::enter,
    emit,
    frame::xdp::Xdp,
    lookup::{self, NetworkRef},
    new_flow::policy,
    reject,
    subprogram::Outcome,
};

/// The end of an ARP frame from the network `id`, as [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_arp(ctx: *mut xdp_md, id: u32) -> u32 {
    Outcome::of(steer(&XdpContext::new(ctx), id as u16)).raw()
}

/// Steers a frame by its target: the address that a request is for; in a reply the address that sent the
/// request.
#[inline(always)]
fn steer(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let arp: &Arp = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    let is_read = arp::is_of_ipv4(arp);
    if is_read && !network.is_host() && lookup::address(id, arp.target.get()).is_some() {
        if network.is_stopped() {
            return Err(DropReason::Stopped);
        }
        check(ethernet, arp, network)?;
        return to_us(ctx, &xdp, network);
    }
    if !network.is_tenant() {
        return Ok(Verdict::Passed);
    }
    // The cell may learn the address of a station that announces it; no other station needs to.
    if !is_read || !arp::announces(arp) {
        return Err(DropReason::ArpNotOurs);
    }
    check(ethernet, arp, network)?;
    enter::at_rate(id, &network, |rates, now| rates.notices.take(now, NOTICES))
}

/// Checks that the sender may be a station of the network. A probe has no address yet.
#[inline(always)]
fn check(ethernet: &Ethernet, arp: &Arp, network: NetworkRef) -> Result<(), DropReason> {
    arp::check(ethernet, arp)?;
    let sender = arp.sender.get();
    let is_neighbour = arp::is_probe(arp)
        || lookup::address(network.id, sender).is_some()
        || !sender.is_bogon() && policy::is_neighbour(lookup::rule(network.sources, sender));
    if is_neighbour {
        Ok(())
    } else {
        Err(DropReason::NeighbourForged)
    }
}

/// What a frame whose target is ours is: a request, a reply, or of a station that has an address of ours as well.
#[inline(always)]
fn to_us(ctx: &XdpContext, xdp: &Xdp, network: NetworkRef) -> Result<Verdict, DropReason> {
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let arp: &Arp = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    if lookup::address(network.id, arp.sender.get()).is_some() {
        return enter::at_rate(network.id, &network, |rates, now| {
            rates.notices.take(now, NOTICES)
        });
    }
    match arp::message(arp, network.mac) {
        Message::Request => {
            if !enter::take(network.id, |rates, now| {
                rates.questions.take(now, QUESTIONS)
            }) {
                return Err(DropReason::RateLimited);
            }
            arp::answer(ethernet, arp, network.mac);
            reject::judge::cut(ctx, xdp.len(), reject::judge::SHORTEST)
                .ok_or(DropReason::Malformed)?;
            emit::back(ctx, &network)
        }
        Message::Reply => enter::at_rate(network.id, &network, |rates, now| {
            rates.replies.take(now, REPLIES)
        }),
        Message::Other => Err(DropReason::ArpNotOurs),
    }
}
