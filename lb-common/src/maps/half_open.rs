//! Rings of flows: a network's latest half-open TCP flows, and its latest UDP flows.
//!
//! A new flow takes the ring's next place from the flow that has been there longest; if that one is still
//! half-open, it takes its id as well. So a flood churns its own ring and its own ids, and what got
//! established is in no danger. A place holds id and generation, so a stale one does no harm.

/// Places of a ring unless the configuration says otherwise.
pub const DEFAULT_PLACES: u32 = 8192;

/// Index of a ring's size in its inner map, a `u64`.
pub const SIZE: u32 = 0;
/// Index of the number of flows that ever took a place, a `u64`.
pub const HEAD: u32 = 1;
/// Index of the first place.
pub const FIRST: u32 = 2;

/// Index of a network's ring in the map `RINGS`.
#[inline(always)]
pub const fn index(network: u16, udp: bool) -> u32 {
    (network as u32) << 1 | udp as u32
}

/// What a place holds: the flow's id and generation. 0 for none.
#[inline(always)]
pub const fn place(id: u32, generation: u32) -> u64 {
    (id as u64) << 32 | generation as u64
}

/// The reverse of [`place`].
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "each half has the width that it was made of"
)]
pub const fn flow(place: u64) -> (u32, u32) {
    ((place >> 32) as u32, place as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_holds_id_and_generation() {
        assert_eq!(
            flow(place(0xdead_beef, 0x00ff_ffff)),
            (0xdead_beef, 0x00ff_ffff)
        );
        assert_ne!(index(1, false), index(1, true));
        assert_ne!(index(1, true), index(2, false));
    }
}
