//! Which backend a client has had of a pool with `source_timeout`, for so long after its last new flow.
//!
//! An entry is one word of a table without collision chains, so that it is read and written whole. Each network of
//! clients has [`SETS`] sets of [`WAYS`] entries of its own, in which the one that is oldest is replaced: no network's
//! clients take the entries of another's. Which set a client has is a keyed hash, which no client foresees. A client
//! whose entry is gone goes by the hash of its address again, as one that comes the first time.
//!
//! That an entry has a backend says nothing of whether it serves: see [`table::has`](crate::maps::table::has).

use crate::{
    addr::{Be32, Be128},
    maps::{MAX_NETWORKS, addr6::HashKey},
};

/// Entries that a client of a pool may have.
pub const WAYS: u32 = 4;
/// Sets of a network: a power of two.
pub const SETS: u32 = 1024;
/// Entries of all networks: 8 MiB.
pub const ENTRIES: u32 = MAX_NETWORKS * SETS * WAYS;

/// The bits of an entry for the time, in seconds: they wrap in 194 days, and a timeout is 30 at most.
const TIME: u32 = 0xff_ffff;
/// Where they begin.
const TIME_SHIFT: u32 = 16;
/// Where those begin that say whose an entry is.
const TAG_SHIFT: u32 = 40;
/// The bits for the id of the backend, of which there are 65,535 at most.
const BACKEND: u32 = 0xffff;

/// Which backend a client has had last of a pool, and when. 8 bytes; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity(u64);

impl Affinity {
    /// The entry with these bits.
    #[inline(always)]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Its bits.
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    const fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    const fn is_of(self, place: Place) -> bool {
        !self.is_none() && (self.0 >> TAG_SHIFT) as u32 == place.tag
    }

    /// The id of the backend.
    #[inline(always)]
    const fn backend(self) -> u32 {
        (self.0 << 48 >> 48) as u32
    }

    /// Seconds since it was written. Another CPU may have written it in the next second already.
    #[inline(always)]
    const fn age(self, now: u32) -> u32 {
        let age = now
            .wrapping_sub((self.0 << 24 >> 40) as u32)
            .wrapping_add(1);
        (age & TIME).saturating_sub(1)
    }
}

/// Where the entries of a client of a pool are, and which of them are its own.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    first: u32,
    tag: u32,
}

impl Place {
    /// Of a client, by what its flows' keys have of it, for the pool with this id.
    #[inline(always)]
    pub const fn of(key: &HashKey, network: u16, client: Be32, pool: u32) -> Self {
        let words = [client.raw(), pool, network as u32, 0];
        let hash = key.client(Be128::from_raw(words)).raw();
        Self {
            first: (network as u32 * SETS + (hash & (SETS - 1))) * WAYS,
            tag: hash >> 8,
        }
    }

    /// The index of one of its entries, of which there are [`WAYS`].
    #[inline(always)]
    pub const fn index(self, way: u32) -> u32 {
        self.first + way
    }

    /// The entry of a client that has this backend `now`, in seconds.
    #[inline(always)]
    pub const fn note(self, backend: u32, now: u32) -> Affinity {
        let low = backend & BACKEND | now << TIME_SHIFT;
        let high = now >> TIME_SHIFT & TIME >> TIME_SHIFT | self.tag << 8;
        Affinity((high as u64) << 32 | low as u64)
    }

    /// The id of the backend that it has had last, up to `timeout` seconds before `now`; `entry` reads the table.
    #[inline(always)]
    pub fn backend(self, now: u32, timeout: u32, entry: impl Fn(u32) -> Affinity) -> Option<u32> {
        for way in 0..WAYS {
            let found = entry(self.index(way));
            if found.is_of(self) {
                return (found.age(now) <= timeout).then_some(found.backend());
            }
        }
        None
    }

