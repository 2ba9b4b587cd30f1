//! Rings of flows: a network's latest half-open TCP flows, and its latest UDP flows.
//!
//! A new flow takes the ring's next place from the flow that has been there longest; if that one is still
//! half-open, it takes its id as well. So a flood churns its own ring and its own ids, and what got
//! established is in no danger. A place holds id and generation, so a stale one does no harm.

use super::flow::TIME_SHIFT;

/// Places of a ring unless the configuration says otherwise.
pub const DEFAULT_PLACES: u32 = 8192;

/// Index of a ring's size in its inner map, a `u64`.
pub const SIZE: u32 = 0;
/// Index of the number of flows that ever took a place, a `u64`.
pub const HEAD: u32 = 1;
/// Index of the second, of the monotonic clock, until which SYNs of the network are answered by cookies, a `u64`: a half-open
/// connection has left the ring while that turned within a second, or as many SYNs were answered in one as the ring has places.
pub const FLOODED: u32 = 2;
/// Index of the number of SYNs that were answered by cookies for the sake of a flood, a `u64`.
pub const ANSWERED: u32 = 3;
/// Index of the coarse time at which that was a multiple of [`SIZE`] last, a `u64`.
pub const ANSWERED_TURN: u32 = 4;
/// Index of the coarse time at which [`HEAD`] was a multiple of [`SIZE`] last, a `u64`.
pub const TURN: u32 = 5;
/// Index of how long the turn before that took, in units of coarse time, a `u64`; 0 before there was one.
pub const TURN_TIME: u32 = 6;
/// Index of the first place.
pub const FIRST: u32 = 7;

/// How long SYNs are answered by cookies after the last sign of a flood, in seconds.
pub const FLOOD_TIME: u64 = 10;
/// How long a ring takes to turn at least, as long as there is no flood, in units of coarse time: one second, after which a client
/// repeats what has been lost (RFC 6298 section 2.1).
pub const MIN_TURN: u32 = 1_000_000_000 >> TIME_SHIFT;

/// Whether SYNs are answered by cookies at this second of the monotonic clock, by what is at [`FLOODED`].
#[inline(always)]
pub const fn is_flooded(until: u64, second: u32) -> bool {
    until > second as u64
}

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
