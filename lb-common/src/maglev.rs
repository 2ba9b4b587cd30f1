//! Maglev consistent hashing (Eisenbud et al., NSDI 2016, section 3.4).
//!
//! Both sides share the hash and the index; the table is built in userspace (`table`).
//!
//! The hash has no secret, because the data plane, userspace (of shared VIPs) and another balancer with the same table
//! must choose the same backend for a tuple. So a client can choose an entry of the table, and without a seed, by which
//! entries are of other backends, among the backends of its pool; what is not its own pool's, such as the
//! SNAT address, is chosen at random.

#[cfg(any(test, feature = "user"))]
mod table;

#[cfg(any(test, feature = "user"))]
use std::collections::BTreeMap;

#[cfg(any(test, feature = "user"))]
pub use self::table::{SIZES, TableMember, build, size_for};
use crate::{addr::Be32, maps::flow::FlowKey};

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

/// The same of a client alone: all of its flows have the same.
#[inline(always)]
pub const fn hash_of_client(client: Be32) -> u32 {
    (mix(client.raw() as u64) >> 32) as u32
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

/// A spread, unseeded hash of a name, as [`hash`] is one of a tuple.
#[cfg(any(test, feature = "user"))]
pub fn hash_of_name(name: &str) -> u32 {
    (mix(fnv(FNV_BASIS, name)) >> 32) as u32
}

/// Where FNV-1a begins.
#[cfg(any(test, feature = "user"))]
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a of a text behind what has led to `state`.
#[cfg(any(test, feature = "user"))]
fn fnv(state: u64, text: &str) -> u64 {
    text.bytes().fold(state, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Be16;

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
