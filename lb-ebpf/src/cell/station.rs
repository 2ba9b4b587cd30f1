//! Whether the cell of a network may have to look for one more station of its link.

use lb_common::{
    addr::Be32,
    station::{Added, Station},
};

use crate::{
    flow::{atomic, entry::now},
    lookup::network_by_id,
    maps::{ADDED, HASH_KEY, STATIONS},
    new_flow::policy,
};

/// Attempts to count a station beside other CPUs that count at the same moment.
const ATTEMPTS: u32 = 4;

/// Whether a frame from this address may enter the cell of the network `id`, which will answer: 1 if it comes from
/// behind a gateway, is of a station that was added lately, or is counted as one more, else 0. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_station(id: u32, address: u32) -> u32 {
    u32::from(is_admitted(id as u16, Be32::from_raw(address)) == Some(true))
}

#[inline(always)]
fn is_admitted(id: u16, address: Be32) -> Option<bool> {
    let network = network_by_id(id).ok()?;
    if !policy::is_on_link(network, address) {
        return Some(true);
    }
    let station = Station::of(HASH_KEY.get(0)?, id, address);
    let now = now();
    let place = STATIONS.get_ptr_mut(station.place())?;
    // SAFETY: a live value of an array map, one word.
    let noted = unsafe { place.read_volatile() };
    if station.is_fresh(noted, now) {
        return Some(true);
    }
    if !count(id, now)? {
        return Some(false);
    }
    // SAFETY: as above; a station that another CPU notes here at the same moment is counted once more.
    unsafe { place.write_volatile(station.note(now)) };
    Some(true)
}

/// Counts one more station of the network `id`, if there is room.
#[inline(always)]
fn count(id: u16, now: u32) -> Option<bool> {
    let word = ADDED.get_ptr_mut(u32::from(id))?;
    for _ in 0..ATTEMPTS {
        // SAFETY: a live value of an array map, one word.
        let before = Added::from_raw(unsafe { word.read_volatile() });
        let Some(after) = before.next(now) else {
            return Some(false);
        };
        // SAFETY: the word is a value of an array map, aligned to four bytes.
        if unsafe { atomic::compare_and_swap(word, before.raw(), after.raw()) } {
            return Some(true);
        }
    }
    Some(false)
}