    /// The index of the entry that is to be written: its own, else a free one, else the oldest.
    #[inline(always)]
    pub fn own_or_oldest(self, now: u32, entry: impl Fn(u32) -> Affinity) -> u32 {
        let (mut oldest, mut highest) = (self.index(0), 0);
        for way in 0..WAYS {
            let index = self.index(way);
            let found = entry(index);
            if found.is_of(self) {
                return index;
            }
            let age = if found.is_none() {
                TIME + 1
            } else {
                found.age(now)
            };
            if age > highest {
                (oldest, highest) = (index, age);
            }
        }
        oldest
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const KEY: HashKey = HashKey([
        0x243f_6a88_85a3_08d3,
        0x1319_8a2e_0370_7344,
        0xa409_3822_299f_31d0,
        0x082e_fa98_ec4e_6c89,
        0x4528_21e6_38d0_1377,
    ]);
    const DAY: u32 = 24 * 60 * 60;

    fn place(network: u16, client: u32, pool: u32) -> Place {
        Place::of(&KEY, network, Be32::new(client), pool)
    }

    /// The table of a few networks.
    struct Table(Vec<u64>);

    impl Table {
        fn new() -> Self {
            Self(vec![0; (4 * SETS * WAYS) as usize])
        }

        fn entry(&self, index: u32) -> Affinity {
            Affinity::from_raw(self.0[index as usize])
        }

        fn note(&mut self, place: Place, backend: u32, now: u32) {
            let index = place.own_or_oldest(now, |index| self.entry(index));
            self.0[index as usize] = place.note(backend, now).raw();
        }

        fn backend(&self, place: Place, now: u32, timeout: u32) -> Option<u32> {
            place.backend(now, timeout, |index| self.entry(index))
        }
    }

    #[test]
    fn a_backend_is_remembered_for_the_timeout() {
        for then in [0, 7, TIME - 1, TIME, u32::MAX - 1, u32::MAX] {
            for backend in [1, 0xffff] {
                let mut table = Table::new();
                let client = place(1, 0xc0a8_cb32, 5);
                assert_eq!(
                    table.backend(client, then, 30 * DAY),
                    None,
                    "the first time"
                );
                table.note(client, backend, then);
                for timeout in [1, 60, 30 * DAY] {
                    for (later, is_known) in [
                        (0, true),
                        (timeout, true),
                        (timeout + 1, false),
                        (90 * DAY, false),
                    ] {
                        let now = then.wrapping_add(later);
                        let wanted = is_known.then_some(backend);
                        assert_eq!(
                            table.backend(client, now, timeout),
                            wanted,
                            "{then} + {later}"
                        );
                    }
                    let before = then.wrapping_sub(1);
                    assert_eq!(table.backend(client, before, timeout), Some(backend));
                }
            }
        }
    }

    #[test]
    fn network_client_and_pool_have_each_their_own() {
        let mut table = Table::new();
        let all = [
            place(1, 1, 1),
            place(2, 1, 1),
            place(1, 2, 1),
            place(1, 1, 2),
        ];
        for (backend, of) in (10..).zip(all) {
            table.note(of, backend, 7);
        }
        for (backend, of) in (10..).zip(all) {
            assert_eq!(table.backend(of, 7, 60), Some(backend));
        }
        table.note(all[0], 20, 8);
        assert_eq!(table.backend(all[0], 8, 60), Some(20), "in its own entry");
        assert_eq!(table.0.iter().filter(|entry| **entry != 0).count(), 4);
    }

    #[test]
    fn the_entries_of_a_network_are_no_other_networks() {
        let mut table = Table::new();
        let one = place(1, 1, 1);
        table.note(one, 10, 0);
        for client in 0..100_000 {
            table.note(place(2, client, 1), 20, 1000);
        }
        assert_eq!(table.backend(one, 1000, 30 * DAY), Some(10));
        let last = place(255, u32::MAX, u32::MAX);
        assert!(last.index(WAYS - 1) < ENTRIES);
    }

    #[test]
    fn the_oldest_of_a_set_is_replaced() {
        let first = place(1, 0, 1);
        let clients = (0..).map(|client| place(1, client, 1));
        let set: Vec<Place> = clients
            .filter(|place| place.first == first.first)
            .take(6)
            .collect();
        let tags: BTreeSet<u32> = set.iter().map(|place| place.tag).collect();
        assert_eq!(tags.len(), 6);
        let mut table = Table::new();
        for (now, place) in (100..).zip(&set[..4]) {
            table.note(*place, now, now);
        }
        table.note(set[0], 100, 104);
        table.note(set[4], 105, 105);
        table.note(set[5], 106, 106);
        let known = set.iter().map(|place| table.backend(*place, 106, 60));
        let wanted = [Some(100), None, None, Some(103), Some(105), Some(106)];
        assert_eq!(known.collect::<Vec<_>>(), wanted);
    }

    /// As many clients as a network of /22 has: nearly all are known.
    #[test]
    fn a_thousand_clients_are_remembered() {
        let mut table = Table::new();
        let clients = || (0..1024).map(|host| place(3, 0x0a00_0000 + host, 9));
        clients().for_each(|place| table.note(place, 7, 1));
        let known = clients().filter(|place| table.backend(*place, 1, 60).is_some());
        // Of a set with 1 on average, 0.4 % have more than four.
        assert!(known.count() > 1010);
    }
}
