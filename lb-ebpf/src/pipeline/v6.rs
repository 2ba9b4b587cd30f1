//! TCP and UDP over IPv6. Two addresses of sixteen bytes more do not fit on one stack: conntrack finds the flow in one
//! function, or a new flow is opened in another, and a third one rewrites the packet and sends it.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be32, Mac},
    maps::{
        fragment::{FROM_BACKEND, FROM_CLIENT},
        network::KIND_VIP,
    },
    nat,
    verdict::{DropReason, Verdict},
    wire::{Chain, Ipv6Frame, parse_ipv6},
};

use crate::{
    cell::{
        enter::{self, Addresses},
        sockets,
    },
    emit,
    flow::{
        conntrack::{self, ReplyFlow, RequestFlow},
        entry::{Entry, Hit},
        snat::flow_id,
    },
    frame::xdp::Xdp,
    ip::{
        v6::{
            headers::{ICMP, chain},
            neighbour,
            rewrite::{self, Path},
        },
        version,
    },
    lookup::{self, NetworkRef, network_by_id},
    maps::BACKENDS,
    new_flow::{self, policy},
    subprogram::{Next, Next6, Outcome, RewriteLeg, Stage6, whole},
};

/// What is next for a packet of IPv6 from the network `id`, as [`Next6`]. What is next is called from the way in,
/// because stacks add up.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_ipv6(ctx: *mut xdp_md, id: u32) -> u64 {
    match receive(&XdpContext::new(ctx), id as u16) {
        Ok(next) => next.raw(),
        Err(reason) => Next6::ended(Err(reason)).raw(),
    }
}

#[inline(always)]
fn receive(ctx: &XdpContext, id: u16) -> Result<Next6, DropReason> {
    let network = network_by_id(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    // A switch that knows the members of a group may send to each of them alone (RFC 6085).
    if ethernet.destination.get().is_group() || ip.destination.get().is_group() {
        return Ok(discovery());
    }
    let label = lookup::label(ip.destination.get());
    let ours = label.filter(|&label| lookup::labelled(id, label).is_some());
    match ours {
        Some(_) if network.is_stopped() => Err(DropReason::Stopped),
        Some(label) => to_us(ctx, label),
        None => policy::not_for_us(network, ip).map(|verdict| Next6::ended(Ok(verdict))),
    }
}

#[inline(always)]
fn discovery() -> Next6 {
    Next6::at(Stage6::Discovery, Chain::none(ICMP), Be32::from_raw(0))
}

/// To the address of ours with this label.
#[inline(always)]
fn to_us(ctx: &XdpContext, label: Be32) -> Result<Next6, DropReason> {
    let chain = chain(ctx)?;
    let xdp = Xdp::new(ctx);
    let is_later = chain
        .fragment(&xdp)
        .is_some_and(|fragment| fragment.offset() != 0);
    let stage = if is_later {
        Stage6::Fragment
    } else if chain.protocol() != ICMP {
        Stage6::Conntrack
    } else if neighbour::is_asked(&xdp, chain) {
        return Ok(discovery());
    } else {
        Stage6::Icmp
    };
    Ok(Next6::at(stage, chain, label))
}

/// What is next for a packet to the address of ours with this label in the network `id`, as [`Next`] with a
/// [`RewriteLeg`]. `chain` is [`Chain::raw`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_flow6(ctx: *mut xdp_md, id: u32, label: u32, chain: u32) -> u64 {
    let (label, chain) = (Be32::from_raw(label), Chain::from_raw(chain));
    match flow(&XdpContext::new(ctx), id as u16, label, chain) {
        Ok(next) => next.raw(),
        Err(reason) => Next::ended(Err(reason)).raw(),
    }
}

/// A reply to a SNAT port, a request to a VIP, or a segment for a socket of the cell.
#[inline(always)]
fn flow(ctx: &XdpContext, id: u16, label: Be32, chain: Chain) -> Result<Next, DropReason> {
    let network = network_by_id(id)?;
    let address = lookup::labelled(id, label).ok_or(DropReason::NotDeclared)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain)?;
    let (_, port) = frame.l4.ports();
    match flow_id(address, port) {
        Some(flow_id) => reply(&frame, flow_id),
        None if address.kind & KIND_VIP != 0 => request(&frame, label, id),
        None => {
            let peer =
                sockets::local_peer6(&frame, id, address).ok_or(DropReason::ReplyMismatch)?;
            enter::check(&frame, Addresses { us: label, peer }, id)?;
            let verdict = sockets::deliver6(ctx, &frame, network)?;
            Ok(Next::ended(Ok(verdict)))
        }
    }
}

