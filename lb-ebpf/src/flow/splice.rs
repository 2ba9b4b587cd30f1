//! Flows whose connection userspace has opened at both ends and handed over, and those that the data plane has bound.
//! Their segments get the numbers that the other end expects; of the former, until the backend has what our socket sent
//! it, that socket gets its acknowledgments.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    addr::{Be16, Be32},
    conntrack::{FlowState, Segment, State},
    icmp::Quote,
    maps::{
        flow::FlowKey,
        splice::{BOUND, Binding, DRAINED, Numbers, Splice, owner},
    },
    splice::{self, Opening},
    verdict::{DropReason, Verdict},
    wire::{
        Ipv4Frame, L4,
        checksum::Delta,
        header::{ACK, FIN, RST, SYN},
    },
};
use network_types::ip::IpProto;

use crate::{
    emit,
    flow::{entry::Entry, index},
    frame::xdp::Xdp,
    lookup::network_by_id,
    maps::{BINDINGS, SPLICES},
    subprogram::{Changed, Outcome, SpliceLeg},
};

/// The splice of the flow whose word is this.
#[inline(always)]
fn of(entry: &Entry, word: FlowState) -> Option<&'static Splice> {
    let splice = SPLICES.get(BINDINGS.get(entry.id)?.splice)?;
    (splice.owner == owner(entry.id, word.generation())).then_some(splice)
}

/// The binding of the flow whose word is this, if the data plane has bound it.
#[inline(always)]
pub(crate) fn bound(entry: &Entry, word: FlowState) -> Option<&'static Binding> {
    BINDINGS
        .get(entry.id)
        .filter(|binding| binding.is_bound(word.generation()))
}

/// Whether the backend of a flow that the data plane binds gets a header in front of the hello.
#[inline(always)]
pub(crate) fn has_header(flow_id: u32) -> bool {
    BINDINGS
        .get(flow_id)
        .is_some_and(|binding| binding.header() != 0)
}

/// Notes what is known of a flow that the data plane binds.
#[inline(always)]
pub(crate) fn bind(entry: &Entry, binding: Binding) {
    if let Some(place) = BINDINGS.get_ptr_mut(entry.id) {
        // SAFETY: a live value of an array map, of a flow that this CPU has claimed or holds.
        unsafe { place.write_volatile(binding) };
    }
}

/// What is added to the sequence numbers of requests and replies; nothing without a splice.
#[inline(always)]
pub(crate) fn sequences(entry: &Entry) -> (u32, u32) {
    let word = entry.word();
    if !word.is_spliced() {
        return (0, 0);
    }
    if let Some(binding) = bound(entry, word) {
        return (0, binding.sequence);
    }
    of(entry, word).map_or((0, 0), |splice| {
        (splice.to_backend.sequence, splice.to_client.sequence)
    })
}

/// A client's segment with the numbers that the backend knows: those of the entry.
///
/// What our socket still sends the backend is not the client's to repeat: a proxy's header may stand there
/// instead of the client's own bytes.
#[inline(always)]
pub(crate) fn as_backend(
    entry: &Entry,
    word: FlowState,
    segment: Segment,
) -> Result<Segment, DropReason> {
    let (sequence, acknowledgment) = (segment.sequence, segment.acknowledgment);
    if let Some(binding) = bound(entry, word) {
        return Ok(Segment {
            acknowledgment: acknowledgment.wrapping_sub(binding.sequence),
            ..segment
        });
    }
    let splice = of(entry, word).ok_or(DropReason::RecordMissing)?;
    let sequence = sequence.wrapping_add(splice.to_backend.sequence);
    let is_before_end = (sequence.wrapping_sub(splice.sent_end) as i32) < 0;
    if is_before_end && segment.payload > 0 && splice.state & DRAINED == 0 {
        return Err(DropReason::Held);
    }
    Ok(Segment {
        sequence,
        acknowledgment: acknowledgment.wrapping_sub(splice.to_client.sequence),
        ..segment
    })
}

