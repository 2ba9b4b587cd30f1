//! open: a new flow: lookup -> policy -> select -> allocate. One of a shared VIP is the cell's after the
//! policy, which every packet of it meets.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::Be32,
    verdict::{DropReason, Verdict},
    wire::{
        Chain, Frame, Packet,
        header::{Ethernet, Ipv4, Ipv6},
        parse_ipv4, parse_ipv6,
    },
};
use network_types::ip::IpProto;

use crate::{
    allocate, conntrack, count, emit,
    entry::NewFlow,
    family::{self, Family},
    forward, lookup,
    parse::Xdp,
    policy, select, usage,
};

/// The end of a packet that belongs to no flow, from the network `id` to a VIP there, as
/// [`count::number`]: it opens one. A function of its own for the verifier, as `lb_refuse`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_open(ctx: *mut xdp_md, id: u32) -> u32 {
    count::number(open4(&XdpContext::new(ctx), id as u16))
}

/// The same of IPv6, to the VIP with this label; `chain` is `wire::Chain::raw`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_open6(ctx: *mut xdp_md, id: u32, label: u32, chain: u32) -> u32 {
    let (label, chain) = (Be32::from_raw(label), Chain::from_raw(chain));
    count::number(open6(&XdpContext::new(ctx), id as u16, label, chain))
}

#[inline(always)]
fn open4(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv4 = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    open(ctx, &frame, ip.destination.get(), id)
}

#[inline(always)]
fn open6(ctx: &XdpContext, id: u16, label: Be32, chain: Chain) -> Result<Verdict, DropReason> {
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv6 = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    let frame = parse_ipv6(&xdp, ethernet, ip, chain)?;
    open(ctx, &frame, label, id)
}

#[inline(always)]
fn open<I: Family>(
    ctx: &XdpContext,
    frame: &Frame<'_, I>,
    vip: Be32,
    id: u16,
) -> Result<Verdict, DropReason> {
    let network = emit::network(id)?;
    let key = family::key(frame, vip, id).ok_or(DropReason::RecordMissing)?;
    let service = lookup::service(&key).ok_or(DropReason::NoService)?;
    policy::admit(id, network, service, frame.ip)?;
    let segment = conntrack::segment(frame);
    let opens = segment.is_none_or(|segment| segment.opens());
    if service.is_of_cell() {
        if opens {
            allocate::forget_over(&key);
        }
        return match I::is_plain_tcp(frame) || network.is_host() {
            true => forward::local(ctx, frame, network),
            false => Err(DropReason::UnsupportedProtocol),
        };
    }
    if !opens {
        return Err(DropReason::NoFlow);
    }
    usage::check(id, network, service)?;
    let (backend_id, backend) = select::select(service, &key)?;
    emit::check(frame, backend.network)?;
    let flow = NewFlow {
        backend: backend.address,
        backend_port: backend.port,
        backend_id,
        service: service.id,
        client_mac: frame.ethernet.source.get(),
        isn: segment.map_or(0, |segment| segment.sequence),
        bytes: conntrack::frame_bytes(frame),
    };
    let udp = key.protocol == IpProto::Udp as u16;
    let to_network = emit::network(backend.network)?;
    let entry = allocate::allocate(to_network, frame.ip, &key, udp, &flow)?;
    let to = (backend.address, backend.port);
    let flow = (entry.id, false);
    let said = forward::to_backend(ctx, frame, (id, network), flow, to, backend_id)?;
    count::end(said as u32)
}
