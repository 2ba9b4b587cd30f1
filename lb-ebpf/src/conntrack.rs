//! conntrack: the flow of a packet, and what the packet does to it.

use lb_common::{
    addr::{Be16, Be32, Be128, Mac},
    conntrack::{self, Direction, Segment, State, Step, Word},
    maps::{
        event::{FINISHED, RESET_BY_BACKEND, RESET_BY_CLIENT},
        flow::FlowKey,
    },
    verdict::DropReason,
    wire::{
        Frame, Ip, L4,
        header::{ACK, RST, SYN},
    },
};

use crate::{
    allocate, count, emit, end,
    entry::{Entry, now},
    family::Family,
    lookup,
    maps::{BACKENDS, FLOW_INDEX},
    splice, usage,
};

/// Swaps that are tried when another CPU changes the same word; the loser of all of them has
/// missed a FIN, which the peer repeats.
const SWAPS: u32 = 4;

/// A flow as it was when its packet came.
#[derive(Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) entry: Entry,
    pub(crate) key: FlowKey,
    pub(crate) backend: Be32,
    pub(crate) backend_port: Be16,
    pub(crate) backend_id: u32,
    pub(crate) client_mac: Mac,
    /// Generation of the entry.
    pub(crate) generation: u32,
}

impl Hit {
    /// Whether nobody has claimed the entry since it was read.
    #[inline(always)]
    pub(crate) fn still(&self) -> bool {
        self.entry.word().generation() == self.generation
    }

    /// The client of a flow of IPv6.
    #[inline(always)]
    pub(crate) fn client6(&self) -> Option<Be128> {
        lookup::client6(self.entry.id).filter(|_| self.still())
    }

    /// The entry's fields, if nobody claims it while they are read.
    #[inline(always)]
    pub(crate) fn read(entry: Entry, word: Word) -> Option<Self> {
        let key = entry.key(word);
        let (backend, backend_port) = entry.backend();
        let (backend_id, client_mac) = (entry.backend_id(), entry.client_mac());
        let same = entry.word().generation() == word.generation();
        same.then_some(Self {
            entry,
            key,
            backend,
            backend_port,
            backend_id,
            client_mac,
            generation: word.generation(),
        })
    }
}

