//! The keys of how a new flow gets its backend: of pools, and of the parts of a cluster for theirs.

use super::{
    declare::section,
    kinds::{Connections, kinds},
    values::word,
};
use crate::config::{
    algorithm::Algorithm,
    place::{At, Location},
};

section! {
    /// How the backends of a pool, and of a part of a cluster, are chosen.
    struct Selection = "selection" {
        /// How a new flow gets its backend. `maglev`: by a hash of its addresses and ports; when a backend comes or
        /// goes, few others change theirs. `round-robin`: one after the other. `least-connections`: of two backends at
        /// random, the one with fewer flows for its weight. `source`: by the client's address alone, so that a client
        /// stays with its backend. Weights hold with all.
        optional balance: Balance = "maglev",
        /// The most connections of each backend at a time: one that has as many gets no more, and where all have, a client
        /// is refused (`backends_full`). Flows of UDP count, too; what other pools have at the same address and port does
        /// not.
        optional max_connections: Connections => "no limit",
    }
}

impl Selection {
    /// Where those of its keys stand that are written.
    pub(in crate::config) fn places(&self) -> impl Iterator<Item = &Location> {
        let Self {
            balance,
            max_connections,
        } = self;
        let balance = balance.iter().map(|at| &at.place);
        balance
            .chain(max_connections.iter().map(|at| &at.place))
            .filter(|place| place.is_written())
    }
}

kinds! {
    Balance("word"): Option<At<Algorithm>> = word(&Algorithm::ALL);
}
