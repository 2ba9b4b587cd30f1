//! Rule sets: which sources are let in, by longest match; and in which class the clients of a name are.
//!
//! A rule set is never changed in place: a changed one is written whole under its twin's number,
//! and one write to the record that points to it switches over. So a packet is judged by the old
//! rules or the new ones, never by a mix.

use crate::{
    addr::{Be32, Be128},
    pod::pod_struct,
};

pod_struct! {
    /// What a prefix in the trie matches on, after the prefix length. 8 bytes; a prefix length
    /// counts the 32 bits of the set as well.
    pub struct RuleKey {
        /// Number of the rule set.
        pub set: u32,
        /// The prefix, host bits zero.
        pub address: Be32,
    }
}

pod_struct! {
    /// The same of IPv6, in a trie of its own; a set may have prefixes of both. 20 bytes.
    pub struct RuleKey6 {
        /// Number of the rule set.
        pub set: u32,
        /// The prefix, host bits zero.
        pub address: Be128,
    }
}

/// Value of a prefix whose addresses may pass.
pub const ALLOW: u32 = 1;
/// Value of a prefix whose addresses may not.
pub const DENY: u32 = 2;
/// Value of a prefix of a network's link: among its sources, of those that may be its stations, and no sources of
/// flows; among its destinations, of all.
pub const NEIGHBOUR: u32 = 3;

/// Bits of a trie key in front of the address.
pub const SET_BITS: u32 = 32;

/// What a rule set belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The sources of the network with this id.
    Sources(u16),
    /// The destinations that frames of the network with this id may not reach through the host.
    Destinations(u16),
    /// The clients of the service with this id.
    Service(u16),
    /// The classes of its clients by which its names lead somewhere: a value of its own for each prefix.
    Classes(u16),
}

impl Owner {
    /// The owner's two rule sets: one is in use, the other is written next. Neither is 0.
    pub const fn sets(self) -> [u32; 2] {
        let (kind, id) = match self {
            Self::Sources(id) => (1, id),
            Self::Destinations(id) => (2, id),
            Self::Service(id) => (3, id),
            Self::Classes(id) => (4, id),
        };
        let first = kind << 24 | (id as u32) << 1;
        [first, first | 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_owners_share_a_set() {
        let mut sets = Vec::new();
        for id in [0, 1, 2, u16::MAX] {
            for owner in [
                Owner::Sources(id),
                Owner::Destinations(id),
                Owner::Service(id),
                Owner::Classes(id),
            ] {
                sets.extend(owner.sets());
            }
        }
        let count = sets.len();
        sets.sort_unstable();
        sets.dedup();
        assert_eq!(sets.len(), count);
        assert!(!sets.contains(&0));
    }
}
