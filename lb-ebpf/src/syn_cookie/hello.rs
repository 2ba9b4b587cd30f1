//! The first bytes of a client, in one segment or in two: they open a flow, or go to userspace.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::{
        flow::FlowKey,
        hello::{
            HELLO_HAS_SUMS, HELLO_HAS_TIMES, HELLO_IN_PART, HELLO_IS_PLAIN, HelloHead, HelloPart,
            MAX_HELLO_BYTES, MAX_PIECE_BYTES, StoredSegment, goes_on,
        },
    },
    rate::{GUESSES, SYNS},
    splice::{self, SegmentTimes},
    syn_cookie::{self, offer::SynOffer, payload},
    verdict::{DropReason, Verdict},
    wire::{
        Ipv4Frame, L4,
        header::{Ethernet, Ipv4, Tcp},
        parse_ipv4,
    },
};

use super::{cookie::SynNumbers, slot::ClaimedSlot, vip_offer};
use crate::{
    cell::enter,
    flow::{entry::now, rewrite},
    frame::xdp::Xdp,
    lookup::NetworkRef,
    subprogram::{CookieService, Outcome, TimesBits, whole},
};

/// Where the TCP header is.
const TCP_AT: u32 = (size_of::<Ethernet>() + size_of::<Ipv4>()) as u32;

/// The first segment behind a cookie, to this [`CookieService`] from the network `id`; `clock` is that of the number. How it ended,
/// as [`Outcome`], which may be [`Outcome::TO_BIND`] or [`Outcome::LATER`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_hello(ctx: *mut xdp_md, id: u32, vip: u32, clock: u32) -> u32 {
    let vip = CookieService::from_raw(vip);
    Outcome::of_step(hello(&XdpContext::new(ctx), id as u16, vip, clock)).raw()
}

/// A later segment of a connection that a cookie of this tuple has opened: as [`lb_hello`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_later_piece(ctx: *mut xdp_md, id: u32, vip: u32) -> u32 {
    let vip = CookieService::from_raw(vip);
    Outcome::of_step(later_piece(&XdpContext::new(ctx), id as u16, vip)).raw()
}

#[inline(always)]
fn hello(ctx: &XdpContext, id: u16, vip: CookieService, clock: u32) -> Result<Outcome, DropReason> {
    let now = now();
    if !vip.is_plain() && !enter::take(id, |rates, now| rates.syns.take(now, SYNS)) {
        return Err(DropReason::CellRate);
    }
    let network = NetworkRef::of(id)?;
    let is_open = rewrite::complete(ctx, &network)?;
    let times = TimesBits::from_raw(lb_times(ctx.ctx)).times();
    if is_later(times, id, clock, now)? {
        return Ok(Outcome::LATER);
    }
    let sum = lb_payload_sum(ctx.ctx);
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    let SynNumbers { isn, number } = SynNumbers::of(tcp);
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let piece = Piece::of(&frame, tcp);
    let mac = ethernet.source.get();
    let window = tcp.window.get().get();
    let mut slot = ClaimedSlot::claim(key)?;
    let head = slot.head();
    // Without timestamps what is kept says that it is a later one.
    if head.is_ahead_of(key, number, isn) {
        slot.leave();
        return Ok(Outcome::LATER);
    }
    if vip.is_plain() && !may_write(id, head, key) {
        slot.leave();
        return Err(DropReason::CellRate);
    }
    let is_same = head.key == *key && head.number == number && head.isn == isn;
    let is_repeated = is_same && head.flags & HELLO_IN_PART != 0;
    // The client repeats the first segment alone, until it is acknowledged.
    let has_rest =
        is_same && !is_repeated && head.is_in_two() && head.lengths[0] == piece.length as u16;
    let rest = if has_rest {
        head.segment(HelloPart::Second)
    } else {
        StoredSegment::NONE
    };
    let rest_has_sum = !has_rest || head.flags & HELLO_HAS_SUMS != 0;
    let (has_times, time, echo) = match times {
        Some(times) => (HELLO_HAS_TIMES, times.value, times.echo),
        None => (0, 0, 0),
    };
    let has_sums = match !is_open && rest_has_sum {
        true => HELLO_HAS_SUMS,
        false => 0,
    };
    *head = HelloHead {
        key: *key,
        isn,
        number,
        time,
        clock: now.wrapping_add(clock),
        seen: now,
        sums: [sum as u16, rest.sum],
        lengths: [piece.length as u16, rest.length],
        window,
        mss: SynOffer::from_bits(number as u8).mss(network.mss),
        announced: vip_offer::of(vip.service()).announced(network.mss),
        mac,
        flags: has_times | has_sums | vip.hello_flags(),
        header: [0; 2],
    };
    *slot.echo() = echo;
    let loaded = slot.load::<MAX_HELLO_BYTES>(ctx, piece.at, 0, piece.length);
    let end = loaded.and_then(|()| {
        let is_plain = slot.head().flags & HELLO_IS_PLAIN != 0;
        if !is_plain && !is_repeated && !has_rest && goes_on(slot.first(), piece.length) {
            slot.head().flags |= HELLO_IN_PART;
            return Ok(Outcome::of(Ok(Verdict::Consumed)));
        }
        go(vip, &mut slot)
    });
    slot.leave();
    end
}

