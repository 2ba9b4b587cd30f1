//! The backend that a client of a pool with `source_timeout` has had last, while it serves.
//!
//! Subprograms. Of two CPUs that note the same client at once, or two clients in one entry, the later one stays.

use lb_common::{
    addr::Be32,
    affinity::{Affinity, Place},
    maps::table,
};

use crate::{
    flow::{
        budget::has_room,
        entry::{Entry, now_seconds},
    },
    lookup,
    maps::{AFFINITIES, BACKENDS, HASH_KEY, MAGLEV},
};

/// No backend has this id.
const NONE: u32 = 0;

/// The id of the backend that `client` of this network has had last, up to `timeout` seconds ago, if it still has a share
/// of the pool with this table, and may have one more flow; or [`NONE`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_affine(number: u32, network: u32, client: u32, timeout: u32) -> u32 {
    let Some(table) = MAGLEV.get(number) else {
        return NONE;
    };
    let size = table.get(table::SIZE).copied().unwrap_or(0);
    let Some(place) = place(number, network as u16, Be32::from_raw(client)) else {
        return NONE;
    };
    let Some(id) = place.backend(now_seconds(), timeout, entry) else {
        return NONE;
    };
    let Some(backend) = BACKENDS.get(id) else {
        return NONE;
    };
    let serves = !backend.next_hop.is_none() && has_room(id, backend);
    match serves && table::has(size, id, |index| table.get(index).copied()) {
        true => id,
        false => NONE,
    }
}

/// Notes the backend of the flow with this id as that of its client, if its pool has a `source_timeout`. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_remember(id: u32) -> u32 {
    let Some(flow) = Entry::at(id) else {
        return 0;
    };
    let key = flow.key(flow.word());
    let Some(service) = lookup::record(&key) else {
        return 0;
    };
    if service.source_timeout() == 0 {
        return 0;
    }
    let Some(place) = place(service.pool, key.network, key.client) else {
        return 0;
    };
    let now = now_seconds();
    let index = place.own_or_oldest(now, entry);
    if let Some(word) = AFFINITIES.get_ptr_mut(index) {
        let note = place.note(flow.backend_id(), now);
        // SAFETY: a live value of an array map, one word.
        unsafe { word.write_volatile(note.raw()) };
    }
    0
}

/// Where a client of the pool with this table is noted; nowhere if an earlier version has made the table.
#[inline(always)]
fn place(number: u32, network: u16, client: Be32) -> Option<Place> {
    let table = MAGLEV.get(number)?;
    let size = table.get(table::SIZE).copied()?;
    let pool = table.get(table::pool(size)).copied()?;
    Some(Place::of(HASH_KEY.get(0)?, network, client, pool))
}

#[inline(always)]
fn entry(index: u32) -> Affinity {
    let word = AFFINITIES.get_ptr_mut(index);
    // SAFETY: a live value of an array map, one word, for which any bits are valid.
    Affinity::from_raw(word.map_or(0, |word| unsafe { word.read_volatile() }))
}