/// Whether a segment to the flow's port is for a socket of the cell: the socket has the flow; or the backend
/// has not yet acknowledged all that the socket sent, and the segment is a bare ACK. Notes when all is
/// acknowledged.
#[inline(always)]
pub(crate) fn is_for_socket(
    frame: &Ipv4Frame<'_>,
    entry: &Entry,
    word: FlowState,
) -> Result<bool, DropReason> {
    let L4::Tcp(tcp) = frame.l4 else {
        return Ok(false);
    };
    let is_either = word.is_local() || word.is_spliced() && word.translates();
    if !is_either || entry.backend() != (frame.ip.source.get(), tcp.source.get()) {
        return Ok(false);
    }
    if word.is_local() {
        entry.touch();
        return Ok(true);
    }
    if bound(entry, word).is_some() {
        return Ok(false);
    }
    let splice = of(entry, word).ok_or(DropReason::RecordMissing)?;
    if splice.state & DRAINED != 0 {
        return Ok(false);
    }
    let flags = tcp.flags.get();
    let ahead = tcp.acknowledgment.get().get().wrapping_sub(splice.sent_end) as i32;
    if flags & ACK != 0 && ahead >= 0 {
        drained(entry);
        return Ok(false);
    }
    Ok(frame.payload == 0 && flags & (FIN | RST) == 0)
}

#[inline(always)]
fn drained(entry: &Entry) {
    let number = BINDINGS.get(entry.id).map(|binding| binding.splice);
    if let Some(splice) = number.and_then(|number| SPLICES.get_ptr_mut(number)) {
        // SAFETY: a live value of an array map.
        let state = unsafe { &raw mut (*splice).state };
        // SAFETY: as above; only this function writes the field while the flow lives.
        unsafe { state.write_volatile(DRAINED) };
    }
}

/// Gives a segment that has been translated the numbers of its flow's splice, and sends it on its leg. Returns how
/// that ended, as [`Outcome`], which may be [`Outcome::FOR_REST`]: nothing is done then. A subprogram; and not called by
/// `lb_flow`, whose stack leaves no room for it.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_splice(ctx: *mut xdp_md, flow_id: u32, leg: u32) -> u32 {
    let leg = SpliceLeg::from_raw(leg);
    let has_rest = || BINDINGS.get(flow_id).is_some_and(Binding::has_rest);
    if leg.is_to_client() && has_rest() {
        return Outcome::FOR_REST.raw();
    }
    Outcome::of(send(&XdpContext::new(ctx), flow_id, leg)).raw()
}

#[inline(always)]
fn send(ctx: &XdpContext, flow_id: u32, leg: SpliceLeg) -> Result<Verdict, DropReason> {
    let (own, other) = numbers(flow_id, leg).ok_or(DropReason::RecordMissing)?;
    let option =
        |at| Changed::from_raw(lb_splice_option(ctx.ctx, flow_id, leg.raw(), at as u32)).delta();
    splice::translate_by(option, &Xdp::new(ctx), &own, &other, leg.is_open())
        .ok_or(DropReason::Malformed)?;
    emit::out(ctx, network_by_id(leg.network())?)
}

/// The numbers of a segment's sender, and those of the opposite direction.
#[inline(always)]
fn numbers(flow_id: u32, leg: SpliceLeg) -> Option<(Numbers, Numbers)> {
    let binding = BINDINGS.get(flow_id)?;
    let (to_backend, to_client) = if binding.splice & BOUND != 0 {
        (Numbers::NONE, binding.to_client())
    } else {
        let splice = SPLICES.get(binding.splice)?;
        if splice.owner as u32 != flow_id {
            return None;
        }
        (splice.to_backend, splice.to_client)
    };
    Some(match leg.is_to_client() {
        false => (to_backend, to_client),
        true => (to_client, to_backend),
    })
}

/// [`splice::translate_option`], as [`Changed`]; `leg` is a [`SpliceLeg`]. A subprogram, which the verifier walks
/// once and not once for each place and each way to it; few lists need it.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_splice_option(
    ctx: *mut xdp_md,
    flow_id: u32,
    leg: u32,
    at: u32,
) -> u64 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    let delta = numbers(flow_id, SpliceLeg::from_raw(leg))
        .and_then(|(own, other)| splice::translate_option(&xdp, &own, &other, at as usize));
    Changed::of(delta).raw()
}

