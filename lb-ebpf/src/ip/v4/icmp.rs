//! Echo requests to a VIP are answered, errors of either side are translated to the other.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Mac,
    icmp::{self, Kind, Message, Quote},
    maps::{
        flow::FlowKey,
        network::{Address, KIND_VIP},
    },
    nat::{self, Translation},
    rate::ERRORS,
    verdict::{DropReason, MTU_RAISED, Verdict},
    wire::header::Ipv4,
};

use network_types::ip::IpProto;

use crate::{
    cell::enter,
    count, emit,
    flow::{
        conntrack,
        snat::{flow_id, snat_page},
        splice,
    },
    frame::xdp::Xdp,
    lookup::{self, NetworkRef, network_by_id},
    maps::BACKENDS,
    new_flow::policy,
    reject,
    subprogram::Outcome,
};

/// The end of an ICMP packet from the network `id` to one of our addresses there, as [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_icmp(ctx: *mut xdp_md, id: u32) -> u32 {
    let ctx = &XdpContext::new(ctx);
    Outcome::of(message(ctx, id as u16)).raw()
}

/// Where a translated error goes.
struct Direction {
    translation: Translation,
    /// Id of the network of the end that had sent what is quoted.
    network: u16,
    next_hop: Mac,
    /// Whether that end is a backend.
    to_backend: bool,
    /// What the other end has acknowledged.
    expected: u32,
    /// What the numbers of what is quoted are ahead of those that the end had sent.
    ahead: u32,
}

#[inline(always)]
fn message(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let address = lookup::address(id, ip.destination.get()).ok_or(DropReason::RecordMissing)?;
    let message = match icmp::parse(&xdp, ethernet, ip) {
        Ok(message) => message,
        Err(reason) => return network.undeclared(reason),
    };
    match message.kind() {
        Kind::Error => error(ctx, &xdp, &message, network, address),
        Kind::Advice => network.undeclared(DropReason::IcmpUnrelated),
        Kind::Echo if address.kind & KIND_VIP != 0 && !network.is_host() => {
            echo(ctx, &message, network)
        }
        Kind::Echo | Kind::Other => network.undeclared(DropReason::UnsupportedProtocol),
    }
}

/// An echo request to a VIP of ours: answered by the VIP, at a rate, if its network may have the source.
#[inline(always)]
fn echo(
    ctx: &XdpContext,
    message: &Message<'_>,
    network: NetworkRef,
) -> Result<Verdict, DropReason> {
    if message.ethernet.source.get().is_group() {
        return Err(DropReason::Bogon);
    }
    policy::check_source(network.id, &network, message.ip)?;
    if !reject::limits::take_echo(network.id) {
        return Err(DropReason::RateLimited);
    }
    message.answer();
    emit::out(ctx, &network)
}

/// An error about a packet that we had sent: to the end that it came from. It keeps no flow alive
/// and changes none (RFC 5508 section 4.3).
#[inline(always)]
fn error(
    ctx: &XdpContext,
    xdp: &Xdp,
    message: &Message<'_>,
    network: NetworkRef,
    address: &Address,
) -> Result<Verdict, DropReason> {
    let quote = match message.quote(xdp) {
        Ok(quote) => quote,
        Err(reason) => return network.undeclared(reason),
    };
    let Some(way) = way(message, &quote, network.id, address) else {
        return if is_local(message, &quote, network, address) {
            enter::at_rate(network.id, &network, |rates, now| {
                rates.errors.take(now, ERRORS)
            })
        } else {
            network.undeclared(DropReason::IcmpUnrelated)
        };
    };
    if !quote.is_plausible(way.expected) {
        return Err(DropReason::IcmpUnrelated);
    }
    let out = network_by_id(way.network)?;
    nat::check_hops(message.ip)?;
    nat::check_size(message.ip, out.mtu)?;
    if way.to_backend && message.bound_mtu(&quote)? {
        count::note(network.id, MTU_RAISED);
    }
    message.translate(xdp, &quote, &way.translation, way.ahead);
    nat::address_frame(message.ethernet, out.mac, way.next_hop);
    emit::out(ctx, out)
}

/// The way of an error through the flow of what it quotes, if there is one.
#[inline(always)]
fn way(message: &Message<'_>, quote: &Quote<'_>, id: u16, address: &Address) -> Option<Direction> {
    let us = quote.ip.source.get();
    if us != message.ip.destination.get() {
        return None;
    }
    match flow_id(address, quote.l4.source.get()) {
        Some(flow_id) if splice::is_sent_by_socket(quote, flow_id) => None,
        Some(flow_id) => to_client(quote, flow_id),
        None if address.kind & KIND_VIP != 0 => to_backend(quote, id),
        None => None,
    }
}

/// Whether the cell may have sent what is quoted; its kernel knows whether it has.
#[inline(always)]
fn is_local(
    message: &Message<'_>,
    quote: &Quote<'_>,
    network: NetworkRef,
    address: &Address,
) -> bool {
    let (us, port) = (quote.ip.source.get(), quote.l4.source.get());
    let (peer, peer_port) = (quote.ip.destination.get(), quote.l4.destination.get());
    us == message.ip.destination.get()
        && quote.ip.protocol.get() == IpProto::Tcp as u8
        && message.ip.header_bytes() == size_of::<Ipv4>()
        && !network.is_host()
        && if let Some(flow_id) = flow_id(address, port) {
            splice::is_sent_by_socket(quote, flow_id)
        } else if address.is_local(port.get()) {
            lookup::is_local_peer(network.id, peer, peer_port)
        } else {
            lookup::is_shared(network.id, us, port)
        }
}

/// We had sent it from a SNAT port: a request, so its client gets the error.
#[inline(always)]
fn to_client(quote: &Quote<'_>, flow_id: u32) -> Option<Direction> {
    let hit = conntrack::by_id(flow_id)?;
    let is_of_flow = quote.ip.destination.get() == hit.backend
        && quote.l4.destination.get() == hit.backend_port
        && u16::from(quote.ip.protocol.get()) == hit.key.protocol;
    if !is_of_flow {
        return None;
    }
    let (_, expected) = hit.entry.acks();
    let (ahead, _) = splice::sequences(&hit.entry);
    Some(Direction {
        translation: Translation {
            source: hit.key.client,
            destination: hit.key.vip,
            source_port: hit.key.client_port,
            destination_port: hit.key.vip_port,
        },
        network: hit.key.network,
        next_hop: hit.client_mac,
        to_backend: false,
        expected,
        ahead,
    })
}

/// We had sent it from a VIP: a reply, so its backend gets the error.
#[inline(always)]
fn to_backend(quote: &Quote<'_>, id: u16) -> Option<Direction> {
    let hit = conntrack::by_key(&FlowKey {
        client: quote.ip.destination.get(),
        vip: quote.ip.source.get(),
        client_port: quote.l4.destination.get(),
        vip_port: quote.l4.source.get(),
        network: id,
        protocol: u16::from(quote.ip.protocol.get()),
    })?;
    let backend = BACKENDS.get(hit.backend_id)?;
    let page = snat_page(hit.entry.id)?;
    let (expected, _) = hit.entry.acks();
    let (_, ahead) = splice::sequences(&hit.entry);
    Some(Direction {
        translation: Translation {
            source: hit.backend,
            destination: page.address,
            source_port: hit.backend_port,
            destination_port: hit.entry.snat_port(),
        },
        network: backend.network,
        next_hop: backend.next_hop,
        to_backend: true,
        // The client's own number; the entry has the backend's.
        expected: expected.wrapping_add(ahead),
        ahead,
    })
}