/// The flow whose requests have this key, if its packets are translated.
#[inline(always)]
pub(crate) fn by_key(key: &FlowKey) -> Option<Hit> {
    // SAFETY: the value is a plain integer; the entry's tuple is verified below.
    let &id = unsafe { FLOW_INDEX.get(key) }?;
    by_id(id).filter(|hit| hit.key == *key)
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
pub(crate) fn was_ended(key: &FlowKey, ip: &impl Family) -> bool {
    // SAFETY: the value is a plain integer; the entry's tuple is verified below.
    let Some(&id) = (unsafe { FLOW_INDEX.get(key) }) else {
        return false;
    };
    Entry::at(id).is_some_and(|entry| {
        let word = entry.word();
        let is_of_flow = |hit: Hit| hit.key == *key && ip.is_of_client(&hit);
        // The word again: another flow's tuple is none of this one's.
        matches!(word.state(), State::Ended)
            && Hit::read(entry, word).is_some_and(is_of_flow)
            && entry.word() == word
    })
}

/// The flow of a request, or `None` if the packet needs a new one.
#[inline(always)]
pub(crate) fn request<I: Family>(
    frame: &Frame<'_, I>,
    key: &FlowKey,
) -> Result<Option<Hit>, DropReason> {
    // SAFETY: the value is a plain integer; the entry's tuple is verified below.
    let Some(&id) = (unsafe { FLOW_INDEX.get(key) }) else {
        return Ok(None);
    };
    let Some(entry) = Entry::at(id) else {
        return Ok(None);
    };
    let word = entry.word();
    if !word.translates() && !word.is_held() {
        return Ok(None);
    }
    let Some(hit) = Hit::read(entry, word) else {
        return Ok(None);
    };
    if hit.key != *key || !frame.ip.is_of_client(&hit) {
        return Ok(None);
    }
    if word.is_held() {
        return Err(DropReason::Held);
    }
    let mut segment = segment(frame);
    if matches!(word.state(), State::Closed) && (!frame.is_tcp() || segment.opens()) {
        return match frame.is_tcp() && is_late_syn(&entry, word, segment.sequence) {
            true => Err(DropReason::LateSyn),
            false => Ok(None),
        };
    }
    let next = BACKENDS
        .get(hit.backend_id)
        .ok_or(DropReason::RecordMissing)?;
    emit::check(frame, next.network)?;
    if !I::IS_IPV6 && frame.is_tcp() && word.is_spliced() {
        segment = splice::as_backend(&entry, word, segment)?;
    }
    let closed = advance(frame, &hit, word, Direction::Request, segment)?;
    let mac = frame.ethernet.source.get();
    if hit.client_mac != mac {
        entry.set_client_mac(mac);
    }
    entry.touch_request(frame_bytes(frame));
    finish(frame, &hit, closed, Direction::Request);
    Ok(Some(hit))
}

/// Whether a client's SYN with this number is of the connection of a closed flow, and not of its next one.
#[inline(always)]
fn is_late_syn(entry: &Entry, word: Word, sequence: u32) -> bool {
    let (to_backend, _) = splice::sequences(entry);
    let (_, ack_reply) = entry.acks();
    let idle = now().wrapping_sub(entry.last_seen());
    conntrack::is_late_syn(word, sequence.wrapping_add(to_backend), ack_reply, idle)
}

/// The flow of a reply to the SNAT port of `id`.
#[inline(always)]
pub(crate) fn reply<I: Family>(frame: &Frame<'_, I>, id: u32) -> Result<Hit, DropReason> {
    let entry = Entry::at(id).ok_or(DropReason::RecordMissing)?;
    let word = entry.word();
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
    emit::check(frame, hit.key.network)?;
    let closed = advance(frame, &hit, word, Direction::Reply, segment(frame))?;
    entry.touch_reply(frame_bytes(frame));
    finish(frame, &hit, closed, Direction::Reply);
    Ok(hit)
}

/// The frame's length on the wire, without padding.
#[inline(always)]
pub(crate) fn frame_bytes<I: Ip>(frame: &Frame<'_, I>) -> u64 {
    14 + u64::from(frame.ip.bytes())
}

/// The TCP segment of a frame; for UDP one of zeros. Not `None`: the compiler moves its fields before it
/// asks whether they are there, and Linux before 6.3 refuses that ("invalid read from stack").
#[inline(always)]
pub(crate) fn segment<I>(frame: &Frame<'_, I>) -> Segment {
    match frame.l4 {
        L4::Tcp(tcp) => Segment {
            flags: tcp.flags.get(),
            sequence: tcp.sequence.get().get(),
            acknowledgment: tcp.acknowledgment.get().get(),
            payload: frame.payload,
        },
        L4::Udp(_) => Segment::default(),
    }
}

/// Carries out what the packet means for the flow's word, and gives the word that closed the flow if
/// it did. Its segment may have got other numbers.
#[inline(always)]
fn advance<I>(
    frame: &Frame<'_, I>,
    hit: &Hit,
    word: Word,
    direction: Direction,
    segment: Segment,
) -> Result<Option<Word>, DropReason> {
    let mut word = word;
    let mut closed = None;
    if !conntrack::stays(word, segment.flags) {
        let packet = described(frame.is_tcp(), direction, &segment);
        let (sequence, acknowledgment) = (segment.sequence, segment.acknowledgment);
        let said = lb_advance(hit.entry.id, word.raw(), packet, sequence, acknowledgment);
        word = Word::from_raw(said as u32);
        match (said >> 32) as u32 {
            KEPT => {}
            CLOSED => closed = Some(word),
            ANSWERED => allocate::reindex(&hit.entry, &hit.key),
            reason => return Err(count::reason(reason)),
        }
    }
    note_numbers(hit, word, direction, &segment);
    Ok(closed)
}

/// What [`lb_advance`] says of a word in its upper half; no reason has these numbers.
const KEPT: u32 = count::FIRST_VERDICT;
const CLOSED: u32 = KEPT + 1;
const ANSWERED: u32 = KEPT + 2;

/// Bits of a packet beside its flags and, in the upper half, its bytes of data.
const IS_REPLY: u32 = 1 << 8;
const IS_TCP: u32 = 1 << 9;

/// A packet as [`lb_advance`] takes it, but for its numbers.
#[inline(always)]
fn described(is_tcp: bool, direction: Direction, segment: &Segment) -> u32 {
    let reply = match direction {
        Direction::Request => 0,
        Direction::Reply => IS_REPLY,
    };
    let tcp = if is_tcp { IS_TCP } else { 0 };
    reply | tcp | u32::from(segment.flags) | u32::from(segment.payload) << 16
}

/// What a packet means for the word of the flow with this id, carried out: its word then, and above it what has
/// become of the flow, or why the packet is dropped. A function of its own for the verifier, as `lb_refuse`: few
/// packets change a word.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_advance(
    id: u32,
    word: u32,
    packet: u32,
    sequence: u32,
    acknowledgment: u32,
) -> u64 {
    let direction = match packet & IS_REPLY {
        0 => Direction::Request,
        _ => Direction::Reply,
    };
    let segment = Segment {
        flags: packet as u8,
        sequence,
        acknowledgment,
        payload: (packet >> 16) as u16,
    };
    let (word, is_tcp) = (Word::from_raw(word), packet & IS_TCP != 0);
    let entry = Entry::at(id).ok_or(DropReason::RecordMissing);
    match entry.and_then(|entry| change(&entry, word, direction, (is_tcp, &segment))) {
        Ok((word, end)) => u64::from(end) << 32 | u64::from(word.raw()),
        Err(reason) => (reason as u64) << 32,
    }
}

