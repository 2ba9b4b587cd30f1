//! A new flow takes the place of the oldest one of its network and kind, which ends if it is
//! still half-open.

use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        event::RECYCLED,
        flow::TIME_SHIFT,
        half_open::{self, FIRST, HEAD, SIZE},
    },
};

use crate::{
    flow::{
        atomic, budget,
        entry::{Entry, now},
        events, flood,
        snat::release,
    },
    maps::RINGS,
};

/// How long a UDP flow that was replied to must be idle until a newer one may take its place: ten
/// seconds, in units of coarse time.
const UDP_REST: u32 = (10_000_000_000u64 >> TIME_SHIFT) as u32;
/// Places that are tried before a flow that is not idle ends all the same: a ring is a limit.
const CHANCES: u32 = 4;

/// A place that a new flow will have, and the flow that leaves the ring for it.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    place: *mut u64,
    /// As `ring::place`: a hint, 0 for none.
    pub(crate) oldest: u64,
}

impl Slot {
    /// Takes the next turn, where there is a ring. A UDP flow in its way that is not idle moves on to the next place,
    /// where it is the newest again.
    #[inline(always)]
    pub(crate) fn take(network: u16, udp: bool) -> Option<Self> {
        let index = half_open::index(network, udp);
        let mut turn = Self::next(index)?;
        for _ in 1..CHANCES {
            if !is_busy(turn.oldest) {
                break;
            }
            let next = Self::next(index)?;
            next.give(turn.oldest);
            turn.oldest = next.oldest;
        }
        Some(turn)
    }

    #[inline(always)]
    fn next(index: u32) -> Option<Self> {
        let ring = RINGS.get(index)?;
        let size = ring.get(SIZE).copied().filter(|&size| size != 0)?;
        let head = ring.get_ptr_mut(HEAD)?;
        // SAFETY: the value of an array map, aligned to eight bytes.
        let turn = unsafe { atomic::count_up(head) };
        let place = (turn % size) as u32;
        if place == 0 {
            flood::lb_turned(index);
        }
        let place = ring.get_ptr_mut(FIRST + place)?;
        // SAFETY: as above.
        let oldest = unsafe { place.read_volatile() };
        Some(Self { place, oldest })
    }

    /// Gives the place to a flow.
    #[inline(always)]
    pub(crate) fn give(&self, flow: u64) {
        // SAFETY: the value of an array map. No other CPU has this turn; one that has the same place a whole round
        // later at the same time loses one word, and a half-open flow stays until it expires.
        unsafe { self.place.write_volatile(flow) };
    }
}

/// The flow that took a place, if it is still there, and its word.
#[inline(always)]
fn flow(place: u64) -> Option<(Entry, FlowState)> {
    let (id, generation) = half_open::flow(place);
    let entry = Entry::at(id)?;
    let word = entry.word();
    (word.generation() == generation).then_some((entry, word))
}

#[inline(always)]
fn is_busy(place: u64) -> bool {
    flow(place).is_some_and(|(entry, word)| {
        word.is_udp() && word.in_use() && now().wrapping_sub(entry.last_seen()) < UDP_REST
    })
}

/// The flow that has to leave its place, if it is half-open or UDP, and its word. Not one whose fields a CPU writes at this
/// moment.
#[inline(always)]
pub(crate) fn leaving(place: u64) -> Option<(Entry, FlowState)> {
    flow(place).filter(|(_, word)| match word.state() {
        State::New | State::Replied => !word.is_held(),
        State::Established => word.is_udp(),
        _ => false,
    })
}

/// Ends a flow that leaves by this word; false if it changes at this moment.
#[inline(always)]
pub(crate) fn end(entry: &Entry, word: FlowState, next: FlowState) -> bool {
    let is_over = entry.swap(word, next);
    if is_over {
        budget::follow(entry, word, next);
        events::report(entry, word.close(), RECYCLED, entry.owners().0);
    }
    is_over
}

/// The same of a flow that has to leave its place: a half-open connection that does so while its ring turns within a second is the
/// sign of a flood.
#[inline(always)]
pub(crate) fn evict(entry: &Entry, word: FlowState, next: FlowState) -> bool {
    let is_over = end(entry, word, next);
    if is_over && !word.is_udp() {
        let (network, _) = entry.owners();
        flood::lb_note_eviction(network.into());
    }
    is_over
}

/// Gives a flow that has begun anew by this word the next place of its ring, where there is one.
#[inline(always)]
pub(crate) fn enter(network: u16, id: u32, word: FlowState) {
    if let Some(turn) = Slot::take(network, word.is_udp()) {
        lb_recycle(turn.oldest);
        turn.give(half_open::place(id, word.generation()));
    }
}

/// Ends the flow of a place that is taken, if it is to leave. It translates until its id is claimed. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_recycle(place: u64) -> u32 {
    if let Some((entry, word)) = leaving(place)
        && evict(&entry, word, word.close())
    {
        release(entry.id);
    }
    0
}
