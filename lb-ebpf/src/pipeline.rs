//! The sentence, in order: classify -> conntrack -> rewrite -> emit, and for a new flow lookup -> policy -> select ->
//! allocate in between.

mod v4;
mod v6;

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::network::Network,
    verdict::{DropReason, Hook, Verdict},
    wire::{
        self, Packet, Tag, Tagging,
        header::{Ethernet, Ipv4},
        is_link_control,
    },
};
use network_types::{eth::EtherType, ip::IpProto};

use crate::{
    count, door,
    flow::splice,
    frame::{ip_options, vlan, xdp::Xdp},
    ip, lookup,
    new_flow::{policy, redispatch},
    reject, stopped,
    subprogram::{CookieService, FoundDoor, Next, Next6, Outcome, Stage6, Step, Step6},
    syn_cookie,
};

/// `lb_nic`.
#[inline(always)]
pub(crate) fn nic(ctx: &XdpContext) -> u32 {
    let (id, end) = match classify(ctx) {
        Ok(ingress) => (ingress.id, inside(ctx, &ingress)),
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
    /// The door of its packet, if that is of IPv4 and has one.
    door: FoundDoor,
    /// The tag that was taken off, if there was one.
    tag: Tag,
    is_tagged: bool,
}

/// Finds the network of a frame and takes its tag off; or gives the network that the frame is counted
/// for and why it is dropped, or nothing if it is not for us and passes as it came.
#[inline(always)]
fn classify(ctx: &XdpContext) -> Result<Ingress, (u16, Option<DropReason>)> {
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
    let door = FoundDoor::from_raw(door::lb_door(ctx.ctx, is_tagged.into(), vlan.into()));
    let found = match door.network() {
        Some(id) => lookup::network_with(id),
        None => lookup::network(ctx.ingress_ifindex() as u32, vlan),
    };
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
        door,
        tag,
        is_tagged,
    })
}

/// What happens to a frame for us. One that passes gets its tag back.
#[inline(always)]
fn inside(ctx: &XdpContext, ingress: &Ingress) -> Result<Verdict, DropReason> {
    let verdict = frame(ctx, &Xdp::new(ctx), ingress)?;
    if matches!(verdict, Verdict::Passed) && ingress.is_tagged {
        vlan::put_on(ctx, ingress.tag)?;
    }
    Ok(verdict)
}

/// Which layer-3 protocol.
#[inline(always)]
fn frame(ctx: &XdpContext, xdp: &Xdp, ingress: &Ingress) -> Result<Verdict, DropReason> {
    let Ingress { id, network, .. } = *ingress;
    let ethernet: &Ethernet = xdp.header(0).ok_or(DropReason::Malformed)?;
    let ethertype = ethernet.ethertype.get().raw();
    if ethertype == EtherType::Ipv4 as u16 {
        ipv4(ctx, xdp, ingress, ethernet)
    } else if ethertype == EtherType::Ipv6 as u16 {
        ipv6(ctx, id)
    } else if ethertype == EtherType::Arp as u16 {
        Outcome::from_raw(ip::v4::arp::lb_arp(ctx.ctx, u32::from(id))).result()
    } else if network.is_tenant() && !is_link_control(ethernet.ethertype.get().get()) {
        Err(DropReason::NotDeclared)
    } else {
        Ok(Verdict::Passed)
    }
}

/// A packet of IPv4 to one of our addresses, or to none of them.
#[inline(always)]
fn ipv4(
    ctx: &XdpContext,
    xdp: &Xdp,
    ingress: &Ingress,
    ethernet: &Ethernet,
) -> Result<Verdict, DropReason> {
    let Ingress { id, network, .. } = *ingress;
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
    if ingress.door == FoundDoor::NONE && lookup::address(id, ip.destination.get()).is_none() {
        return policy::not_for_us(network, ip);
    }
    if network.is_stopped() {
        let flags = u32::from(network.flags);
        return Outcome::from_raw(stopped::lb_stopped(ctx.ctx, u32::from(id), flags)).result();
    }
    if let Err(reason) = ip_options::check(ctx, ip) {
        return network.undeclared(reason);
    }
    if ip.is_later_fragment() {
        return Outcome::from_raw(ip::v4::fragment::lb_fragment(ctx.ctx, u32::from(id))).result();
    }
    if ip.protocol.get() == IpProto::Icmp as u8 {
        return Outcome::from_raw(ip::v4::icmp::lb_icmp(ctx.ctx, u32::from(id))).result();
    }
    forward(ctx, id, ingress.door)
}

/// TCP or UDP to one of our addresses in the network `id`, behind this door: conntrack -> rewrite -> emit; between them, for a packet
/// of no flow, lookup -> policy -> select -> allocate; and behind them, for a flow that was handed over, the splice.
#[inline(always)]
fn forward(ctx: &XdpContext, id: u16, door: FoundDoor) -> Result<Verdict, DropReason> {
    let (ctx, id) = (ctx.ctx, u32::from(id));
    let mut next = settle(|| v4::lb_flow(ctx, id, door.raw()));
    if let Step::NewFlow = next.step() {
        next = Next::from_raw(v4::lb_open(ctx, id));
        if next == Next::FLOW_RACE {
            syn_cookie::lb_give_way(ctx, id);
        }
    }
    let outcome = match next.step() {
        Step::Cookie { vip } => behind_cookie(ctx, id, vip),
        Step::Binding { flow_id } => met(ctx, id, flow_id),
        Step::Flow { flow_id, leg } => spliced(ctx, flow_id, leg),
        Step::Ended(outcome) => outcome,
        // What was to open a flow has ended.
        Step::NewFlow => Outcome::of(Err(DropReason::NoFlow)),
        // Another CPU had it meanwhile.
        Step::Unanswered { .. } | Step::Refused { .. } => Outcome::of(Err(DropReason::FlowRace)),
    };
    outcome.result()
}

