//! The keys of how a new flow gets its backend: of pools, and of the parts of a cluster for theirs.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    declare::section,
    kinds::{Connections, kinds},
    values::{time_in, word},
};
use crate::config::{
    algorithm::Algorithm,
    duration,
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
        /// How long after its last new flow a client keeps the backend that it has had, also where the hash leads to
        /// another one since; 1s to 30d. A backend that is dead, drained or full loses its clients. Only with `balance:
        /// source`.
        optional source_timeout: SourceTime => "none: the hash alone decides",
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
            source_timeout,
            max_connections,
        } = self;
        let balance = balance.iter().map(|at| &at.place);
        balance
            .chain(source_timeout.iter().map(|at| &at.place))
            .chain(max_connections.iter().map(|at| &at.place))
            .filter(|place| place.is_written())
    }
}

/// Clients are remembered by the second, and for no longer than any flow.
const SOURCE_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=*duration::RANGE.end();

kinds! {
    Balance("word"): Option<At<Algorithm>> = word(&Algorithm::ALL);
    SourceTime("time"): Option<At<Duration>> = time_in(SOURCE_TIMEOUT);
}
