//! What a packet changes about its flow. Few do.

use lb_common::{
    conntrack::{self, Direction, FlowState, Numbers, Segment, State, Transition},
    maps::pending::Pending,
    verdict::DropReason,
};

use crate::{
    flow::{budget, entry::Entry},
    maps::PENDING,
    subprogram::FIRST_VERDICT,
};

/// Swaps that are tried when another CPU changes the same word; the loser of all of them has
/// missed a FIN, which the peer repeats.
const MAX_SWAPS: u32 = 4;

/// What [`lb_advance`] returns of a word in its upper half; no reason has these numbers.
pub(crate) const KEPT: u32 = FIRST_VERDICT;
/// See [`KEPT`].
pub(crate) const CLOSED: u32 = KEPT + 1;
/// See [`KEPT`].
pub(crate) const ANSWERED: u32 = KEPT + 2;

/// Bits of a packet beside its flags and, in the upper half, its bytes of data.
const IS_REPLY: u32 = 1 << 8;
const IS_TCP: u32 = 1 << 9;

/// A packet as [`lb_advance`] takes it, but for its numbers.
#[inline(always)]
pub(crate) fn described(is_tcp: bool, direction: Direction, segment: &Segment) -> u32 {
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
    let judge = |word: FlowState| match lb_judge(id, word.raw(), packet, sequence, acknowledgment) {
        // The rest of a connection that is gone is answered.
        REFUSED if word.is_reset() => Err(DropReason::ReplyMismatch),
        REFUSED => Err(DropReason::ReplyUnexpected),
        next => Ok(FlowState::from_raw(next as u32)),
    };
    let entry = Entry::at(id).ok_or(DropReason::RecordMissing);
    match entry.and_then(|entry| change(&entry, FlowState::from_raw(word), judge)) {
        Ok((word, end)) => u64::from(end) << 32 | u64::from(word.raw()),
        Err(reason) => (reason as u64) << 32,
    }
}

/// The word as it stays, and what has become of the flow. `judge` returns what the packet makes of a word.
#[inline(always)]
fn change(
    entry: &Entry,
    mut word: FlowState,
    judge: impl Fn(FlowState) -> Result<FlowState, DropReason>,
) -> Result<(FlowState, u32), DropReason> {
    for _ in 0..MAX_SWAPS {
        let next = judge(word)?;
        if next == word {
            break;
        }
        if next.in_use() && !word.in_use() && !word.is_udp() {
            budget::check_again(entry)?;
        }
        if entry.swap(word, next) {
            budget::follow(entry, word, next);
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

/// What [`lb_judge`] returns for a packet that its flow does not take; no word has this number.
const REFUSED: u64 = u64::MAX;

/// The word that a packet makes of this one, of the flow with this id, or [`REFUSED`]. A function of its own for the
/// verifier, which walks it once and not for each swap.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_judge(id: u32, word: u32, packet: u32, sequence: u32, acknowledgment: u32) -> u64 {
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
    let word = FlowState::from_raw(word);
    let step = if packet & IS_TCP == 0 {
        conntrack::udp(word, direction)
    } else {
        let Some(entry) = Entry::at(id) else {
            return REFUSED;
        };
        let numbers = numbers(&entry, word, direction, &segment);
        conntrack::tcp(word, direction, &segment, &numbers)
    };
    match step {
        Transition::Refuse => REFUSED,
        Transition::Keep => word.raw().into(),
        Transition::Change(next) => next.raw().into(),
    }
}

/// The numbers that a segment is judged by. Those that it has for the flow are noted: of a SYN that is
/// believed, and of what its sender has pending then, before the word changes.
#[inline(always)]
fn numbers(entry: &Entry, word: FlowState, direction: Direction, segment: &Segment) -> Numbers {
    let (ack_request, ack_reply) = entry.acks();
    let mut numbers = Numbers::acknowledged(ack_request, ack_reply);
    if conntrack::asks_pending(word, direction, segment, &numbers) {
        numbers.pending = PENDING.get(entry.id).copied().unwrap_or_default();
        let next = conntrack::pending(word, direction, segment, &numbers);
        if next != numbers.pending {
            note_pending(entry.id, next);
        }
    }
    if conntrack::believes_syn(word, direction, segment, &numbers) {
        match direction {
            Direction::Request => entry.set_ack_reply(segment.sequence.wrapping_add(1)),
            Direction::Reply => {
                entry.set_ack_reply(segment.acknowledgment);
                entry.set_ack_request(segment.sequence.wrapping_add(1));
            }
        }
    }
    numbers
}

#[inline(always)]
fn note_pending(id: u32, next: Pending) {
    if let Some(pending) = PENDING.get_ptr_mut(id) {
        // SAFETY: a live value of an array map. A racing store of another CPU costs what one end has pending: its
        // FIN is then found by a probe.
        unsafe { pending.write_volatile(next) };
    }
}
