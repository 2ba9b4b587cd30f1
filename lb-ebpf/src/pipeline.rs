//! The sentence, in order: parse -> conntrack -> rewrite -> emit, and for a new flow lookup ->
//! select -> allocate in between.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    addr::{Be16, Be32, Mac},
    maps::{
        flow::FlowKey,
        network::{Address, KIND_SNAT, Network, ROLE_TENANT},
    },
    nat::{self, Translation},
    verdict::{DropReason, Hook, Verdict},
    wire::{
        Ipv4Frame, Packet,
        header::{Ethernet, Ipv4, Vlan},
        parse_ipv4,
    },
};
use network_types::{eth::EtherType, ip::IpProto};

use crate::{
    allocate, arp,
    conntrack::{self, Hit},
    count, emit,
    entry::NewFlow,
    lookup,
    maps::{BACKENDS, NETWORKS},
    parse::Xdp,
    select,
};

/// The VLAN id in a tag's control information (802.1Q).
const VLAN_ID: u16 = 0x0fff;

/// `lb_nic`.
#[inline(always)]
pub(crate) fn nic(ctx: &XdpContext) -> u32 {
    let xdp = Xdp::new(ctx);
    let Some((id, network)) = lookup::network(ctx.ingress_ifindex() as u32, 0) else {
        return count::finish(ctx, Hook::Nic, 0, Verdict::Passed);
    };
    let verdict = frame(ctx, &xdp, id, network).unwrap_or_else(Verdict::Dropped);
    count::finish(ctx, Hook::Nic, id, verdict)
}

/// Ours or not, and which layer-3 protocol.
#[inline(always)]
fn frame(ctx: &XdpContext, xdp: &Xdp, id: u16, network: &Network) -> Result<Verdict, DropReason> {
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let destination = ethernet.destination.get();
    if destination != network.mac && !destination.is_group() {
        return Ok(Verdict::Passed);
    }
    let ethertype = ethernet.ethertype.get().raw();
    if ethertype == EtherType::Ipv4 as u16 {
        ipv4(ctx, xdp, id, network, ethernet)
    } else if ethertype == EtherType::Arp as u16 {
        arp::arp(xdp, id, network)
    } else if ethertype == EtherType::Ipv6 as u16 && network.role == ROLE_TENANT {
        Err(DropReason::NotDeclared)
    } else if network.role == ROLE_TENANT && is_priority_tagged(xdp, ethertype) {
        Err(DropReason::PriorityTag)
    } else {
        // Undeclared VLANs, LLDP, LACP and the like are none of our business.
        Ok(Verdict::Passed)
    }
}

/// Whether the frame has a tag with VLAN id 0. The host's kernel takes such a tag off and treats the
/// frame as untagged, so it must not pass from a tenant.
#[inline(always)]
fn is_priority_tagged(xdp: &Xdp, ethertype: u16) -> bool {
    if ethertype != EtherType::Ieee8021q as u16 && ethertype != EtherType::Ieee8021ad as u16 {
        return false;
    }
    let tag: Option<&Vlan> = xdp.header(size_of::<Ethernet>());
    tag.is_none_or(|tag| tag.tci.get().get() & VLAN_ID == 0)
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
    let tenant = network.role == ROLE_TENANT;
    if ethernet.destination.get().is_group() {
        return if tenant {
            Err(DropReason::GroupAddress)
        } else {
            Ok(Verdict::Passed)
        };
    }
    let ip: &Ipv4 = xdp
        .header(size_of::<Ethernet>())
        .ok_or(DropReason::Malformed)?;
    let Some(address) = lookup::address(id, ip.destination.get()) else {
        return if tenant {
            Err(DropReason::NotDeclared)
        } else {
            Ok(Verdict::Passed)
        };
    };
    let frame = parse_ipv4(xdp, ethernet, ip)?;
    nat::check_hops(&frame)?;
    if address.kind == KIND_SNAT {
        reply(ctx, &frame, address)
    } else {
        request(ctx, &frame, id)
    }
}

/// Client to VIP: to the backend of its flow.
#[inline(always)]
fn request(ctx: &XdpContext, frame: &Ipv4Frame<'_>, id: u16) -> Result<Verdict, DropReason> {
    let (client_port, vip_port) = frame.l4.ports();
    let key = FlowKey {
        client: frame.ip.source.get(),
        vip: frame.ip.destination.get(),
        client_port,
        vip_port,
        network: id,
        protocol: u16::from(frame.l4.protocol()),
    };
    let (flow_id, to, to_port, network, next_hop) = match conntrack::request(frame, &key)? {
        Some(Hit {
            entry,
            backend,
            backend_port,
            ..
        }) => {
            let next = BACKENDS
                .get(entry.backend_id())
                .ok_or(DropReason::RecordMissing)?;
            (entry.id, backend, backend_port, next.network, next.next_hop)
        }
        None => open(frame, &key)?,
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

/// A new flow: lookup -> select -> allocate.
#[inline(always)]
fn open(frame: &Ipv4Frame<'_>, key: &FlowKey) -> Result<(u32, Be32, Be16, u16, Mac), DropReason> {
    let service = lookup::service(key).ok_or(DropReason::NoService)?;
    let segment = conntrack::segment(frame);
    if segment.is_some_and(|segment| !segment.opens()) {
        return Err(DropReason::NoFlow);
    }
    let (backend_id, backend) = select::select(service, key)?;
    let network = NETWORKS
        .get(u32::from(service.backend_network))
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
fn reply(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    address: &Address,
) -> Result<Verdict, DropReason> {
    let (_, port) = frame.l4.ports();
    let id = address
        .flow_id(port.get())
        .ok_or(DropReason::ReplyMismatch)?;
    let Hit { entry, key, .. } = conntrack::reply(frame, id)?;
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
    emit::to_network(ctx, frame, network, entry.client_mac())
}
