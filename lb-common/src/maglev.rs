//! Maglev consistent hashing (Eisenbud et al., NSDI 2016, section 3.4).
//!
//! Both sides share the hash and the index; the table is built in userspace.
//!
//! Without a secret, because the data plane, userspace (of shared VIPs) and another balancer with the same table must
//! choose the same backend for a tuple. So a client can choose among the backends of its pool; what is not its own
//! pool's, such as the SNAT address, goes by [`HashKey::tuple`](crate::maps::addr6::HashKey::tuple).

#[cfg(any(test, feature = "user"))]
use std::collections::BTreeMap;

use crate::maps::flow::FlowKey;

/// A spread, unseeded hash of a flow's tuple, the same on every machine, so that two balancers
/// with the same table choose the same backend.
#[inline(always)]
pub const fn hash(key: &FlowKey) -> u32 {
    let addresses = (key.client.raw() as u64) << 32 | key.vip.raw() as u64;
    let ports = (key.client_port.raw() as u64) << 32
        | (key.vip_port.raw() as u64) << 16
        | key.protocol as u64;
    // Two rounds of a 64-bit finaliser: every input bit reaches every output bit.
    (mix(addresses ^ mix(ports)) >> 32) as u32
}

#[inline(always)]
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

/// The table entry of `hash`, below `size`; without a division.
#[inline(always)]
pub const fn index(hash: u32, size: u32) -> u32 {
    ((hash as u64 * size as u64) >> 32) as u32
}

/// Table entries that a new flow tries: its own, then the ones behind it, where the next hop of a backend is not
/// known.
pub const ATTEMPTS: u32 = 4;

/// How many entries of `table` lead to each backend, where flows pass over those without a next hop. What leads to none
/// is left out.
#[cfg(any(test, feature = "user"))]
pub fn entries(table: &[u32], has_next_hop: impl Fn(u32) -> bool) -> BTreeMap<u32, u32> {
    let mut entries = BTreeMap::new();
    for first in 0..table.len() {
        let mut tried = table.iter().cycle().skip(first).take(ATTEMPTS as usize);
        if let Some(id) = tried.find(|id| has_next_hop(**id)) {
            *entries.entry(*id).or_default() += 1;
        }
    }
    entries
}

/// Table sizes: primes, as the permutations need; each pool takes the smallest that gives its
/// lightest backend about a hundred entries.
pub const SIZES: [u32; 6] = [509, 2039, 8191, 16_381, 32_749, 65_521];

/// One backend of a table.
#[cfg(any(test, feature = "user"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMember {
    /// What the table's entries hold: the backend's id.
    pub id: u32,
    /// Relative share, at least 1.
    pub weight: u16,
    /// What its permutation is made of; the backend's name, so that the table depends neither on
    /// the order of the file nor on ids.
    pub name: String,
}

/// The table of `members`: backend ids, or empty where there are none.
///
/// A member with weight w takes its turn in w of `max(weights)` rounds, so its share of the table
/// is proportional to its weight, and removing a member moves few of the others' entries.
#[cfg(any(test, feature = "user"))]
pub fn build(members: &[TableMember]) -> Vec<u32> {
    let Some(heaviest) = members.iter().map(|member| member.weight).max() else {
        return Vec::new();
    };
    let mut members: Vec<&TableMember> = members.iter().collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let size = size_for(&members);
    let mut walks: Vec<Walk> = members
        .iter()
        .map(|member| Walk::new(&member.name, size))
        .collect();
    let mut table: Vec<Option<u32>> = vec![None; size as usize];
    let mut left = size;
    let mut credit = vec![0u32; members.len()];
    loop {
        for ((member, walk), credit) in members.iter().zip(&mut walks).zip(&mut credit) {
            *credit += u32::from(member.weight);
            if *credit < u32::from(heaviest) {
                continue;
            }
            *credit -= u32::from(heaviest);
            let free = loop {
                let position = walk.next_position(size);
                if table[position].is_none() {
                    break position;
                }
            };
            table[free] = Some(member.id);
            left -= 1;
            if left == 0 {
                return table.into_iter().flatten().collect();
            }
        }
    }
}

#[cfg(any(test, feature = "user"))]
fn size_for(members: &[&TableMember]) -> u32 {
    let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    let lightest = members
        .iter()
        .map(|member| u64::from(member.weight))
        .min()
        .unwrap_or(1);
    let wanted = total.div_ceil(lightest.max(1)) * 100;
    let [.., largest] = SIZES;
    SIZES
        .into_iter()
        .find(|&size| u64::from(size) >= wanted)
        .unwrap_or(largest)
}

/// A spread, unseeded hash of a name, as [`hash`] is one of a tuple.
#[cfg(any(test, feature = "user"))]
pub fn hash_of_name(name: &str) -> u32 {
    (mix(fnv(name)) >> 32) as u32
}

