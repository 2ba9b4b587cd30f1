//! What stands for an IPv6 address where an IPv4 one would stand.
//!
//! Every record but two has room for 32 bits of address. An IPv6 address that is configured (a VIP, a SNAT
//! address, a backend), or that a cell has for itself, has a label instead, which the control plane gives out
//! once; a client's is a keyed hash of its address. So a flow of IPv6 is an entry as any other, in the same
//! table, index, rings and queues; beside it, at the same id in `CLIENTS6`, stands the client's address
//! itself, and a lookup that finds a flow by the hash compares that as well. Two clients with the same hash,
//! ports and VIP cannot both have a flow: one tuple in 2^32 has such a neighbour, and without the key no
//! client can choose to be one.
//!
//! A label is an address of 240.0.0.0/4, which no IPv4 host has (RFC 1112 section 4), so the VIP of a flow
//! shows which of the two it is.

use crate::{
    addr::{Be32, Be128},
    maps::flow::PackedKey,
};

const FIRST: u32 = 0xf000_0000;
/// Odd, and half of its bits are set: 2^64 divided by the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The label with this index in `ADDRESSES6`, 1 to 2^28 - 2.
#[inline(always)]
pub const fn label(index: u32) -> Be32 {
    Be32::new(FIRST | index)
}

/// The index of a label, or `None` for an IPv4 address.
#[inline(always)]
pub const fn index(address: Be32) -> Option<u32> {
    if address.get() >= FIRST {
        Some(address.get() & !FIRST)
    } else {
        None
    }
}

/// The key of the hash of clients' addresses: random numbers, made at the first start.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HashKey(pub [u64; 5]);

// SAFETY: transparent over integers, for which every bit pattern is valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for HashKey {}

impl HashKey {
    /// What stands for a client in its flow's tuple: a strongly universal hash, so that for any two addresses
    /// one key in 2^32 makes them the same (multiply-shift for vectors, Thorup, "High speed hashing for
    /// integers and strings", section 3.5). That alone is linear: a client that has found two addresses of
    /// its own that are the same would know a second one for every other client's. So its 64 bits, which no
    /// client sees, are mixed before half of them is shown.
    #[inline(always)]
    pub const fn client(&self, address: Be128) -> Be32 {
        Be32::from_raw(self.of(address.raw()))
    }

    /// The same of any four words.
    #[inline(always)]
    pub const fn of(&self, words: [u32; 4]) -> u32 {
        (self.bits(words) >> 32) as u32
    }

    /// All bits of the hash, the upper half of which is [`Self::of`].
    #[inline(always)]
    const fn bits(&self, words: [u32; 4]) -> u64 {
        let [a, b, c, d, e] = self.0;
        let [w, x, y, z] = words;
        let sum = a
            .wrapping_add(b.wrapping_mul(w as u64))
            .wrapping_add(c.wrapping_mul(x as u64))
            .wrapping_add(d.wrapping_mul(y as u64))
            .wrapping_add(e.wrapping_mul(z as u64));
        let mixed = (sum ^ (sum >> 32)).wrapping_mul(MIX);
        // The lower half of a product is by the lower half of what was multiplied alone.
        (mixed ^ (mixed << 32)) & !0xffff_ffff | (mixed >> 32)
    }

    /// All bits of the hash of a flow's tuple.
    #[inline(always)]
    pub const fn tuple_bits(&self, key: PackedKey) -> u64 {
        self.bits(key.words())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{addr::Be16, maps::flow::FlowKey};

    #[test]
    fn a_label_is_no_address_of_ipv4_and_says_its_index() {
        assert_eq!(index(label(1)), Some(1));
        assert_eq!(index(label(0x0fff_fffe)), Some(0x0fff_fffe));
        assert_eq!(index(Be32::new(0xefff_ffff)), None);
        assert!(label(7).is_bogon());
    }

    #[test]
    fn every_word_of_a_client_counts_in_its_hash() {
        let key = HashKey([3, 5 << 40, 7 << 40, 11 << 40, 13 << 40]);
        let hash = |words| key.client(Be128::from_raw(words));
        let hashes = [
            [0; 4],
            [1, 0, 0, 0],
            [0, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 0, 1],
        ]
        .map(hash);
        for (place, one) in hashes.iter().enumerate() {
            assert!(!hashes[..place].contains(one));
        }
    }

    #[test]
    fn every_field_of_a_tuple_counts_in_its_hash_and_so_does_the_key() {
        let keys =
            [MIX, !MIX].map(|of| [1, 3, 5, 7, 11].map(|factor: u64| of.wrapping_mul(factor)));
        let one = FlowKey::default();
        let tuples = [
            one,
            FlowKey {
                client: Be32::new(1),
                ..one
            },
            FlowKey {
                vip: Be32::new(1),
                ..one
            },
            FlowKey {
                client_port: Be16::new(1),
                ..one
            },
            FlowKey {
                vip_port: Be16::new(1),
                ..one
            },
            FlowKey { network: 1, ..one },
            FlowKey { protocol: 1, ..one },
        ];
        let [these, those] =
            keys.map(|key| tuples.map(|tuple| HashKey(key).tuple_bits(tuple.packed())));
        for (place, hash) in these.iter().enumerate() {
            assert!(!these[..place].contains(hash));
            assert!(!those.contains(hash));
        }
    }

    #[test]
    fn two_clients_with_the_same_hash_say_nothing_of_their_neighbours() {
        let mut state = 1_u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 32) as u32
        };
        let key = HashKey([0; 5].map(|_: u64| u64::from(random()) << 32 | u64::from(random())));
        let hash = |[y, z]: [u32; 2]| key.client(Be128::from_raw([1, 2, y, z]));
        let mut seen = HashMap::new();
        let pairs = std::iter::repeat_with(|| [random() >> 1, random() >> 1])
            .filter_map(|one| seen.insert(hash(one), one).map(|other| (one, other)));
        for (one, other) in pairs.filter(|(one, other)| one != other).take(3) {
            let beside = |[y, z]: [u32; 2], step| hash([y, z + step]);
            for step in 1..1000 {
                assert_ne!(beside(one, step), beside(other, step), "{one:?} {other:?}");
            }
        }
    }
}
