//! ring: a new flow takes the place of the oldest one of its network and kind, which ends if it is
//! still half-open.

use lb_common::{
    conntrack::State,
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
};

/// How long a UDP flow that was replied to must be idle until a newer one may take its place: ten
/// seconds, in units of coarse time.
const UDP_REST: u32 = (10_000_000_000u64 >> TIME_SHIFT) as u32;

/// Gives the new flow of `entry` its place.
#[inline(always)]
pub(crate) fn enter(entry: &Entry, network: u16, udp: bool, generation: u32) {
    let Some(ring) = RINGS.get(ring::index(network, udp)) else {
        return;
    };
    let size = ring.get(SIZE).copied().unwrap_or(0);
    let Some(head) = ring.get_ptr_mut(HEAD) else {
        return;
    };
    if size == 0 {
        return;
    }
    // SAFETY: the value of an array map, aligned to eight bytes.
    let turn = unsafe { atomic::count_up(head) };
    let Some(place) = ring.get_ptr_mut(FIRST + (turn % size) as u32) else {
        return;
    };
    // SAFETY: as above. Nobody else has this turn; who has the same place a whole round later at
    // the same time loses one word, and a half-open flow stays until it expires.
    let oldest = unsafe { place.read_volatile() };
    // SAFETY: as for the read.
    unsafe { place.write_volatile(ring::place(entry.id, generation)) };
    if oldest != 0 {
        recycle(oldest);
    }
}

/// Ends the flow of a place that is taken, if it is still there and half-open.
#[inline(always)]
fn recycle(place: u64) {
    let (id, generation) = ring::flow(place);
    let Some(entry) = Entry::at(id) else {
        return;
    };
    let word = entry.word();
    if word.generation() != generation {
        return;
    }
    let half_open = match word.state() {
        State::New | State::Replied => true,
        State::Established if word.is_udp() => now().wrapping_sub(entry.last_seen()) >= UDP_REST,
        _ => false,
    };
    let closed = word.close();
    if half_open && entry.swap(word, closed) {
        end::ended(&entry, closed, RECYCLED);
    }
}