/// FNV-1a.
#[cfg(any(test, feature = "user"))]
fn fnv(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// One member's permutation of the table's positions.
#[cfg(any(test, feature = "user"))]
struct Walk {
    position: u32,
    skip: u32,
}

#[cfg(any(test, feature = "user"))]
impl Walk {
    fn new(name: &str, size: u32) -> Self {
        let below = |limit: u32, value: u64| {
            u32::try_from(value % u64::from(limit))
                .expect("a remainder is below its 32-bit divisor")
        };
        let hash = fnv(name);
        Self {
            position: below(size, mix(hash)),
            skip: below(size - 1, mix(hash ^ !0)) + 1,
        }
    }

    fn next_position(&mut self, size: u32) -> usize {
        let position = self.position as usize;
        self.position = (self.position + self.skip) % size;
        position
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::addr::{Be16, Be32};

    fn members(weights: &[u16]) -> Vec<TableMember> {
        (1..)
            .zip(weights)
            .map(|(id, &weight)| TableMember {
                id,
                weight,
                name: format!("10.32.96.{id}:30918"),
            })
            .collect()
    }

    fn shares(table: &[u32]) -> HashMap<u32, usize> {
        table.iter().fold(HashMap::new(), |mut counts, &id| {
            *counts.entry(id).or_default() += 1;
            counts
        })
    }

    #[test]
    fn equal_weights_share_the_table_evenly() {
        let table = build(&members(&[1, 1, 1, 1]));
        assert_eq!(table.len(), 509);
        for (_, count) in shares(&table) {
            assert!((127..=128).contains(&count), "{count}");
        }
    }

    #[test]
    fn weights_are_shares() {
        let table = build(&members(&[3, 1]));
        let counts = shares(&table);
        let ratio = f64::from(u32::try_from(counts[&1]).unwrap())
            / f64::from(u32::try_from(counts[&2]).unwrap());
        assert!((2.9..3.1).contains(&ratio), "{ratio}");
    }

    #[test]
    fn removing_one_of_ten_moves_few_other_entries() {
        let ten = members(&[1; 10]);
        let (before, after) = (build(&ten), build(&ten[..9]));
        assert_eq!(before.len(), after.len());
        let kept = before.iter().filter(|&&id| id != 10).count();
        let moved = before
            .iter()
            .zip(&after)
            .filter(|&(&old, &new)| old != 10 && old != new)
            .count();
        assert!(moved * 100 <= kept * 15, "{moved} of {kept} moved");
    }

    #[test]
    fn the_table_depends_neither_on_order_nor_on_ids() {
        let ordered = members(&[1, 2, 3]);
        let mut reversed = ordered.clone();
        reversed.reverse();
        assert_eq!(build(&ordered), build(&reversed));
    }

    #[test]
    fn nobody_is_no_table_and_one_is_all_of_it() {
        assert!(build(&[]).is_empty());
        assert!(build(&members(&[7])).iter().all(|&id| id == 1));
        let extreme = build(&members(&[256, 1]));
        assert!(shares(&extreme)[&2] >= 60);
    }

    #[test]
    fn the_entries_of_a_backend_without_a_next_hop_are_those_of_the_ones_behind_it() {
        let table = [1, 2, 3, 3, 1, 2];
        let all = entries(&table, |_| true);
        assert_eq!(all, BTreeMap::from([(1, 2), (2, 2), (3, 2)]));
        let without = entries(&table, |id| id != 3);
        assert_eq!(without, BTreeMap::from([(1, 4), (2, 2)]));
        // Over the end of the table.
        assert_eq!(
            entries(&table, |id| id == 1),
            BTreeMap::from([(1, 6)]),
            "two from the end, and the two before them"
        );
        // A flow tries four of them and no more.
        let far = [1, 2, 2, 2, 2, 2];
        assert_eq!(entries(&far, |id| id == 1), BTreeMap::from([(1, 4)]));
        assert_eq!(entries(&far, |_| false), BTreeMap::new());
        assert_eq!(entries(&[], |_| true), BTreeMap::new());
    }

    #[test]
    fn the_hash_spreads_neighbouring_clients() {
        let size = 64u32;
        let mut buckets = vec![0u32; 64];
        for host in 0..64u32 {
            for port in 0..256u16 {
                let key = FlowKey {
                    client: Be32::new(0xc0a8_cb00 + host),
                    vip: Be32::new(0xc0a8_cb6e),
                    client_port: Be16::new(40000 + port),
                    vip_port: Be16::new(6443),
                    network: 1,
                    protocol: 6,
                };
                buckets[index(hash(&key), size) as usize] += 1;
            }
        }
        // 256 expected in each; six standard deviations are 95.
        assert!(
            buckets.iter().all(|&count| (161..=351).contains(&count)),
            "{buckets:?}"
        );
    }
}
