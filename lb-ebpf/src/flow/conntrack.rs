//! The flow of a packet, and what the packet does to it.

use lb_common::{
    addr::Mac,
    conntrack::{self, Direction, FlowState, Segment, State},
    maps::{
        backend::Backend,
        event::{FINISHED, RESET_BY_BACKEND, RESET_BY_CLIENT},
        flow::FlowKey,
        network::Network,
    },
    verdict::DropReason,
    wire::{
        Frame,
        header::{ACK, RST, SYN},
    },
};

use crate::{
    emit,
    flow::{
        advance, backend_answers,
        entry::{Entry, Hit, frame_bytes, now, segment},
        events, index, splice, traffic,
    },
    ip::version::IpVersion,
    maps::BACKENDS,
    subprogram::{Advanced, FlowChange, SegmentBits},
};

/// The flow whose requests have this key, if its packets are translated.
#[inline(always)]
pub(crate) fn by_key(key: &FlowKey) -> Option<Hit> {
    by_id(index::find(key)).filter(|hit| hit.key == *key)
}

/// The flow with this id, if its packets are translated.
#[inline(always)]
pub(crate) fn by_id(id: u32) -> Option<Hit> {
    let entry = Entry::at(id)?;
    let word = entry.word();
    if !word.translates() {
        return None;
    }
    Hit::read(entry, word)
}

/// Whether userspace has ended the flow whose requests have this key and come from the source of this packet,
/// and nothing has taken its entry since.
#[inline(always)]
pub(crate) fn was_ended(key: &FlowKey, ip: &impl IpVersion) -> bool {
    Entry::at(index::find(key)).is_some_and(|entry| {
        let word = entry.word();
        let is_of_flow = |hit: Hit| hit.key == *key && ip.is_of_client(&hit);
        // The word again: another flow's tuple is none of this one's.
        matches!(word.state(), State::Ended)
            && Hit::read(entry, word).is_some_and(is_of_flow)
            && entry.word() == word
    })
}

/// What a request belongs to.
pub(crate) enum RequestFlow {
    /// With its backend, and the backend's network.
    Flow(Hit, &'static Backend, &'static Network),
    /// The flow with this id, whose backend has not answered: it is a SYN for another one.
    Unanswered(u32),
    /// It needs a new flow; or it is of one that is bound by what its client sends first.
    New,
}

