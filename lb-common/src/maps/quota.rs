//! How many flows a network's clients have on a bank, and how many they may have.
//!
//! A bank is the SNAT addresses of one family in a network: their ports are what all flows to backends there
//! have, whatever network their clients are in. So each pair of clients' network and bank has a quota of its own.
//! It is counted as the budgets are: see [`super::usage`].

use super::MAX_NETWORKS;
use crate::pod::pod_struct;

pod_struct! {
    /// What the clients of a network have of a bank, in the map `QUOTAS`. 8 bytes.
    pub struct Quota {
        /// Most flows at a time; 0 for no limit. Written by userspace only.
        pub most: u32,
        /// Flows in full use. Changed by atomic addition only.
        pub live: u32,
    }
}

/// Banks, two for each network.
const BANKS: u32 = 2 * MAX_NETWORKS;
/// Entries of the map `QUOTAS`.
pub const ENTRIES: u32 = MAX_NETWORKS * BANKS;

/// The bank of a network's SNAT addresses of IPv4, or of IPv6. The map `BANKS` has 0 for a slot that has no
/// network, which is no network's either.
#[inline(always)]
pub const fn bank(network: u16, is_ipv6: bool) -> u32 {
    (network as u32) << 1 | is_ipv6 as u32
}

/// Index in the map `QUOTAS` of what the clients of `network` have of a bank.
#[inline(always)]
pub const fn index(network: u16, bank: u32) -> u32 {
    network as u32 % MAX_NETWORKS * BANKS + bank % BANKS
}

/// Network and family of a bank: the reverse of [`bank`].
#[expect(
    clippy::cast_possible_truncation,
    reason = "what it was made of has 16 bits"
)]
pub const fn of_bank(bank: u32) -> (u16, bool) {
    ((bank >> 1) as u16, bank & 1 != 0)
}

/// Network of the clients, and bank: the reverse of [`index`].
#[expect(
    clippy::cast_possible_truncation,
    reason = "what it was made of has 16 bits"
)]
pub const fn of_index(index: u32) -> (u16, u32) {
    ((index / BANKS) as u16, index % BANKS)
}

impl Quota {
    /// Whether there is room for no more flow. A count that a crash of userspace has made wrong may be below
    /// zero, which is not a spent quota.
    #[inline(always)]
    pub const fn is_spent(&self) -> bool {
        is_spent(self.most, self.live)
    }
}

/// Whether `live` flows are as many as there may be; see [`Quota::is_spent`].
#[inline(always)]
pub const fn is_spent(most: u32, live: u32) -> bool {
    most != 0 && live >= most && live.cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_pair_of_network_and_bank_has_a_quota() {
        let networks = 0..u16::try_from(MAX_NETWORKS).unwrap();
        let banks = |to| [bank(to, false), bank(to, true)];
        let pairs = networks.clone().flat_map(|from| {
            networks
                .clone()
                .flat_map(banks)
                .map(move |bank| index(from, bank))
        });
        let indexes: BTreeSet<u32> = pairs.collect();
        assert_eq!(indexes, (0..ENTRIES).collect());
        assert!(banks(1).iter().all(|bank| *bank != 0));
        assert_eq!(of_index(index(9, bank(7, true))), (9, bank(7, true)));
        assert_eq!(
            [bank(7, true), bank(8, false)].map(of_bank),
            [(7, true), (8, false)]
        );
    }

    #[test]
    fn a_quota_without_a_limit_is_never_spent() {
        let spent = |most, live| Quota { most, live }.is_spent();
        assert!(!spent(0, 0) && !spent(0, u32::MAX >> 1));
        assert!(!spent(2, 1) && spent(2, 2) && spent(2, 3));
        assert!(!spent(2, u32::MAX), "one below zero");
    }
}
