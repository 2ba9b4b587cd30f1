//! How a pool's new flows are divided among its backends.

use lb_common::maglev::{self, TableMember};
use serde::{Deserialize, Serialize};

/// What fills the table of a pool. XDP and shared VIPs choose by the table alone, so another algorithm is another
/// way to fill it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// Maglev consistent hashing.
    #[default]
    Maglev,
}

impl Algorithm {
    /// All of them.
    pub(super) const ALL: [Self; 1] = [Self::Maglev];

    /// Whether it is what a pool has that says nothing.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The table of `members` with this seed, of this size: their ids, or empty where none has a share.
    pub fn table(self, members: &[TableMember], size: u32, seed: &str) -> Vec<u32> {
        match self {
            Self::Maglev => maglev::build(members, size, seed),
        }
    }
}
