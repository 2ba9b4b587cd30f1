//! What a table of the map `MAGLEV` holds behind one another: its size, as many backend ids, the turns of `round-robin`,
//! and for each id how many entries are its backend's, which is its share.
//!
//! Tables that an earlier version has made end with the ids.

/// Index of the size.
pub const SIZE: u32 = 0;

/// Index of the backend id of an entry.
#[inline(always)]
pub const fn id(slot: u32) -> u32 {
    slot.wrapping_add(1)
}

/// Index of the count of turns in a table of `size`, which the data plane writes.
#[inline(always)]
pub const fn turns(size: u32) -> u32 {
    size.wrapping_add(1)
}

/// Index of the share of an entry's backend.
#[inline(always)]
pub const fn share(size: u32, slot: u32) -> u32 {
    size.wrapping_add(2).wrapping_add(slot)
}

/// How many values a table of `size` has.
pub const fn values(size: u32) -> u32 {
    share(size, size)
}