/// Backend to SNAT port.
#[inline(always)]
fn reply(frame: &Ipv6Frame<'_>, flow_id: u32) -> Result<Next, DropReason> {
    let entry = Entry::at(flow_id).ok_or(DropReason::RecordMissing)?;
    Ok(match conntrack::reply(frame, entry, entry.word())? {
        ReplyFlow::Flow(hit, _) => rewrite_next(&hit, FROM_BACKEND),
        ReplyFlow::Refusal(flow_id) => Next::refused(flow_id),
        ReplyFlow::Binding(flow_id) => Next::binding(flow_id),
    })
}

/// Client to VIP.
#[inline(always)]
fn request(frame: &Ipv6Frame<'_>, vip: Be32, id: u16) -> Result<Next, DropReason> {
    let key = version::key(frame, vip, id).ok_or(DropReason::RecordMissing)?;
    Ok(match conntrack::request(frame, &key)? {
        RequestFlow::Flow(hit, ..) => rewrite_next(&hit, FROM_CLIENT),
        RequestFlow::Unanswered(flow_id) => Next::unanswered(flow_id),
        RequestFlow::New => Next::NEW_FLOW,
    })
}

#[inline(always)]
fn rewrite_next(hit: &Hit, direction: u16) -> Next {
    Next::rewrite(
        hit.entry.id,
        RewriteLeg::new(hit.word.generation(), direction),
    )
}

/// What is next for a packet that belongs to no flow, to the VIP with this label, as [`lb_flow6`]: it opens one.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_open6(ctx: *mut xdp_md, id: u32, label: u32, chain: u32) -> u64 {
    let (label, chain) = (Be32::from_raw(label), Chain::from_raw(chain));
    match open(&XdpContext::new(ctx), id as u16, label, chain) {
        Ok(next) => next.raw(),
        Err(reason) => Next::ended(Err(reason)).raw(),
    }
}

/// lookup -> policy -> select -> allocate.
#[inline(always)]
fn open(ctx: &XdpContext, id: u16, label: Be32, chain: Chain) -> Result<Next, DropReason> {
    let network = network_by_id(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain)?;
    let key = version::key(&frame, label, id).ok_or(DropReason::RecordMissing)?;
    let key = whole(&key);
    let service = new_flow::admit(ip, key, network)?;
    let opened = new_flow::begin(&frame, key, network, &service)?;
    let leg = RewriteLeg::new(opened.generation, FROM_CLIENT);
    Ok(Next::rewrite(opened.entry.id, leg))
}

/// Sends a packet that came from the network `id` on to the other end of its flow. `leg` is a [`RewriteLeg`].
/// Returns an [`Outcome`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_rewrite6(
    ctx: *mut xdp_md,
    id: u32,
    flow_id: u32,
    leg: u32,
    chain: u32,
) -> u32 {
    let (leg, chain) = (RewriteLeg::from_raw(leg), Chain::from_raw(chain));
    Outcome::of(forward(
        &XdpContext::new(ctx),
        id as u16,
        flow_id,
        leg,
        chain,
    ))
    .raw()
}

/// rewrite -> emit.
#[inline(always)]
fn forward(
    ctx: &XdpContext,
    id: u16,
    flow_id: u32,
    leg: RewriteLeg,
    chain: Chain,
) -> Result<Verdict, DropReason> {
    let from = NetworkRef::of(id)?;
    let hit = conntrack::by_id(flow_id).ok_or(DropReason::FlowRace)?;
    if hit.word.generation() != leg.generation() {
        return Err(DropReason::FlowRace);
    }
    let direction = leg.direction();
    let (network, next_hop) = next_hop(&hit, direction)?;
    let to = network_by_id(network)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain)?;
    let path = Path {
        from,
        to,
        direction,
    };
    rewrite::rewrite(ctx, &frame, chain, &hit, path)?;
    nat::address_frame(ethernet, to.mac, next_hop);
    emit::out(ctx, to)
}

/// The network of the flow's other end, and its next hop.
#[inline(always)]
fn next_hop(hit: &Hit, direction: u16) -> Result<(u16, Mac), DropReason> {
    if direction == FROM_BACKEND {
        return Ok((hit.key.network, hit.client_mac));
    }
    let backend = BACKENDS
        .get(hit.backend_id)
        .ok_or(DropReason::RecordMissing)?;
    Ok((backend.network, backend.next_hop))
}
