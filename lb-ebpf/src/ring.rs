//! ring: a new flow takes the place of the oldest one of its network and kind, which ends if it is
//! still half-open.

use lb_common::{
    conntrack::{State, Word},
    maps::{
        event::RECYCLED,
        flow::TIME_SHIFT,
        ring::{self, FIRST, HEAD, SIZE},
    },
};

use crate::{
    atomic, end,
    entry::{Entry, now},
    maps::RINGS,
    usage,
};

/// How long a UDP flow that was replied to must be idle until a newer one may take its place: ten
/// seconds, in units of coarse time.
const UDP_REST: u32 = (10_000_000_000u64 >> TIME_SHIFT) as u32;
/// Places that are tried before a flow that is not idle ends all the same: a ring is a limit.
const CHANCES: u32 = 4;

/// Gives the new flow of `entry` its place. A UDP flow in its way that is not idle moves on to the next
/// place, where it is the newest again.
#[inline(always)]
pub(crate) fn enter(entry: &Entry, network: u16, udp: bool, generation: u32) {
    let index = ring::index(network, udp);
    let mut moved = ring::place(entry.id, generation);
    for _ in 0..CHANCES {
        match exchange(index, moved) {
            Some(oldest) => moved = oldest,
            None => return,
        }
        if !is_busy(moved) {
            break;
        }
    }
    recycle(moved);
}

/// Writes `flow` into the place whose turn it is, and gives what was there, if anything was.
#[inline(always)]
fn exchange(index: u32, flow: u64) -> Option<u64> {
    let ring = RINGS.get(index)?;
    let size = ring.get(SIZE).copied().filter(|&size| size != 0)?;
    let head = ring.get_ptr_mut(HEAD)?;
    // SAFETY: the value of an array map, aligned to eight bytes.
    let turn = unsafe { atomic::count_up(head) };
    let place = ring.get_ptr_mut(FIRST + (turn % size) as u32)?;
    // SAFETY: as above. Nobody else has this turn; who has the same place a whole round later at
    // the same time loses one word, and a half-open flow stays until it expires.
    let oldest = unsafe { place.read_volatile() };
    // SAFETY: as for the read.
    unsafe { place.write_volatile(flow) };
    (oldest != 0).then_some(oldest)
}

/// The flow that took a place, if it is still there, and its word.
#[inline(always)]
fn flow(place: u64) -> Option<(Entry, Word)> {
    let (id, generation) = ring::flow(place);
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

/// Ends the flow of a place that is taken, if it is half-open or UDP. It translates until its id is
/// claimed: in a flood, what is slower than the ring may still be done by then.
#[inline(always)]
fn recycle(place: u64) {
    let Some((entry, word)) = flow(place) else {
        return;
    };
    let ended = match word.state() {
        State::New | State::Replied => word.close(),
        State::Established if word.is_udp() => word.close(),
        _ => return,
    };
    if entry.swap(word, ended) {
        usage::follow(&entry, word, ended);
        end::ended(&entry, ended, RECYCLED);
    }
}
