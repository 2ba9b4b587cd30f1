//! The sentence, in order: parse -> conntrack -> rewrite -> emit, and for a new flow lookup ->
//! policy -> select -> allocate in between.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    addr::{Be16, Be32, Mac},
    maps::{
        flow::FlowKey,
        network::{KIND_VIP, Network},
    },
    nat::{self, Translation},
    verdict::{DropReason, Hook, Verdict},
    wire::{
        self, Ipv4Frame, Packet, Tag, Tagging,
        header::{Ethernet, Ipv4},
        is_link_control, parse_ipv4,
    },
};
use network_types::{eth::EtherType, ip::IpProto};

use crate::{
    allocate, answer, arp,
    conntrack::{self, Hit},
    count, emit,
    entry::NewFlow,
    lookup,
    maps::{BACKENDS, NETWORKS},
    parse::Xdp,
    policy, select, tag, usage,
};

/// `lb_nic`.
#[inline(always)]
pub(crate) fn nic(ctx: &XdpContext) -> u32 {
    let (id, end) = match enter(ctx) {
        Ok(door) => (door.id, inside(ctx, &door)),
        Err((id, None)) => (id, Ok(Verdict::Passed)),
        Err((id, Some(reason))) => (id, Err(reason)),
    };
    match end {
        Ok(verdict) => count::finish(ctx, Hook::Nic, id, verdict),
        Err(reason) => answer::lb_refuse(ctx.ctx, u32::from(id), reason as u32),
    }
}

/// The network that a frame came in by.
struct Door {
    id: u16,
    network: &'static Network,
    /// The tag that was taken off.
    tag: Option<Tag>,
}

/// Finds the network of a frame and takes its tag off; or gives the network that the frame is counted
/// for and why it is dropped, or nothing if it is not for us and passes as it came.
#[inline(always)]
fn enter(ctx: &XdpContext) -> Result<Door, (u16, Option<DropReason>)> {
    let xdp = Xdp::new(ctx);
    let malformed = (0, Some(DropReason::Malformed));
    let ethernet: &Ethernet = xdp.header(0).ok_or(malformed)?;
    let (tag, stacked) = match wire::tagging(&xdp, ethernet).ok_or(malformed)? {
        Tagging::Untagged => (None, false),
        Tagging::Tagged(tag) => (Some(tag), false),
        Tagging::Stacked(tag) => (Some(tag), true),
        Tagging::Foreign => return Err((0, None)),
    };
    let vlan = tag.map_or(0, Tag::vlan);
    let found = lookup::network(ctx.ingress_ifindex() as u32, vlan);
    if stacked && (vlan == 0 || found.is_some_and(|(_, network)| network.is_tenant())) {
        let id = found.map_or(0, |(id, _)| id);
        return Err((id, Some(DropReason::StackedTag)));
    }
    let (id, network) = found.ok_or((0, None))?;
    if network.role == 0 {
        return Err((id, Some(DropReason::RecordMissing)));
    }
    let destination = ethernet.destination.get();
    let ours = destination == network.mac || destination.is_group();
    if stacked || !ours {
        return Err((id, None));
    }
    if tag.is_some() {
        tag::take_off(ctx).map_err(|reason| (id, Some(reason)))?;
    }
    Ok(Door { id, network, tag })
}

/// What happens to a frame for us. One that passes gets its tag back.
#[inline(always)]
fn inside(ctx: &XdpContext, door: &Door) -> Result<Verdict, DropReason> {
    let verdict = frame(ctx, &Xdp::new(ctx), door.id, door.network)?;
    if let (Verdict::Passed, Some(tag)) = (verdict, door.tag) {
        tag::put_on(ctx, tag)?;
    }
    Ok(verdict)
}

/// Which layer-3 protocol.
#[inline(always)]
fn frame(ctx: &XdpContext, xdp: &Xdp, id: u16, network: &Network) -> Result<Verdict, DropReason> {
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let ethertype = ethernet.ethertype.get().raw();
    if ethertype == EtherType::Ipv4 as u16 {
        ipv4(ctx, xdp, id, network, ethernet)
    } else if ethertype == EtherType::Arp as u16 {
        arp::arp(xdp, id, network)
    } else if network.is_tenant() && !is_link_control(ethernet.ethertype.get().get()) {
        Err(DropReason::NotDeclared)
    } else {
        Ok(Verdict::Passed)
    }
}

