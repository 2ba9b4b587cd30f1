//! A new flow: lookup -> policy -> select -> allocate. One of a shared VIP is the cell's after the
//! policy, which every packet of it meets.

pub(crate) mod policy;
mod select;

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Be32,
    maps::{flow::FlowKey, fragment::FROM_CLIENT, network::Network, quota, service::Service},
    verdict::{DropReason, Verdict},
    wire::{Chain, Frame, parse_ipv4, parse_ipv6},
};
use network_types::ip::IpProto;

use crate::{
    cell::enter,
    emit,
    flow::{
        allocate, budget,
        entry::{Entry, NewFlow},
    },
    frame::xdp::Xdp,
    ip::{
        v4,
        version::{self, IpVersion},
    },
    lookup,
    subprogram::{Next6, Outcome, Way6},
};

/// The end of a packet that belongs to no flow, from the network `id` to a VIP there, as
/// [`Outcome`]: it opens one. A function of its own for the verifier, as `lb_refuse`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_open(ctx: *mut xdp_md, id: u32) -> u32 {
    Outcome::of(open(&XdpContext::new(ctx), id as u16)).raw()
}

/// The same of IPv6, to the VIP with this label; `chain` is `Chain::raw`. Returns what `lb_flow6` does.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_open6(ctx: *mut xdp_md, id: u32, label: u32, chain: u32) -> u64 {
    let (label, chain) = (Be32::from_raw(label), Chain::from_raw(chain));
    match open6(&XdpContext::new(ctx), id as u16, label, chain) {
        Ok(next) => next.raw(),
        Err(reason) => Next6::ended(Err(reason)).raw(),
    }
}

#[inline(always)]
fn open(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let network = crate::lookup::network_by_id(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let key = FlowKey::of_request(&frame, id);
    let service = admit(ip, &key, network)?;
    if service.is_of_cell() {
        if opens(&frame) {
            crate::flow::index::unindex_closed(&key);
        }
        if network.is_host() {
            return Ok(Verdict::Passed);
        }
        if !frame.is_plain_tcp() {
            return Err(DropReason::UnsupportedProtocol);
        }
        enter::check(&frame, (key.client, key.vip), id)?;
        return v4::forward::local(ctx, network);
    }
    let (entry, _, flow) = begin(&frame, &key, network, &service)?;
    let to = (flow.backend, flow.backend_port);
    let of_flow = (entry.id, false);
    let next = v4::forward::to_backend(ctx, &frame, (id, network), of_flow, to, flow.backend_id)?;
    next.outcome().result()
}

#[inline(always)]
fn open6(ctx: &XdpContext, id: u16, label: Be32, chain: Chain) -> Result<Next6, DropReason> {
    let network = crate::lookup::network_by_id(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv6().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain)?;
    let key = version::key(&frame, label, id).ok_or(DropReason::RecordMissing)?;
    let service = admit(ip, &key, network)?;
    let (entry, generation, _) = begin(&frame, &key, network, &service)?;
    Ok(Next6::flow(entry.id, Way6::new(generation, FROM_CLIENT)))
}

/// lookup and policy: the service of a packet with this header and key, if its source may use it.
#[inline(always)]
fn admit(ip: &impl IpVersion, key: &FlowKey, network: &Network) -> Result<Service, DropReason> {
    let service = lookup::record(key).ok_or(DropReason::NoService)?;
    policy::admit(key.network, network, &service, ip)?;
    Ok(service)
}

/// Whether a packet may open a flow.
#[inline(always)]
fn opens<I>(frame: &Frame<'_, I>) -> bool {
    !frame.is_tcp() || crate::flow::entry::segment(frame).opens()
}

/// select and allocate: the new flow's entry and its generation, and what is in it.
#[inline(always)]
fn begin<I: IpVersion>(
    frame: &Frame<'_, I>,
    key: &FlowKey,
    network: &Network,
    service: &Service,
) -> Result<(Entry, u32, NewFlow), DropReason> {
    if !opens(frame) {
        return Err(DropReason::NoFlow);
    }
    let client_mac = frame.ethernet.source.get();
    if !client_mac.is_of_station() {
        return Err(DropReason::GroupSource);
    }
    budget::check(key.network, network, service)?;
    let (backend_id, backend) = select::select(service, key)?;
    budget::check_quota(key.network, quota::bank(backend.network, I::IS_IPV6))?;
    emit::check(frame, backend.network)?;
    if !lookup::is_current(key, service) {
        return Err(DropReason::FlowRace);
    }
    let flow = NewFlow {
        backend: backend.address,
        backend_port: backend.port,
        backend_id,
        service: service.id,
        client_mac,
        isn: crate::flow::entry::segment(frame).sequence,
        bytes: crate::flow::entry::frame_bytes(frame),
    };
    let udp = key.protocol == IpProto::Udp as u16;
    let to = crate::lookup::network_by_id(backend.network)?;
    let (entry, generation) = allocate::allocate((backend.network, to), frame.ip, key, udp, &flow)?;
    Ok((entry, generation, flow))
}