/// What a reply belongs to.
pub(crate) enum ReplyFlow {
    /// With the client's network.
    Flow(Hit, &'static Network),
    /// It is the backend's RST to the SYN of the flow with this id.
    Refusal(u32),
    /// It is the first segment of the backend of the flow with this id, which is to be bound.
    Binding(u32),
}

/// The flow of a request.
#[inline(always)]
pub(crate) fn request<I: IpVersion>(
    frame: &Frame<'_, I>,
    key: &FlowKey,
) -> Result<RequestFlow, DropReason> {
    let id = index::find(key);
    let Some(entry) = Entry::at(id) else {
        return Ok(RequestFlow::New);
    };
    let word = entry.word();
    if !word.translates() && !word.is_held() {
        return Ok(RequestFlow::New);
    }
    let Some(hit) = Hit::read(entry, word) else {
        return Ok(RequestFlow::New);
    };
    if hit.key != *key || !frame.ip.is_of_client(&hit) {
        return Ok(RequestFlow::New);
    }
    if word.is_held() {
        return Err(DropReason::Held);
    }
    if word.is_binding() {
        return Ok(RequestFlow::New);
    }
    let mut segment = segment(frame);
    if matches!(word.state(), State::Closed) && (!frame.is_tcp() || segment.opens()) {
        return match frame.is_tcp() && is_late_syn(&entry, word, segment.sequence) {
            true => Err(DropReason::LateSyn),
            false => Ok(RequestFlow::New),
        };
    }
    if matches!(word.state(), State::New) && frame.is_tcp() && segment.opens() {
        let idle = now().wrapping_sub(entry.last_seen());
        if entry.attempt().is_unanswered(idle) {
            return Ok(RequestFlow::Unanswered(id));
        }
    }
    let next = BACKENDS
        .get(hit.backend_id)
        .ok_or(DropReason::RecordMissing)?;
    let network = emit::check(frame, next.network)?;
    if !I::IS_IPV6 && frame.is_tcp() && word.is_spliced() {
        segment = splice::as_backend(&entry, word, segment)?;
    }
    let closed = advance(frame, &hit, word, Direction::Request, segment)?;
    let mac = frame.ethernet.source.get();
    if hit.client_mac != mac && may_move(&entry, word, frame.is_tcp(), &segment, mac) {
        entry.set_client_mac(mac);
    }
    traffic::count_request(&entry, frame_bytes(frame));
    finish(frame, &hit, closed, Direction::Request);
    Ok(RequestFlow::Flow(hit, next, network))
}

/// Whether answers to the client go to another station from now on, because of this packet. Nothing in a
/// datagram shows that it is not the client's.
#[inline(always)]
fn may_move(entry: &Entry, word: FlowState, is_tcp: bool, segment: &Segment, mac: Mac) -> bool {
    let (_, ack_reply) = entry.acks();
    mac.is_of_station() && (!is_tcp || conntrack::is_of_client(word, segment, ack_reply))
}

/// Whether a client's SYN with this number is of the connection of a closed flow, and not of its next one.
#[inline(always)]
fn is_late_syn(entry: &Entry, word: FlowState, sequence: u32) -> bool {
    let (to_backend, _) = splice::sequences(entry);
    let (_, ack_reply) = entry.acks();
    let idle = now().wrapping_sub(entry.last_seen());
    conntrack::is_late_syn(word, sequence.wrapping_add(to_backend), ack_reply, idle)
}

/// The flow of a reply to the SNAT port of this entry, whose word this is.
#[inline(always)]
pub(crate) fn reply<I: IpVersion>(
    frame: &Frame<'_, I>,
    entry: Entry,
    word: FlowState,
) -> Result<ReplyFlow, DropReason> {
    if !word.translates() {
        return Err(DropReason::ReplyMismatch);
    }
    let hit = Hit::read(entry, word).ok_or(DropReason::ReplyMismatch)?;
    let (source_port, _) = frame.l4.ports();
    let from_backend = frame.ip.is_from(hit.backend)
        && source_port == hit.backend_port
        && u16::from(frame.l4.protocol()) == hit.key.protocol;
    if !from_backend {
        return Err(DropReason::ReplyMismatch);
    }
    if word.is_binding() {
        return Ok(ReplyFlow::Binding(entry.id));
    }
    let network = emit::check(frame, hit.key.network)?;
    let segment = segment(frame);
    if matches!(word.state(), State::New) && is_refusal(&entry, &segment) {
        return Ok(ReplyFlow::Refusal(entry.id));
    }
    let closed = advance(frame, &hit, word, Direction::Reply, segment)?;
    if closed.is_some() {
        traffic::note_refusal(&entry);
    }
    match word.is_spliced() {
        false => traffic::count_reply(&entry, frame_bytes(frame)),
        true => traffic::count_spliced_reply(&entry, frame_bytes(frame), segment.payload),
    }
    finish(frame, &hit, closed, Direction::Reply);
    Ok(ReplyFlow::Flow(hit, network))
}

/// Whether a segment refuses the SYN of a flow that is not answered, which may have another backend. Of a datagram
/// the flags are 0.
#[inline(always)]
fn is_refusal(entry: &Entry, segment: &Segment) -> bool {
    let (_, ack_reply) = entry.acks();
    conntrack::refuses(segment, ack_reply) && !entry.attempt().is_last()
}

/// Carries out what the packet means for the flow's word, and gives the word that closed the flow if
/// it did. Its segment may have got other numbers.
#[inline(always)]
fn advance<I>(
    frame: &Frame<'_, I>,
    hit: &Hit,
    word: FlowState,
    direction: Direction,
    segment: Segment,
) -> Result<Option<FlowState>, DropReason> {
    let mut word = word;
    let mut closed = None;
    if !conntrack::stays(word, segment.flags) {
        let packet = SegmentBits::new(frame.is_tcp(), direction, &segment).raw();
        let (sequence, acknowledgment) = (segment.sequence, segment.acknowledgment);
        let (id, state) = (hit.entry.id, word.raw());
        let advanced = advance::lb_advance(id, state, packet, sequence, acknowledgment);
        let advanced = Advanced::from_raw(advanced);
        word = advanced.state();
        match advanced.change()? {
            FlowChange::Kept => {}
            FlowChange::Closed => closed = Some(word),
            FlowChange::Answered => {
                index::ensure(&hit.entry, &hit.key, word);
                backend_answers::answered(hit.backend_id);
                traffic::lb_answered(hit.entry.id);
            }
        }
    }
    note_numbers(hit, word, direction, &segment);
    Ok(closed)
}

/// What follows when this packet has closed the flow; after everything else that is written to its
/// entry, because the id is free then.
#[inline(always)]
fn finish<I>(frame: &Frame<'_, I>, hit: &Hit, closed: Option<FlowState>, direction: Direction) {
    let Some(word) = closed else {
        return;
    };
    let is_reset = segment(frame).flags & RST != 0;
    let kind = match direction {
        Direction::Request if is_reset => RESET_BY_CLIENT,
        Direction::Reply if is_reset => RESET_BY_BACKEND,
        _ => FINISHED,
    };
    events::ended(&hit.entry, word, kind);
}

/// Keeps the numbers that a later segment is judged by; those of a SYN [`numbers`] has kept.
#[inline(always)]
fn note_numbers(hit: &Hit, word: FlowState, direction: Direction, segment: &Segment) {
    // A reset that did not close the flow was not believed; nor are its numbers.
    let counts = segment.flags & (ACK | RST | SYN) == ACK;
    if !matches!(word.state(), State::Replied | State::Established) || !counts {
        return;
    }
    match direction {
        Direction::Request if matches!(word.state(), State::Replied) => {}
        Direction::Request => hit.entry.set_ack_request(segment.acknowledgment),
        Direction::Reply => hit.entry.set_ack_reply(segment.acknowledgment),
    }
}
