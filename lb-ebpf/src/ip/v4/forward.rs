//! A packet of TCP or UDP goes the way of its flow.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be16, Be32},
    maps::{
        addr6,
        flow::FlowKey,
        fragment::{FROM_BACKEND, FROM_CLIENT},
        network::{Address, KIND_VIP, Network},
    },
    nat::{self, Translation},
    verdict::{DropReason, Verdict},
    wire::{Ipv4Frame, parse_ipv4},
};

use crate::{
    cell::enter,
    emit,
    flow::{conntrack, entry::Hit, rewrite, splice},
    frame::{ip_options, xdp::Xdp},
    ip::v4::fragment,
    lookup,
    maps::BACKENDS,
    subprogram::{Next, Way},
};

/// What is next for a packet to one of our addresses in the network `id`, as [`Next`]. `kind`, `base`, and
/// `ports` (the first, and how many) are those of its `Address`.
///
/// A function of its own for the verifier, which walks it once and not once for each way to it; and
/// so that the way in does not take of its stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_flow(
    ctx: *mut xdp_md,
    id: u32,
    kind: u32,
    base: u32,
    ports: u32,
) -> u64 {
    let address = Address {
        kind,
        base,
        first_port: (ports >> 16) as u16,
        count: ports as u16,
    };
    match flow(&XdpContext::new(ctx), id as u16, &address) {
        Ok(next) => next.raw(),
        Err(reason) => Next::ended(Err(reason)).raw(),
    }
}

#[inline(always)]
const fn ended(verdict: Verdict) -> Next {
    Next::ended(Ok(verdict))
}

/// A request to a VIP, a reply to a SNAT port, a segment for the cell, or none of ours.
#[inline(always)]
fn flow(ctx: &XdpContext, id: u16, address: &Address) -> Result<Next, DropReason> {
    let network = crate::lookup::network_by_id(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = match parse_ipv4(&xdp, ethernet, ip) {
        Ok(frame) => frame,
        Err(reason) => return network.undeclared(reason).map(ended),
    };
    let (_, port) = frame.l4.ports();
    match address.flow_id(port.get()) {
        Some(flow_id) => reply(ctx, &frame, (id, network), flow_id),
        None if address.kind & KIND_VIP != 0 => request(ctx, &frame, (id, network)),
        None if is_local(&frame, (id, network), address) => {
            enter::check(&frame, (ip.source.get(), ip.destination.get()), id)?;
            local(ctx, network).map(ended)
        }
        None => network.undeclared(DropReason::ReplyMismatch).map(ended),
    }
}

/// Client to VIP: to the backend of its flow.
#[inline(always)]
fn request(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    (id, network): (u16, &Network),
) -> Result<Next, DropReason> {
    let key = FlowKey::of_request(frame, id);
    match conntrack::request(frame, &key)? {
        Some(hit) => {
            let to = (hit.backend, hit.backend_port);
            let flow = (hit.entry.id, splice::is_of(hit.entry.id));
            to_backend(ctx, frame, (id, network), flow, to, hit.backend_id)
        }
        None if network.is_host() && lookup::service(&key).is_none() => Ok(ended(Verdict::Passed)),
        None => Ok(Next::NEW_FLOW),
    }
}

/// Sends a request that belongs to a flow to its backend; returns what [`lb_flow`] does.
#[inline(always)]
pub(crate) fn to_backend(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    (id, network): (u16, &Network),
    (flow_id, is_spliced): (u32, bool),
    (backend, backend_port): (Be32, Be16),
    backend_id: u32,
) -> Result<Next, DropReason> {
    let next = BACKENDS.get(backend_id).ok_or(DropReason::RecordMissing)?;
    let page = crate::flow::snat::snat_page(flow_id).ok_or(DropReason::RecordMissing)?;
    let translation = Translation {
        source: page.address,
        destination: backend,
        source_port: Be16::new(page.port(flow_id)),
        destination_port: backend_port,
    };
    let out = crate::lookup::network_by_id(next.network)?;
    fragment::identify(ctx, frame.ip, id, flow_id, FROM_CLIENT);
    let is_open = rewrite::rewrite(ctx, frame, &translation, network, out)?;
    nat::address_frame(frame.ethernet, out.mac, next.next_hop);
    if is_spliced {
        let way = Way::new(next.network, FROM_CLIENT, is_open);
        return Ok(Next::splice(flow_id, way));
    }
    emit::out(ctx, out).map(ended)
}

/// Backend to SNAT port: back to the client of its flow.
#[inline(always)]
fn reply(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    (id, network): (u16, &Network),
    flow_id: u32,
) -> Result<Next, DropReason> {
    if splice::is_for_socket(frame, flow_id)? {
        return to_socket(ctx, frame, network, flow_id).map(ended);
    }
    let Hit {
        key, client_mac, ..
    } = conntrack::reply(frame, flow_id)?;
    let translation = Translation {
        source: key.vip,
        destination: key.client,
        source_port: key.vip_port,
        destination_port: key.client_port,
    };
    let out = crate::lookup::network_by_id(key.network)?;
    ip_options::conceal(ctx, frame.ip);
    fragment::identify(ctx, frame.ip, id, flow_id, FROM_BACKEND);
    let is_open = rewrite::rewrite(ctx, frame, &translation, network, out)?;
    nat::address_frame(frame.ethernet, out.mac, client_mac);
    if splice::is_of(flow_id) {
        let way = Way::new(key.network, FROM_BACKEND, is_open);
        return Ok(Next::splice(flow_id, way));
    }
    emit::out(ctx, out).map(ended)
}

/// Delivers a backend's segment to the socket of the cell that has the flow.
#[inline(always)]
fn to_socket(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    network: &Network,
    flow_id: u32,
) -> Result<Verdict, DropReason> {
    if !frame.is_plain_tcp() {
        return Err(DropReason::UnsupportedProtocol);
    }
    if frame.answers() {
        splice::lb_note_opening(ctx.ctx, flow_id);
    }
    local(ctx, network)
}

/// Whether a frame to `address` is for a socket of the network's cell: plain TCP from a peer that the cell
/// talks to. The cell only opens connections, so a bare SYN is never for it; whether the segment is of a
/// connection, the cell's kernel judges.
#[inline(always)]
fn is_local(frame: &Ipv4Frame<'_>, (id, network): (u16, &Network), address: &Address) -> bool {
    let (from, port) = frame.l4.ports();
    address.is_local(port.get())
        && !network.is_host()
        && frame.is_plain_tcp()
        && !frame.asks()
        && addr6::index(frame.ip.source.get()).is_none()
        && lookup::is_local_peer(id, frame.ip.source.get(), from)
}

/// What a socket of the cell has to do with: into the cell; or to the host, whose socket it is then.
#[inline(always)]
pub(crate) fn local(ctx: &XdpContext, network: &Network) -> Result<Verdict, DropReason> {
    if network.is_host() {
        return Ok(Verdict::Passed);
    }
    // Where the kernel's stack will, it does so in the cell as well.
    let _open = rewrite::complete(ctx, network)?;
    emit::to_cell(network)
}