/// The word as it stays, and what has become of the flow.
#[inline(always)]
fn change(
    entry: &Entry,
    mut word: Word,
    direction: Direction,
    (is_tcp, segment): (bool, &Segment),
) -> Result<(Word, u32), DropReason> {
    for _ in 0..SWAPS {
        let (ack_request, ack_reply) = entry.acks();
        let step = if is_tcp {
            conntrack::tcp(word, direction, segment, ack_request, ack_reply)
        } else {
            conntrack::udp(word, direction)
        };
        let next = match step {
            Step::Refuse => return Err(DropReason::ReplyUnexpected),
            Step::Keep => break,
            Step::Change(next) => next,
        };
        if next.in_use() && !word.in_use() && is_tcp {
            usage::check_again(entry)?;
        }
        if entry.swap(word, next) {
            usage::follow(entry, word, next);
            let end = match (next.state(), word.state()) {
                (State::Closed, _) => CLOSED,
                (_, State::New) => ANSWERED,
                _ => KEPT,
            };
            return Ok((next, end));
        }
        let again = entry.word();
        if again.generation() != word.generation() || !again.translates() {
            return Err(DropReason::FlowRace);
        }
        word = again;
    }
    Ok((word, KEPT))
}

/// What follows when this packet has closed the flow; after everything else that is written to its
/// entry, because the id is free then.
#[inline(always)]
fn finish<I>(frame: &Frame<'_, I>, hit: &Hit, closed: Option<Word>, direction: Direction) {
    let Some(word) = closed else {
        return;
    };
    let is_reset = segment(frame).flags & RST != 0;
    let kind = match direction {
        Direction::Request if is_reset => RESET_BY_CLIENT,
        Direction::Reply if is_reset => RESET_BY_BACKEND,
        _ => FINISHED,
    };
    end::ended(&hit.entry, word, kind);
}

/// Keeps the numbers that a later reset is judged by.
#[inline(always)]
fn note_numbers(hit: &Hit, word: Word, direction: Direction, segment: &Segment) {
    if segment.opens() && matches!(direction, Direction::Request) {
        // Also a second try with another initial number, as after an unanswered first one.
        hit.entry.set_ack_reply(segment.sequence.wrapping_add(1));
        return;
    }
    // A reset that did not close the flow was not believed; nor are its numbers.
    let counts = segment.flags & (ACK | RST) == ACK;
    if !matches!(word.state(), State::Replied | State::Established) || !counts {
        return;
    }
    match direction {
        Direction::Request if matches!(word.state(), State::Replied) => {}
        Direction::Request => hit.entry.set_ack_request(segment.acknowledgment),
        Direction::Reply => {
            hit.entry.set_ack_reply(segment.acknowledgment);
            if segment.flags & SYN != 0 {
                hit.entry.set_ack_request(segment.sequence.wrapping_add(1));
            }
        }
    }
}
