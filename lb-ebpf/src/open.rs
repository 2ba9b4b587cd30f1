//! open: a new flow: lookup -> policy -> select -> allocate. One of a shared VIP is the cell's after the
//! policy, which every packet of it meets.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::flow::FlowKey,
    verdict::{DropReason, Verdict},
    wire::{
        Packet,
        header::{Ethernet, Ipv4},
        parse_ipv4,
    },
};
use network_types::ip::IpProto;

use crate::{
    allocate, conntrack, count, emit, entry::NewFlow, forward, lookup, parse::Xdp, policy, select,
    usage,
};

/// The end of a packet that belongs to no flow, from the network `id` to a VIP there, as
/// [`count::number`]: it opens one. A function of its own for the verifier, as `lb_refuse`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_open(ctx: *mut xdp_md, id: u32) -> u32 {
    count::number(open(&XdpContext::new(ctx), id as u16))
}

#[inline(always)]
fn open(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let network = emit::network(id)?;
    let xdp = Xdp::new(ctx);
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv4 = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let key = FlowKey::of_request(&frame, id);
    let service = lookup::service(&key).ok_or(DropReason::NoService)?;
    policy::admit(id, network, service, key.client)?;
    let segment = conntrack::segment(&frame);
    let opens = segment.is_none_or(|segment| segment.opens());
    if service.is_of_cell() {
        if opens {
            allocate::forget_over(&key);
        }
        return match frame.is_plain_tcp() || network.is_host() {
            true => forward::local(ctx, network),
            false => Err(DropReason::UnsupportedProtocol),
        };
    }
    if !opens {
        return Err(DropReason::NoFlow);
    }
    usage::check(id, network, service)?;
    let (backend_id, backend) = select::select(service, &key)?;
    emit::check(&frame, backend.network)?;
    let flow = NewFlow {
        backend: backend.address,
        backend_port: backend.port,
        backend_id,
        service: service.id,
        client_mac: frame.ethernet.source.get(),
        isn: segment.map_or(0, |segment| segment.sequence),
        bytes: conntrack::frame_bytes(&frame),
    };
    let udp = key.protocol == IpProto::Udp as u16;
    let entry = allocate::allocate(emit::network(backend.network)?, &key, udp, &flow)?;
    let to = (backend.address, backend.port);
    let flow = (entry.id, false);
    let said = forward::to_backend(ctx, &frame, (id, network), flow, to, backend_id)?;
    count::end(said as u32)
}