/// Whether a segment whose number is right for a first one is a later one all the same, of which one in 4,096 passes for that; or it
/// is a guess.
#[inline(always)]
pub(super) fn is_later(
    times: Option<SegmentTimes>,
    id: u16,
    clock: u32,
    now: u32,
) -> Result<bool, DropReason> {
    match times {
        Some(times) if !syn_cookie::is_of_number(clock, times.echo, now) => Ok(true),
        Some(times) if !syn_cookie::is_echo(clock, times.echo, now) => Err(DropReason::NoFlow),
        // Without an echo a number could be guessed.
        None if enter::take(id, |rates, now| rates.guesses.is_low(now, GUESSES)) => {
            Err(DropReason::CellRate)
        }
        _ => Ok(false),
    }
}

/// Whether a segment of this tuple may take the slot of another one: the slots are those of all networks.
#[inline(always)]
pub(super) fn may_write(id: u16, head: &HelloHead, key: &FlowKey) -> bool {
    head.key == *key || enter::take(id, |rates, now| rates.syns.take(now, SYNS))
}

/// A hello that has come.
#[inline(always)]
fn go(vip: CookieService, slot: &mut ClaimedSlot) -> Result<Outcome, DropReason> {
    // What the kernel's stack sums up later cannot be sent in another frame.
    if vip.binds() && slot.head().flags & HELLO_HAS_SUMS != 0 {
        return Ok(Outcome::TO_BIND);
    }
    if vip.is_plain() {
        return Err(DropReason::PartialChecksum);
    }
    slot.submit()?;
    Ok(Outcome::of(Ok(Verdict::Consumed)))
}

#[inline(always)]
fn later_piece(ctx: &XdpContext, id: u16, vip: CookieService) -> Result<Outcome, DropReason> {
    let network = NetworkRef::of(id)?;
    let is_open = rewrite::complete(ctx, &network)?;
    let times = TimesBits::from_raw(lb_times(ctx.ctx)).times();
    let sum = lb_payload_sum(ctx.ctx);
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    let number = SynNumbers::of(tcp).number;
    let sequence = tcp.sequence.get().get();
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let piece = Piece::of(&frame, tcp);
    let mut slot = ClaimedSlot::claim(key)?;
    let head = slot.head();
    let first = u32::from(head.lengths[0]);
    let is_awaited = match vip.is_plain() {
        true => first != 0 && first <= MAX_PIECE_BYTES && !head.is_in_two(),
        false => head.flags & HELLO_IN_PART != 0,
    };
    let is_next = is_awaited
        && head.key == *key
        && head.number == number
        && sequence == head.isn.wrapping_add(1).wrapping_add(first);
    let end = if is_next {
        head.lengths[1] = piece.length as u16;
        head.sums[1] = sum as u16;
        head.flags &= !HELLO_IN_PART;
        if is_open {
            head.flags &= !HELLO_HAS_SUMS;
        }
        if let Some(times) = times {
            head.time = times.value;
        }
        let loaded = slot.load::<MAX_PIECE_BYTES>(ctx, piece.at, first, piece.length);
        loaded.and_then(|()| go(vip, &mut slot))
    } else {
        Err(DropReason::HelloUnordered)
    };
    slot.leave();
    end
}

/// [`splice::times`] of a segment, as [`TimesBits`]. A subprogram, which the verifier walks once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_times(ctx: *mut xdp_md) -> u64 {
    TimesBits::of(splice::times(&Xdp::new(&XdpContext::new(ctx)))).raw()
}

/// The data of a segment.
struct Piece {
    /// Where they are in the frame.
    at: u32,
    length: u32,
}

impl Piece {
    #[inline(always)]
    fn of(frame: &Ipv4Frame<'_>, tcp: &Tcp) -> Self {
        Self {
            at: TCP_AT + u32::from(tcp.data_offset.get() >> 4) * 4,
            length: u32::from(frame.payload),
        }
    }
}

/// [`payload::sum`] of a segment that has been parsed. A subprogram, which the verifier walks once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_payload_sum(ctx: *mut xdp_md) -> u32 {
    payload::sum(&Xdp::new(&XdpContext::new(ctx)))
        .unwrap_or_default()
        .into()
}