/// Notes of a backend's SYN-ACK what userspace cannot read from its socket. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_note_opening(ctx: *mut xdp_md, flow_id: u32) -> u32 {
    let said = splice::opening(&Xdp::new(&XdpContext::new(ctx)));
    if let (Some(Opening { time, mss }), Some(binding)) = (said, BINDINGS.get_ptr_mut(flow_id)) {
        // SAFETY: a live value of an array map.
        let noted = unsafe { &raw mut (*binding).backend_mss };
        // SAFETY: as above; its reader waits until the connection stands.
        unsafe { noted.write_volatile(mss) };
        if let Some(time) = time {
            // SAFETY: as above.
            let noted = unsafe { &raw mut (*binding).time };
            // SAFETY: as above.
            unsafe { noted.write_volatile(time) };
        }
    }
    0
}

/// Whether a segment of a cell's socket may leave from a flow's port: the socket has the flow, or repeats
/// what it sent before the hand-over. New data of the socket would go into a client's connection. What the
/// socket received at the last moment has not reached the client, so the segment is made to acknowledge only
/// what has.
#[inline(always)]
pub(crate) fn may_send(frame: &Ipv4Frame<'_>, flow_id: u32) -> bool {
    let (Some(entry), L4::Tcp(tcp)) = (Entry::at(flow_id), frame.l4) else {
        return false;
    };
    let word = entry.word();
    if entry.backend() != (frame.ip.destination.get(), tcp.destination.get()) {
        return false;
    }
    if word.is_local() {
        return true;
    }
    let is_live = matches!(word.state(), State::Established);
    let Some(splice) = of(&entry, word).filter(|_| is_live && word.is_spliced()) else {
        return false;
    };
    if splice.state & DRAINED != 0 {
        return false;
    }
    let end = tcp
        .sequence
        .get()
        .get()
        .wrapping_add(u32::from(frame.payload));
    let is_repeated = tcp.flags.get() & (SYN | FIN | RST | ACK) == ACK
        && end.wrapping_sub(splice.sent_end) as i32 <= 0;
    if is_repeated {
        let (old, new) = (tcp.acknowledgment.get(), Be32::new(splice.received));
        let delta = Delta::default().change32(old, new);
        tcp.acknowledgment.set(new);
        tcp.checksum.set(delta.apply(tcp.checksum.get()));
    }
    is_repeated
}

/// Whether what is quoted may be of a socket that has the flow's port, or had it and still repeats this.
#[inline(always)]
pub(crate) fn is_sent_by_socket(quote: &Quote<'_>, flow_id: u32) -> bool {
    let Some(entry) = Entry::at(flow_id) else {
        return false;
    };
    let word = entry.word();
    let is_to_backend = quote.ip.protocol.get() == IpProto::Tcp as u8
        && entry.backend() == (quote.ip.destination.get(), quote.l4.destination.get());
    if !is_to_backend || word.is_local() {
        return is_to_backend;
    }
    let is_live = word.is_spliced() && matches!(word.state(), State::Established);
    of(&entry, word).filter(|_| is_live).is_some_and(|splice| {
        let ahead = quote.l4.rest.get().get().wrapping_sub(splice.sent_end) as i32;
        splice.state & DRAINED == 0 && ahead < 0
    })
}

/// Whether the connection that a cell's segment from a shared VIP belongs to has been handed over, or is
/// being so: its socket must not send any more.
#[inline(always)]
pub(crate) fn is_taken(frame: &Ipv4Frame<'_>, network: u16) -> bool {
    let (vip_port, client_port): (Be16, Be16) = frame.l4.ports();
    let (vip, client): (Be32, Be32) = (frame.ip.source.get(), frame.ip.destination.get());
    let key = FlowKey {
        client,
        vip,
        client_port,
        vip_port,
        network,
        protocol: IpProto::Tcp as u16,
    };
    Entry::at(index::find(&key)).is_some_and(|entry| {
        let word = entry.word();
        let is_live = word.is_spliced() && matches!(word.state(), State::Established);
        (is_live || word.is_held()) && entry.key(word) == key
    })
}
