//! What a packet changes about its flow. Few do.

use lb_common::{
    conntrack::{self, Direction, FlowState, Numbers, Segment, State, Transition},
    maps::pending::Pending,
    verdict::DropReason,
};

use crate::{
    flow::{budget, entry::Entry},
    maps::PENDING,
    subprogram::{Advanced, FlowChange, Judgement, SegmentBits},
};

/// Swaps that are tried when another CPU changes the same word; the loser of all of them has
/// missed a FIN, which the peer repeats.
const MAX_SWAPS: u32 = 4;

/// What a packet means for the word of the flow with this id, carried out, as [`Advanced`]; `packet` is
/// [`SegmentBits`]. A subprogram: few packets change a word.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_advance(
    id: u32,
    word: u32,
    packet: u32,
    sequence: u32,
    acknowledgment: u32,
) -> u64 {
    let judge = |word: FlowState| {
        let judged = lb_judge(id, word.raw(), packet, sequence, acknowledgment);
        match Judgement::from_raw(judged).state() {
            Some(next) => Ok(next),
            // The rest of a connection that is gone is answered.
            None if word.is_reset() => Err(DropReason::ReplyMismatch),
            None => Err(DropReason::ReplyUnexpected),
        }
    };
    let entry = Entry::at(id).ok_or(DropReason::RecordMissing);
    let end = entry.and_then(|entry| change(&entry, FlowState::from_raw(word), judge));
    Advanced::of(end).raw()
}

/// The word as it stays, and what has become of the flow. `judge` returns what the packet makes of a word.
#[inline(always)]
fn change(
    entry: &Entry,
    mut word: FlowState,
    judge: impl Fn(FlowState) -> Result<FlowState, DropReason>,
) -> Result<(FlowState, FlowChange), DropReason> {
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
            let change = match (next.state(), word.state()) {
                (State::Closed, _) => FlowChange::Closed,
                (_, State::New) => FlowChange::Answered,
                _ => FlowChange::Kept,
            };
            return Ok((next, change));
        }
        let again = entry.word();
        if again.generation() != word.generation() || !again.translates() {
            return Err(DropReason::FlowRace);
        }
        word = again;
    }
    Ok((word, FlowChange::Kept))
}

/// The state that a packet makes of this one, of the flow with this id, as [`Judgement`]. A subprogram, which the
/// verifier walks once and not for each swap.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_judge(id: u32, word: u32, packet: u32, sequence: u32, acknowledgment: u32) -> u64 {
    let packet = SegmentBits::from_raw(packet);
    let (segment, direction) = (packet.segment(sequence, acknowledgment), packet.direction());
    let word = FlowState::from_raw(word);
    let step = if packet.is_tcp() {
        let Some(entry) = Entry::at(id) else {
            return Judgement::REFUSED.raw();
        };
        let numbers = numbers(&entry, word, direction, &segment);
        conntrack::tcp(word, direction, &segment, &numbers)
    } else {
        conntrack::udp(word, direction)
    };
    let judgement = match step {
        Transition::Refuse => Judgement::REFUSED,
        Transition::Keep => Judgement::of(word),
        Transition::Change(next) => Judgement::of(next),
    };
    judgement.raw()
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
