//! How a pool's new flows are divided among its backends.

use lb_common::{
    maglev::{self, TableMember},
    maps::service::{SERVICE_LEAST_CONNECTIONS, SERVICE_ROUND_ROBIN, SERVICE_SOURCE},
    rotation,
};
use serde::{Deserialize, Serialize};

/// What fills the table of a pool, and which of its entries a new flow goes by. XDP and shared VIPs choose by the table
/// alone, so that shares hold with all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Of two entries at random, the one whose backend has fewer flows for its share.
    LeastConnections,
    /// Maglev consistent hashing.
    #[default]
    Maglev,
    /// One entry after the other.
    RoundRobin,
    /// By the client's address alone, by consistent hashing as with [`Self::Maglev`].
    Source,
}

impl Algorithm {
    /// All of them.
    pub(super) const ALL: [Self; 4] = [
        Self::Maglev,
        Self::RoundRobin,
        Self::LeastConnections,
        Self::Source,
    ];

    /// Whether it is what a pool has that says nothing.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The table of `members` with this seed, for pools of such weights: their ids, or empty where none has a share.
    pub fn table(
        self,
        members: &[TableMember],
        weights: impl Iterator<Item = u16> + Clone,
        seed: &str,
    ) -> Vec<u32> {
        match self {
            Self::RoundRobin => rotation::build(members),
            Self::LeastConnections | Self::Maglev | Self::Source => {
                maglev::build(members, maglev::size_for(weights), seed)
            }
        }
    }

    /// The flag of services that choose by it.
    pub const fn flag(self) -> u32 {
        match self {
            Self::LeastConnections => SERVICE_LEAST_CONNECTIONS,
            Self::Maglev => 0,
            Self::RoundRobin => SERVICE_ROUND_ROBIN,
            Self::Source => SERVICE_SOURCE,
        }
    }
}
