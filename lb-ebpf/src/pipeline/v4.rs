//! TCP and UDP over IPv4: a packet of a flow in one function, and one that opens a flow in another.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be16, Be32, Mac},
    maps::{
        backend::Backend,
        flow::FlowKey,
        fragment::{FROM_BACKEND, FROM_CLIENT},
        network::{KIND_VIP, Network},
        service::Service,
    },
    nat::{self, Translation},
    verdict::{DropReason, Verdict},
    wire::{Ipv4Frame, parse_ipv4},
};

use crate::{
    cell::{
        enter::{self, Addresses},
        sockets,
    },
    door, emit,
    flow::{
        conntrack::{self, ReplyFlow, RequestFlow},
        entry::{Entry, Hit},
        flood, index, rewrite,
        snat::{flow_id, snat_page},
        splice,
    },
    frame::{ip_options, xdp::Xdp},
    ip::v4::fragment,
    lookup::{self, NetworkRef},
    new_flow,
    subprogram::{CookieService, FoundDoor, Next, SpliceLeg, whole},
};

/// What is next for a packet to one of our addresses in the network `id`, behind a `door` as [`FoundDoor`]: [`Next`] with
/// a [`SpliceLeg`]. A subprogram also so that the way in does not take of its stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_flow(ctx: *mut xdp_md, id: u32, door: u64) -> u64 {
    match flow(&XdpContext::new(ctx), id as u16, FoundDoor::from_raw(door)) {
        Ok(next) => next.raw(),
        Err(reason) => Next::ended(Err(reason)).raw(),
    }
}

/// A reply to a SNAT port, a request to a VIP, a segment for a socket of the cell, or none of ours.
#[inline(always)]
fn flow(ctx: &XdpContext, id: u16, door: FoundDoor) -> Result<Next, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let known = door::address(door);
    let Some(address) = known.or_else(|| lookup::address(id, ip.destination.get()).copied()) else {
        return network.undeclared(DropReason::NotDeclared).map(ended);
    };
    let frame = match parse_ipv4(&xdp, ethernet, ip) {
        Ok(frame) => frame,
        Err(reason) => return network.undeclared(reason).map(ended),
    };
    let (_, port) = frame.l4.ports();
    match flow_id(&address, port) {
        Some(flow_id) => reply(ctx, &frame, network, flow_id),
        None if address.kind & KIND_VIP != 0 => request(ctx, &frame, network),
        None if sockets::is_local(&frame, network, &address) => {
            let ends = Addresses {
                us: ip.destination.get(),
                peer: ip.source.get(),
            };
            enter::check(&frame, ends, id)?;
            sockets::deliver(ctx, &network).map(ended)
        }
        None => network.undeclared(DropReason::ReplyMismatch).map(ended),
    }
}

#[inline(always)]
const fn ended(verdict: Verdict) -> Next {
    Next::ended(Ok(verdict))
}

/// Client to VIP: conntrack -> rewrite -> emit, to the backend of its flow.
#[inline(always)]
fn request(ctx: &XdpContext, frame: &Ipv4Frame<'_>, from: NetworkRef) -> Result<Next, DropReason> {
    let key = FlowKey::of_request(frame, from.id);
    match conntrack::request(frame, &key)? {
        RequestFlow::Flow(hit, backend, network) => {
            let to = Destination {
                flow_id: hit.entry.id,
                snat_port: hit.entry.snat_port(),
                is_spliced: hit.word.is_spliced(),
                address: hit.backend,
                port: hit.backend_port,
                backend,
                network,
            };
            forward(ctx, frame, from, &to.onward()?)
        }
        RequestFlow::Unanswered(flow_id) => Ok(Next::unanswered(flow_id)),
        RequestFlow::New if from.is_host() && lookup::service(&key).is_none() => {
            Ok(ended(Verdict::Passed))
        }
        RequestFlow::New => Ok(Next::NEW_FLOW),
    }
}

/// Backend to SNAT port: conntrack -> rewrite -> emit, back to the client of its flow.
#[inline(always)]
fn reply(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    from: NetworkRef,
    flow_id: u32,
) -> Result<Next, DropReason> {
    let entry = Entry::at(flow_id).ok_or(DropReason::RecordMissing)?;
    let word = entry.word();
    if splice::is_for_socket(frame, &entry, word)? {
        return sockets::deliver_of_flow(ctx, frame, &from, flow_id).map(ended);
    }
    match conntrack::reply(frame, entry, word)? {
        ReplyFlow::Flow(hit, network) => {
            ip_options::conceal(ctx, frame.ip);
            forward(ctx, frame, from, &to_client(&hit, network))
        }
        ReplyFlow::Refusal(flow_id) => Ok(Next::refused(flow_id)),
        ReplyFlow::Binding(flow_id) => Ok(Next::binding(flow_id)),
    }
}

