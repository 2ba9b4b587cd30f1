//! A service without names: the ACK behind a cookie opens a flow, or data do; and what the client sends before its backend has
//! answered is kept in the slot of its tuple.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    conntrack::FlowState,
    maps::{
        flow::FlowKey,
        hello::{HELLO_HAS_TIMES, HelloHead},
        splice::Binding,
    },
    rate::GUESSES,
    syn_cookie::{CookieStanding, offer::SynOffer},
    verdict::{DropReason, Verdict},
    wire::{
        Ipv4Frame, L4,
        header::{ACK, RST},
        parse_ipv4,
    },
};

use super::{
    bind::{forget, lb_begun, lb_syn},
    client_reset::{self, lb_client_reset},
    cookie::{self, SynNumbers},
    hello::{is_later, lb_hello, lb_later_piece, lb_times, may_write},
    slot::ClaimedSlot,
    syn::lb_answer,
    vip_offer,
};
use crate::{
    cell::enter,
    counts,
    flow::{
        entry::{Entry, now},
        index, splice,
    },
    frame::xdp::Xdp,
    lookup::{self, NetworkRef},
    new_flow::{self, affinity::lb_remember},
    subprogram::{Begun, CookieService, Outcome, TimesBits, whole},
};

/// A packet of no flow, which policy has admitted, from the network `id` to this [`CookieService`] without names: how that ended, as
/// [`Outcome`]; [`Outcome::TO_BIND`] of one that is kept in its slot. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_plain(ctx: *mut xdp_md, id: u32, vip: u32) -> u32 {
    let vip = CookieService::from_raw(vip);
    Outcome::of_step(receive(&XdpContext::new(ctx), id as u16, vip)).raw()
}

#[inline(always)]
fn receive(ctx: &XdpContext, id: u16, vip: CookieService) -> Result<Outcome, DropReason> {
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    if !frame.is_plain_tcp() {
        return Err(DropReason::UnsupportedProtocol);
    }
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let (ctx, network) = (ctx.ctx, u32::from(id));
    if new_flow::opens(&frame) {
        index::remove_closed(key);
        return Ok(Outcome::from_raw(lb_answer(ctx, network, vip.service())));
    }
    let flags = tcp.flags.get();
    let standing = match flags & (ACK | RST) {
        ACK => cookie::judge(tcp, key),
        _ => CookieStanding::Wrong,
    };
    let comes_later = match standing {
        CookieStanding::Right { clock } => {
            let kept = match frame.payload {
                0 => lb_ack(ctx, network, vip.raw(), clock),
                _ => lb_hello(ctx, network, vip.raw(), clock),
            };
            if kept != Outcome::LATER.raw() {
                return Ok(Outcome::from_raw(kept));
            }
            true
        }
        CookieStanding::Later => true,
        CookieStanding::Wrong => false,
    };
    if comes_later {
        return Ok(Outcome::from_raw(lb_later_piece(ctx, network, vip.raw())));
    }
    if flags & RST != 0 && client_reset::is_awaited(key) {
        return Ok(Outcome::from_raw(lb_client_reset(ctx, network)));
    }
    if flags & (ACK | RST) == ACK {
        enter::take(id, |rates, now| rates.guesses.take(now, GUESSES));
    }
    counts::lb_note_refused(vip.service(), DropReason::NoFlow as u32);
    Err(DropReason::NoFlow)
}

/// The ACK of a client that has returned a cookie, to this [`CookieService`] from the network `id`; `clock` is that of the number. It is
/// kept, as a segment of no bytes, unless data are: how that ended, as [`Outcome`], which is [`Outcome::TO_BIND`] of one that is, and may
/// be [`Outcome::LATER`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_ack(ctx: *mut xdp_md, id: u32, vip: u32, clock: u32) -> u32 {
    let vip = CookieService::from_raw(vip);
    Outcome::of_step(ack(&XdpContext::new(ctx), id as u16, vip, clock)).raw()
}

