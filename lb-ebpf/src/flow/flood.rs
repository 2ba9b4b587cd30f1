//! Floods of half-open flows, by how fast their ring turns: SYNs are answered by cookies meanwhile.

use lb_common::maps::half_open::{
    self, ANSWERED, ANSWERED_TURN, FLOOD_TIME, FLOODED, MIN_TURN, SIZE, TURN, TURN_TIME,
};

use crate::{
    flow::{
        atomic,
        entry::{now, now_seconds},
    },
    maps::RINGS,
};

/// Notes that the ring with this index has turned. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_turned(index: u32) -> u32 {
    let Some(ring) = RINGS.get(index) else {
        return 0;
    };
    let (Some(turn), Some(time)) = (ring.get_ptr_mut(TURN), ring.get_ptr_mut(TURN_TIME)) else {
        return 0;
    };
    let now = now();
    // SAFETY: the value of an array map, aligned to eight bytes; no other CPU has this turn.
    let began = unsafe { turn.read_volatile() } as u32;
    // SAFETY: as above.
    unsafe { turn.write_volatile(now.into()) };
    let took = now.wrapping_sub(began).max(1);
    // SAFETY: as above.
    unsafe { time.write_volatile(took.into()) };
    0
}

/// Notes that a half-open connection of this network has left its place. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_note_eviction(network: u32) -> u32 {
    let ring = RINGS.get(half_open::index(network as u16, false));
    let time = ring.and_then(|ring| ring.get(TURN_TIME).copied());
    if time.is_some_and(|time| time != 0 && time < u64::from(MIN_TURN)) {
        lb_note_flood(network);
    }
    0
}

/// Notes that the half-open flows of this network are flooded. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_note_flood(network: u32) -> u32 {
    let ring = RINGS.get(half_open::index(network as u16, false));
    if let Some(until) = ring.and_then(|ring| ring.get_ptr_mut(FLOODED)) {
        let end = u64::from(now_seconds()) + FLOOD_TIME;
        // SAFETY: the value of an array map, aligned to eight bytes; of two CPUs that write it at a time either is right.
        unsafe { until.write_volatile(end) };
    }
    0
}

/// Takes a SYN to this network, if its half-open flows are flooded: it is to be answered by a cookie then, and is counted, as so many
/// in a second as the ring has places are a flood as well.
#[inline(always)]
pub(crate) fn takes_syn(network: u16) -> bool {
    lb_takes_syn(network.into()) != 0
}

/// [`takes_syn`], as a number. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_takes_syn(network: u32) -> u32 {
    let Some(ring) = RINGS.get(half_open::index(network as u16, false)) else {
        return 0;
    };
    let until = ring.get(FLOODED).copied().unwrap_or(0);
    if !half_open::is_flooded(until, now_seconds()) {
        return 0;
    }
    let size = ring.get(SIZE).copied().unwrap_or(0);
    let (Some(answered), Some(began_at)) =
        (ring.get_ptr_mut(ANSWERED), ring.get_ptr_mut(ANSWERED_TURN))
    else {
        return 1;
    };
    // SAFETY: the value of an array map, aligned to eight bytes.
    let turn = unsafe { atomic::count_up(answered) };
    if size != 0 && turn % size == 0 {
        let now = now();
        // SAFETY: as above; no other CPU has this turn.
        let began = unsafe { began_at.read_volatile() } as u32;
        // SAFETY: as above.
        unsafe { began_at.write_volatile(now.into()) };
        if now.wrapping_sub(began) < MIN_TURN {
            lb_note_flood(network);
        }
    }
    1
}
