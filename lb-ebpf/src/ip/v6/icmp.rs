//! Echo requests to a VIP are answered, errors of either side are translated to
//! the other. Neighbour discovery went elsewhere before.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be32, Be128, Mac},
    icmp::Kind,
    icmp6::{self, Message, Quote},
    maps::{
        flow::FlowKey,
        network::{Address, KIND_VIP, Network},
    },
    nat::{self, Translation},
    rate::ERRORS,
    verdict::{DropReason, Verdict},
    wire::Chain,
};
use network_types::ip::IpProto;

use crate::{
    cell::enter,
    emit,
    flow::{
        conntrack,
        snat::{flow_id, snat_page},
    },
    frame::xdp::Xdp,
    lookup,
    maps::BACKENDS,
    new_flow::policy,
    reject,
    subprogram::Outcome,
};

/// The end of an ICMPv6 packet from the network `id` to one of our addresses there, as [`Outcome`]; `chain` is
/// `wire::Chain::raw`. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_icmp6(ctx: *mut xdp_md, id: u32, chain: u32) -> u32 {
    let ctx = &XdpContext::new(ctx);
    Outcome::of(message(ctx, id as u16, Chain::from_raw(chain))).raw()
}

/// The destination of a packet: one of our addresses, in the network with this id.
struct Ours<'a> {
    id: u16,
    network: &'a Network,
    label: Be32,
    address: &'a Address,
}

/// Where a translated error goes.
struct Direction {
    translation: Translation<Be128>,
    /// Id of the network of the end that had sent what is quoted.
    network: u16,
    next_hop: Mac,
    /// Whether that end is a backend.
    to_backend: bool,
    /// What the other end has acknowledged.
    expected: u32,
}

#[inline(always)]
fn message(ctx: &XdpContext, id: u16, chain: Chain) -> Result<Verdict, DropReason> {
    let network = lookup::network_by_id(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let label = lookup::label(ip.destination.get()).ok_or(DropReason::RecordMissing)?;
    let ours = Ours {
        id,
        network,
        label,
        address: lookup::labelled(id, label).ok_or(DropReason::RecordMissing)?,
    };
    let message = icmp6::parse(&xdp, ethernet, ip, chain)?;
    match message.kind() {
        Kind::Error => error(ctx, &xdp, &message, &ours),
        Kind::Echo if ours.address.kind & KIND_VIP != 0 => echo(ctx, &message, &ours),
        _ => Err(DropReason::UnsupportedProtocol),
    }
}

/// An echo request to a VIP of ours: answered by the VIP, at a rate, if its network may have the source.
#[inline(always)]
fn echo(ctx: &XdpContext, message: &Message<'_>, ours: &Ours<'_>) -> Result<Verdict, DropReason> {
    if message.ethernet.source.get().is_group() {
        return Err(DropReason::Bogon);
    }
    policy::check_source(ours.id, ours.network, message.ip)?;
    if !reject::limits::take_echo(ours.id) {
        return Err(DropReason::RateLimited);
    }
    message.answer();
    emit::out(ctx, ours.network)
}

/// An error about a packet that we had sent: to the end that it came from. It keeps no flow alive
/// and changes none (RFC 5508 section 4.3).
#[inline(always)]
fn error(
    ctx: &XdpContext,
    xdp: &Xdp,
    message: &Message<'_>,
    ours: &Ours<'_>,
) -> Result<Verdict, DropReason> {
    let quote = message.quote(xdp)?;
    if quote.ip.source.get() != message.ip.destination.get() {
        return Err(DropReason::IcmpUnrelated);
    }
    let Some(way) = way(&quote, ours) else {
        return if is_local(message, &quote, ours) {
            enter::at_rate(ours.id, ours.network, |rates, now| {
                rates.errors.take(now, ERRORS)
            })
        } else {
            Err(DropReason::IcmpUnrelated)
        };
    };
    if !quote.is_plausible(way.expected) {
        return Err(DropReason::IcmpUnrelated);
    }
    let network = lookup::network_by_id(way.network)?;
    nat::check_hops(message.ip)?;
    nat::check_size(message.ip, network.mtu)?;
    if way.to_backend {
        message.check_mtu(&quote)?;
    }
    message.translate(xdp, &quote, &way.translation);
    nat::address_frame(message.ethernet, network.mac, way.next_hop);
    emit::out(ctx, network)
}

/// The way of an error through the flow of what it quotes, which we had sent, if there is one.
#[inline(always)]
fn way(quote: &Quote<'_>, ours: &Ours<'_>) -> Option<Direction> {
    match flow_id(ours.address, quote.l4.source.get()) {
        Some(flow_id) => to_client(quote, flow_id),
        None if ours.address.kind & KIND_VIP != 0 => to_backend(quote, ours),
        None => None,
    }
}

/// Whether the cell may have sent what is quoted: from a local port to a peer of its checks. Its kernel knows
/// whether it has.
#[inline(always)]
fn is_local(message: &Message<'_>, quote: &Quote<'_>, ours: &Ours<'_>) -> bool {
    let (port, peer_port) = (quote.l4.source.get(), quote.l4.destination.get());
    quote.protocol == IpProto::Tcp as u8
        && message.is_plain()
        && ours.address.is_local(port.get())
        && lookup::label(quote.ip.destination.get())
            .is_some_and(|peer| lookup::is_local_peer(ours.id, peer, peer_port))
}

/// We had sent it from a SNAT port: a request, so its client gets the error.
#[inline(always)]
fn to_client(quote: &Quote<'_>, flow_id: u32) -> Option<Direction> {
    let hit = conntrack::by_id(flow_id)?;
    let is_of_flow = lookup::unlabel(hit.backend) == Some(quote.ip.destination.get())
        && quote.l4.destination.get() == hit.backend_port
        && u16::from(quote.protocol) == hit.key.protocol;
    if !is_of_flow {
        return None;
    }
    let (_, expected) = hit.entry.acks();
    Some(Direction {
        translation: Translation {
            source: hit.client6()?,
            destination: lookup::unlabel(hit.key.vip)?,
            source_port: hit.key.client_port,
            destination_port: hit.key.vip_port,
        },
        network: hit.key.network,
        next_hop: hit.client_mac,
        to_backend: false,
        expected,
    })
}

/// We had sent it from a VIP: a reply, so its backend gets the error.
#[inline(always)]
fn to_backend(quote: &Quote<'_>, ours: &Ours<'_>) -> Option<Direction> {
    let hit = conntrack::by_key(&FlowKey {
        client: lookup::client_hash(quote.ip.destination.get())?,
        vip: ours.label,
        client_port: quote.l4.destination.get(),
        vip_port: quote.l4.source.get(),
        network: ours.id,
        protocol: u16::from(quote.protocol),
    })?;
    if hit.client6() != Some(quote.ip.destination.get()) {
        return None;
    }
    let backend = BACKENDS.get(hit.backend_id)?;
    let page = snat_page(hit.entry.id)?;
    let (expected, _) = hit.entry.acks();
    Some(Direction {
        translation: Translation {
            source: lookup::unlabel(hit.backend)?,
            destination: lookup::unlabel(page.address)?,
            source_port: hit.backend_port,
            destination_port: hit.entry.snat_port(),
        },
        network: backend.network,
        next_hop: backend.next_hop,
        to_backend: true,
        expected,
    })
}