#[inline(always)]
fn ack(ctx: &XdpContext, id: u16, vip: CookieService, clock: u32) -> Result<Outcome, DropReason> {
    let now = now();
    let network = NetworkRef::of(id)?;
    let times = TimesBits::from_raw(lb_times(ctx.ctx)).times();
    if is_later(times, id, clock, now)? {
        return Ok(Outcome::LATER);
    }
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    let SynNumbers { isn, number } = SynNumbers::of(tcp);
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let time = times.map(|times| times.value);
    let mac = ethernet.source.get();
    let window = tcp.window.get().get();
    let mut slot = ClaimedSlot::claim(key)?;
    let head = slot.head();
    if head.is_ahead_of(key, number, isn) {
        slot.leave();
        return Ok(Outcome::LATER);
    }
    if !may_write(id, head, key) {
        slot.leave();
        return Err(DropReason::CellRate);
    }
    let is_same = head.key == *key && head.number == number && head.isn == isn;
    if !is_same || head.bytes() == 0 {
        *head = HelloHead {
            window,
            announced: vip_offer::of(vip.service()).announced(network.mss),
            mac,
            ..HelloHead::ack(*key, isn, number, time, now)
        };
        *slot.echo() = times.map_or(0, |times| times.echo);
    }
    slot.leave();
    Ok(Outcome::TO_BIND)
}

/// The segment from the network `id` that is in its slot opens a flow, or waits for the backend of the one that it has. How it ended,
/// as [`Outcome`], which may be to [go on](Outcome::go_on). A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_bind_plain(ctx: *mut xdp_md, id: u32) -> u32 {
    Outcome::of_step(bind(&XdpContext::new(ctx), id as u16)).raw()
}

#[inline(always)]
fn bind(ctx: &XdpContext, id: u16) -> Result<Outcome, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let mut slot = ClaimedSlot::claim(key)?;
    let end = match slot.head().key == *key {
        true => go(ctx, &frame, key, &network, &mut slot),
        false => Err(DropReason::HellosFull),
    };
    slot.leave();
    end
}

#[inline(always)]
fn go(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    key: &FlowKey,
    network: &NetworkRef,
    slot: &mut ClaimedSlot,
) -> Result<Outcome, DropReason> {
    let index = slot.index;
    match Begun::from_raw(lb_begun(index)) {
        Begun::Nothing => {}
        // It goes to the backend behind its answer.
        Begun::Waiting(_) => return Ok(Outcome::of(Ok(Verdict::Consumed))),
        Begun::Unanswered(flow_id) => return Ok(Outcome::go_on(flow_id)),
        // It comes again.
        Begun::Raced => return Err(DropReason::FlowRace),
    }
    let service = lookup::record(key).ok_or(DropReason::NoService)?;
    let isn = slot.head().isn;
    let publish = |entry: &Entry, claimed: FlowState| {
        lb_note_plain(entry.id, claimed.generation(), index);
        claimed.bind()
    };
    match new_flow::bind(frame, key, network, (&service, &service), isn, publish) {
        Ok(flow_id) => {
            if service.source_timeout() != 0 {
                lb_remember(flow_id);
            }
            let sent = lb_syn(ctx.ctx, key.network.into(), flow_id, index);
            Ok(Outcome::from_raw(sent))
        }
        // That comes again at once.
        Err(DropReason::FlowRace) => Err(DropReason::FlowRace),
        Err(reason) => {
            counts::lb_note_refused(service.id.into(), reason as u32);
            Err(reason)
        }
    }
}

/// Ends the flow with the tuple of this packet from the network `id`, if it waits for its backend behind a cookie: its client has opened
/// its port anew, and gets no more cookies. Its next SYN opens a flow. Returns 0. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_give_way(ctx: *mut xdp_md, id: u32) -> u32 {
    let ctx = XdpContext::new(ctx);
    let xdp = Xdp::new(&ctx);
    let Some((ethernet, ip)) = xdp.ipv4() else {
        return 0;
    };
    let Ok(frame) = parse_ipv4(&xdp, ethernet, ip) else {
        return 0;
    };
    let key = FlowKey::of_request(&frame, id as u16);
    let Some(entry) = Entry::at(index::find(whole(&key))) else {
        return 0;
    };
    let word = entry.word();
    let is_plain = splice::bound(&entry, word).is_some_and(Binding::is_plain);
    if word.is_binding() && is_plain && entry.key(word) == key {
        forget(&entry, word, &key);
    }
    0
}

/// Writes the binding of a flow of this generation that the segment in the slot with this index opens. Returns 0. A subprogram, for
/// its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_note_plain(flow_id: u32, generation: u32, index: u32) -> u32 {
    if let (Some(entry), Some(slot)) = (Entry::at(flow_id), ClaimedSlot::read(index)) {
        let head = &slot.head;
        let time = (head.flags & HELLO_HAS_TIMES != 0).then_some(slot.echo);
        let has_scale = SynOffer::from_bits(head.number as u8).scale.is_some();
        let binding = Binding::bound(generation, head.number, time, has_scale);
        splice::bind(&entry, binding.plain());
    }
    0
}