/// What is next for a packet that belongs to no flow, from the network `id` to a VIP there, as [`lb_flow`]: it opens
/// one.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_open(ctx: *mut xdp_md, id: u32) -> u64 {
    match open(&XdpContext::new(ctx), id as u16) {
        Ok(next) => next.raw(),
        Err(reason) => Next::ended(Err(reason)).raw(),
    }
}

/// lookup -> policy -> select -> allocate -> rewrite -> emit. A packet to a shared VIP is the cell's after the policy,
/// which every packet of it meets.
#[inline(always)]
fn open(ctx: &XdpContext, id: u16) -> Result<Next, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let service = new_flow::admit(ip, key, &network)?;
    if is_of_cookies(&frame, &service, &network) {
        return Ok(Next::cookie(CookieService::of(&service)));
    }
    if service.is_of_cell() {
        return to_shared_vip(ctx, &frame, network, key).map(ended);
    }
    let opened = new_flow::begin(&frame, key, &network, &service)?;
    let to = Destination {
        flow_id: opened.entry.id,
        snat_port: opened.entry.snat_port(),
        is_spliced: false,
        address: opened.flow.backend,
        port: opened.flow.backend_port,
        backend: opened.backend,
        network: opened.network.record(),
    };
    forward(ctx, &frame, network, &to.onward()?)
}

/// Whether a packet that belongs to no flow is a SYN that is answered by a cookie, or may return one: of a service without names any
/// segment may, as its SYNs may have been answered so a moment ago.
#[inline(always)]
fn is_of_cookies(frame: &Ipv4Frame<'_>, service: &Service, network: &NetworkRef) -> bool {
    if service.is_of_cell() {
        return service.has_cookies() && !network.is_host();
    }
    if !frame.is_tcp() {
        return false;
    }
    match new_flow::opens(frame) {
        true => {
            service.has_cookies() || service.has_cookies_in_floods() && flood::takes_syn(network.id)
        }
        false => frame.is_plain_tcp(),
    }
}

/// A packet to a shared VIP: into the cell of its network, or to the host.
#[inline(always)]
fn to_shared_vip(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    from: NetworkRef,
    key: &FlowKey,
) -> Result<Verdict, DropReason> {
    if new_flow::opens(frame) {
        index::remove_closed(key);
    }
    if from.is_host() {
        return Ok(Verdict::Passed);
    }
    if !frame.is_plain_tcp() {
        return Err(DropReason::UnsupportedProtocol);
    }
    let ends = Addresses {
        us: key.vip,
        peer: key.client,
    };
    enter::check(frame, ends, from.id)?;
    sockets::deliver(ctx, &from)
}

/// Where a packet of a flow goes.
struct Onward<'a> {
    flow_id: u32,
    is_spliced: bool,
    /// One of `maps::fragment`'s.
    direction: u16,
    translation: Translation,
    network_id: u16,
    network: &'static Network,
    next_hop: &'a Mac,
}

/// The backend of a flow.
struct Destination {
    flow_id: u32,
    snat_port: Be16,
    is_spliced: bool,
    address: Be32,
    port: Be16,
    backend: &'static Backend,
    network: &'static Network,
}

impl Destination {
    #[inline(always)]
    fn onward(self) -> Result<Onward<'static>, DropReason> {
        let Self {
            flow_id, backend, ..
        } = self;
        let page = snat_page(flow_id).ok_or(DropReason::RecordMissing)?;
        Ok(Onward {
            flow_id,
            is_spliced: self.is_spliced,
            direction: FROM_CLIENT,
            translation: Translation {
                source: page.address,
                destination: self.address,
                source_port: self.snat_port,
                destination_port: self.port,
            },
            network_id: backend.network,
            network: self.network,
            next_hop: &backend.next_hop,
        })
    }
}

#[inline(always)]
const fn to_client<'a>(hit: &'a Hit, network: &'static Network) -> Onward<'a> {
    Onward {
        flow_id: hit.entry.id,
        is_spliced: hit.word.is_spliced(),
        direction: FROM_BACKEND,
        translation: Translation {
            source: hit.key.vip,
            destination: hit.key.client,
            source_port: hit.key.vip_port,
            destination_port: hit.key.client_port,
        },
        network_id: hit.key.network,
        network,
        next_hop: &hit.client_mac,
    }
}

/// rewrite -> emit; or, where the flow is spliced, rewrite, and the splice is next.
#[inline(always)]
fn forward(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    from: NetworkRef,
    to: &Onward<'_>,
) -> Result<Next, DropReason> {
    fragment::identify(ctx, frame.ip, from.id, to.flow_id, to.direction);
    let is_open = rewrite::rewrite(ctx, frame, &to.translation, &from, to.network)?;
    nat::address_frame(frame.ethernet, to.network.mac, *to.next_hop);
    if to.is_spliced {
        let leg = SpliceLeg::new(to.network_id, to.direction, is_open);
        return Ok(Next::splice(to.flow_id, leg));
    }
    emit::out(ctx, to.network).map(ended)
}