/// A request to a VIP, a reply to a SNAT port, or none of ours.
#[inline(always)]
fn ipv4(
    ctx: &XdpContext,
    xdp: &Xdp,
    id: u16,
    network: &Network,
    ethernet: &Ethernet,
) -> Result<Verdict, DropReason> {
    if ethernet.destination.get().is_group() {
        return if network.is_tenant() {
            Err(DropReason::GroupAddress)
        } else {
            Ok(Verdict::Passed)
        };
    }
    let ip: &Ipv4 = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    let Some(address) = lookup::address(id, ip.destination.get()) else {
        return elsewhere(network, ip.destination.get());
    };
    let frame = match parse_ipv4(xdp, ethernet, ip) {
        Ok(frame) => frame,
        Err(reason) => return network.undeclared(reason),
    };
    let (_, port) = frame.l4.ports();
    match address.flow_id(port.get()) {
        Some(flow_id) => reply(ctx, &frame, flow_id),
        None if address.kind & KIND_VIP != 0 => request(ctx, &frame, id, network),
        None => network.undeclared(DropReason::ReplyMismatch),
    }
}

/// IPv4 to none of our addresses: from a tenant to nobody, else to the host, but not through it.
#[inline(always)]
fn elsewhere(network: &Network, destination: Be32) -> Result<Verdict, DropReason> {
    if network.is_tenant() {
        Err(DropReason::NotDeclared)
    } else if policy::may_pass(network, destination) {
        Ok(Verdict::Passed)
    } else {
        Err(DropReason::ToTenant)
    }
}

/// Client to VIP: to the backend of its flow.
#[inline(always)]
fn request(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    id: u16,
    network: &Network,
) -> Result<Verdict, DropReason> {
    let (client_port, vip_port) = frame.l4.ports();
    let key = FlowKey {
        client: frame.ip.source.get(),
        vip: frame.ip.destination.get(),
        client_port,
        vip_port,
        network: id,
        protocol: u16::from(frame.l4.protocol()),
    };
    let undeclared = || network.is_host() && lookup::service(&key).is_none();
    if let Err(reason) = nat::check_hops(frame) {
        return if undeclared() {
            Ok(Verdict::Passed)
        } else {
            Err(reason)
        };
    }
    let (flow_id, to, to_port, network, next_hop) = match conntrack::request(frame, &key)? {
        Some(Hit {
            entry,
            backend,
            backend_port,
            backend_id,
            ..
        }) => {
            let next = BACKENDS.get(backend_id).ok_or(DropReason::RecordMissing)?;
            (entry.id, backend, backend_port, next.network, next.next_hop)
        }
        None if undeclared() => return Ok(Verdict::Passed),
        None => open(frame, &key, network)?,
    };
    let page = allocate::snat_page(flow_id).ok_or(DropReason::RecordMissing)?;
    let translation = Translation {
        source: page.address,
        destination: to,
        source_port: Be16::new(page.port(flow_id)),
        destination_port: to_port,
    };
    let network = NETWORKS
        .get(u32::from(network))
        .ok_or(DropReason::RecordMissing)?;
    nat::translate(frame, &translation);
    emit::to_network(ctx, frame, network, next_hop)
}

/// A new flow: lookup -> policy -> select -> allocate.
#[inline(always)]
fn open(
    frame: &Ipv4Frame<'_>,
    key: &FlowKey,
    network: &Network,
) -> Result<(u32, Be32, Be16, u16, Mac), DropReason> {
    let service = lookup::service(key).ok_or(DropReason::NoService)?;
    policy::admit(key.network, network, service, key.client)?;
    let segment = conntrack::segment(frame);
    if segment.is_some_and(|segment| !segment.opens()) {
        return Err(DropReason::NoFlow);
    }
    usage::check(key.network, network, service)?;
    let (backend_id, backend) = select::select(service, key)?;
    let network = NETWORKS
        .get(u32::from(backend.network))
        .ok_or(DropReason::RecordMissing)?;
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
    let entry = allocate::allocate(network, key, udp, &flow)?;
    Ok((
        entry.id,
        backend.address,
        backend.port,
        backend.network,
        backend.next_hop,
    ))
}

/// Backend to SNAT port: back to the client of its flow.
#[inline(always)]
fn reply(ctx: &XdpContext, frame: &Ipv4Frame<'_>, id: u32) -> Result<Verdict, DropReason> {
    nat::check_hops(frame)?;
    let Hit {
        key, client_mac, ..
    } = conntrack::reply(frame, id)?;
    let translation = Translation {
        source: key.vip,
        destination: key.client,
        source_port: key.vip_port,
        destination_port: key.client_port,
    };
    let network = NETWORKS
        .get(u32::from(key.network))
        .ok_or(DropReason::RecordMissing)?;
    nat::translate(frame, &translation);
    emit::to_network(ctx, frame, network, client_mac)
}
