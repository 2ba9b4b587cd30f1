//! The sentence, in order: parse -> conntrack -> rewrite -> emit, and for a new flow lookup ->
//! policy -> select -> allocate in between.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    maps::network::{Address, Network},
    verdict::{DropReason, Hook, Verdict},
    wire::{
        self, Packet, Tag, Tagging,
        header::{Ethernet, Ipv4},
        is_link_control,
    },
};
use network_types::{eth::EtherType, ip::IpProto};

use crate::{
    count,
    flow::splice,
    frame::{ip_options, vlan, xdp::Xdp},
    ip::{v4, v6},
    lookup,
    new_flow::{self, policy},
    pipeline::{policy::not_for_us, v4::forward::lb_flow},
    reject, stopped,
    subprogram::{Next, Outcome, Step},
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
        Err(reason) => reject::v4::lb_refuse(ctx.ctx, u32::from(id), reason as u32),
    }
}

/// The network that a frame came in by.
struct Ingress {
    id: u16,
    network: &'static Network,
    /// The tag that was taken off, if there was one.
    tag: Tag,
    is_tagged: bool,
}

/// Finds the network of a frame and takes its tag off; or gives the network that the frame is counted
/// for and why it is dropped, or nothing if it is not for us and passes as it came.
#[inline(always)]
fn enter(ctx: &XdpContext) -> Result<Ingress, (u16, Option<DropReason>)> {
    let xdp = Xdp::new(ctx);
    let malformed = (0, Some(DropReason::Malformed));
    let ethernet: &Ethernet = xdp.header(0).ok_or(malformed)?;
    // Of no tag a tag is made: what is not there Linux before 6.3 does not let the compiler move.
    let (tag, is_tagged, stacked) = match wire::tagging(&xdp, ethernet).ok_or(malformed)? {
        Tagging::Untagged => (Tag::of(0), false, false),
        Tagging::Tagged(tag) => (tag, true, false),
        Tagging::Stacked(tag) => (tag, true, true),
        Tagging::Foreign => return Err((0, None)),
    };
    let vlan = tag.vlan();
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
    if network.is_tenant() && !ethernet.source.get().is_of_station() {
        return Err((id, Some(DropReason::GroupSource)));
    }
    if is_tagged {
        vlan::take_off(ctx).map_err(|reason| (id, Some(reason)))?;
    }
    Ok(Ingress {
        id,
        network,
        tag,
        is_tagged,
    })
}

/// What happens to a frame for us. One that passes gets its tag back.
#[inline(always)]
fn inside(ctx: &XdpContext, door: &Ingress) -> Result<Verdict, DropReason> {
    let verdict = frame(ctx, &Xdp::new(ctx), door.id, door.network)?;
    if matches!(verdict, Verdict::Passed) && door.is_tagged {
        vlan::put_on(ctx, door.tag)?;
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
    } else if ethertype == EtherType::Ipv6 as u16 {
        v6::receive::ipv6(ctx, id)
    } else if ethertype == EtherType::Arp as u16 {
        Outcome::from_raw(v4::arp::lb_arp(ctx.ctx, u32::from(id))).result()
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
        return not_for_us(network, ip);
    };
    if network.is_stopped() {
        let flags = u32::from(network.flags);
        return Outcome::from_raw(stopped::lb_stopped(ctx.ctx, u32::from(id), flags)).result();
    }
    if let Err(reason) = ip_options::check(ctx, ip) {
        return network.undeclared(reason);
    }
    if ip.is_later_fragment() {
        return Outcome::from_raw(v4::fragment::lb_fragment(ctx.ctx, u32::from(id))).result();
    }
    if ip.protocol.get() == IpProto::Icmp as u8 {
        return Outcome::from_raw(v4::icmp::lb_icmp(ctx.ctx, u32::from(id))).result();
    }
    crate::pipeline::forward(ctx, id, address)
}

/// The end of a packet to `address`, one of ours in the network `id`.
#[inline(always)]
pub(crate) fn forward(ctx: &XdpContext, id: u16, address: &Address) -> Result<Verdict, DropReason> {
    let ports = u32::from(address.first_port) << 16 | u32::from(address.count);
    let next = lb_flow(ctx.ctx, u32::from(id), address.kind, address.base, ports);
    let outcome = match Next::from_raw(next).step() {
        Step::Ended(outcome) => outcome,
        Step::NewFlow => Outcome::from_raw(new_flow::lb_open(ctx.ctx, u32::from(id))),
        Step::Splice { flow_id, way } => {
            Outcome::from_raw(splice::lb_splice(ctx.ctx, flow_id, way.raw()))
        }
    };
    outcome.result()
}