/// The first segment of the backend of a flow that is to be bound.
#[inline(always)]
fn met(ctx: *mut xdp_md, id: u32, flow_id: u32) -> Outcome {
    let mut outcome = Outcome::of(Err(DropReason::FlowRace));
    for _ in 0..MAX_TRIES {
        outcome = Outcome::from_raw(syn_cookie::lb_meet(ctx, id, flow_id));
        if !outcome.is_contended() {
            break;
        }
    }
    settled(ctx, outcome)
}

/// A packet to a service whose SYNs are answered by cookies: what is behind one may open a flow.
#[inline(always)]
fn behind_cookie(ctx: *mut xdp_md, id: u32, vip: CookieService) -> Outcome {
    if vip.is_plain() {
        return plain(ctx, id, vip);
    }
    match Outcome::from_raw(syn_cookie::lb_shared(ctx, id, vip.raw())) {
        Outcome::TO_BIND => settled(ctx, Outcome::from_raw(syn_cookie::lb_bind(ctx, id))),
        outcome => outcome,
    }
}

/// How often a segment is taken up that another CPU is in the way of, which takes it a microsecond.
const MAX_TRIES: u32 = 16;

/// A packet to a service without names, which may open a flow. Not in vain because of another CPU: a client repeats no ACK, and may say
/// nothing else.
#[inline(always)]
fn plain(ctx: *mut xdp_md, id: u32, vip: CookieService) -> Outcome {
    let mut outcome = Outcome::of(Err(DropReason::FlowRace));
    for _ in 0..MAX_TRIES {
        outcome = Outcome::from_raw(syn_cookie::lb_plain(ctx, id, vip.raw()));
        if outcome == Outcome::TO_BIND {
            outcome = settled(ctx, Outcome::from_raw(syn_cookie::lb_bind_plain(ctx, id)));
        }
        if !outcome.is_contended() {
            break;
        }
    }
    outcome
}

/// A segment behind which its flow may have to go on to another backend.
#[inline(always)]
fn settled(ctx: *mut xdp_md, outcome: Outcome) -> Outcome {
    match outcome.left_flow() {
        Some(flow_id) => Outcome::from_raw(syn_cookie::lb_go_on(ctx, flow_id)),
        None => outcome,
    }
}

/// A segment of a flow whose numbers are translated: it may become the rest of the client's hello.
#[inline(always)]
fn spliced(ctx: *mut xdp_md, flow_id: u32, leg: u32) -> Outcome {
    let mut outcome = Outcome::from_raw(splice::lb_splice(ctx, flow_id, leg));
    if outcome == Outcome::FOR_REST {
        outcome = Outcome::from_raw(syn_cookie::lb_rest(ctx, flow_id));
    }
    if outcome == Outcome::FOR_REST {
        outcome = Outcome::from_raw(splice::lb_splice(ctx, flow_id, leg));
    }
    outcome
}

/// What `conntrack` returns of a packet, as [`Next`]: for the second time, where the flow has another backend since the
/// first.
#[inline(always)]
fn settle(conntrack: impl Fn() -> u64) -> Next {
    let next = Next::from_raw(conntrack());
    let is_over = match next.step() {
        Step::Unanswered { flow_id } => redispatch::lb_redispatch(flow_id),
        Step::Refused { flow_id } => redispatch::lb_refused(flow_id),
        Step::Ended(_)
        | Step::NewFlow
        | Step::Cookie { .. }
        | Step::Binding { .. }
        | Step::Flow { .. } => return next,
    };
    match is_over {
        0 => Next::from_raw(conntrack()),
        _ => Next::ended(Err(DropReason::RefusedByBackend)),
    }
}

/// A packet of IPv6 from the network `id`.
#[inline(always)]
fn ipv6(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let (ctx, id) = (ctx.ctx, u32::from(id));
    let (stage, chain, label) = match Next6::from_raw(v6::lb_ipv6(ctx, id)).step() {
        Step6::Ended(outcome) => return outcome.result(),
        Step6::Continue {
            stage,
            chain,
            label,
        } => (stage, chain, label),
    };
    let outcome = match stage {
        Stage6::Conntrack => return forward6(ctx, id, label, chain),
        Stage6::Icmp => ip::v6::icmp::lb_icmp6(ctx, id, chain),
        Stage6::Fragment => ip::v6::fragment::lb_fragment6(ctx, id, chain),
        Stage6::Discovery => ip::v6::neighbour::lb_neighbour(ctx, id),
    };
    Outcome::from_raw(outcome).result()
}

/// TCP or UDP over IPv6 to the address of ours with this label, in the network `id`: as [`forward`], with the rewrite
/// in a function of its own.
#[inline(always)]
fn forward6(ctx: *mut xdp_md, id: u32, label: u32, chain: u32) -> Result<Verdict, DropReason> {
    let mut next = settle(|| v6::lb_flow6(ctx, id, label, chain));
    if let Step::NewFlow = next.step() {
        next = Next::from_raw(v6::lb_open6(ctx, id, label, chain));
    }
    let outcome = match next.step() {
        Step::Flow { flow_id, leg } => {
            Outcome::from_raw(v6::lb_rewrite6(ctx, id, flow_id, leg, chain))
        }
        Step::Ended(outcome) => outcome,
        // What was to open a flow has ended.
        Step::NewFlow | Step::Cookie { .. } | Step::Binding { .. } => {
            Outcome::of(Err(DropReason::NoFlow))
        }
        // Another CPU had it meanwhile.
        Step::Unanswered { .. } | Step::Refused { .. } => Outcome::of(Err(DropReason::FlowRace)),
    };
    outcome.result()
}
