//! How many stations of its link a network may have its cell look for.
//!
//! Before a cell answers a station of its link, the kernel has to know where that is, and the kernel has one table
//! of neighbours for all namespaces of a machine. Linux keeps what was looked for within 5 s, whatever comes
//! (<https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/net/core/neighbour.c>,
//! `neigh_forced_gc`). So a network may add [`MAX_STATIONS`] in a unit of time, which is about a second, and one that
//! was added comes in freely for four units: of all that it has a table with 65,536 places takes a part of
//! less than a sixth, also where one host has a whole prefix.

use crate::{
    addr::{Be16, Be32},
    contact::{Contact, Ends, UNIT_SHIFT},
    maps::addr6::HashKey,
};

/// Places in the table of those that were added: a power of two.
pub const PLACES: u32 = crate::contact::PLACES;
/// Stations that a network may add in a unit, on all CPUs together.
pub const MAX_STATIONS: u32 = 1024;
/// Units for which a station that was added is not counted again.
const FRESH_FOR: u32 = 4;

/// A station of a network, as the table knows it: a place, and what stands there, as of a [`Contact`].
#[derive(Clone, Copy, Debug)]
pub struct Station(Contact);

impl Station {
    /// The station of the network with this id that has this address.
    #[inline(always)]
    pub const fn of(key: &HashKey, network: u16, address: Be32) -> Self {
        let none = Be16::from_raw(0);
        Self(Contact::of(
            key,
            Ends {
                us: Be32::from_raw(0),
                peer: address,
                port: none,
                peer_port: none,
                network,
            },
        ))
    }

    /// The index of its place, below [`PLACES`].
    #[inline(always)]
    pub const fn place(self) -> u32 {
        self.0.place()
    }

    /// The note that it was added `now`, in coarse time.
    #[inline(always)]
    pub const fn note(self, now: u32) -> u32 {
        self.0.note(now)
    }

    /// Whether `note`, which stands at its place, is of this station and not old.
    #[inline(always)]
    pub const fn is_fresh(self, note: u32, now: u32) -> bool {
        self.0.is_noted_within(note, now, FRESH_FOR)
    }
}

/// How many stations a network has added in a unit of time, as one word: the unit in the upper half, the number in
/// the lower one. 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added(u32);

impl Added {
    /// The word with these bits.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Its bits.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// With one more, at the coarse time `now`; nothing if there are [`MAX_STATIONS`] in this unit.
    #[inline(always)]
    pub const fn next(self, now: u32) -> Option<Self> {
        let unit = now >> UNIT_SHIFT & 0xffff;
        let count = if self.0 >> 16 == unit {
            self.0 & 0xffff
        } else {
            0
        };
        if count >= MAX_STATIONS {
            return None;
        }
        Some(Self(unit << 16 | (count + 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey([1, 2, 3, 4, 5]);
    const UNIT: u32 = 1 << UNIT_SHIFT;

    #[test]
    fn a_unit_has_room_for_so_many() {
        for now in [0, 5 * UNIT + 3, u32::MAX] {
            let mut added = Added::default();
            for _ in 0..MAX_STATIONS {
                added = added.next(now).expect("room");
            }
            assert_eq!(added.next(now), None, "{now}");
            let later = now.wrapping_add(UNIT);
            assert!(added.next(later).is_some(), "{now}");
        }
    }

    #[test]
    fn a_station_is_fresh_for_four_units_in_its_own_network() {
        let address = Be32::new(0x0a63_0001);
        let station = Station::of(&KEY, 3, address);
        for then in [0, 7 * UNIT, u32::MAX - 1] {
            let note = station.note(then);
            assert!(station.is_fresh(note, then));
            assert!(station.is_fresh(note, then.wrapping_add(3 * UNIT)));
            assert!(!station.is_fresh(note, then.wrapping_add(4 * UNIT)));
        }
        let note = station.note(0);
        assert!(!Station::of(&KEY, 4, address).is_fresh(note, 0));
        assert!(!Station::of(&KEY, 3, Be32::new(0x0a63_0002)).is_fresh(note, 0));
        assert!(!station.is_fresh(0, 0), "nothing was noted");
    }
}
