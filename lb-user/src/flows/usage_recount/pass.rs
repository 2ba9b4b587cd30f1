//! The recount, over two passes of the thread.

use std::{
    mem,
    time::{Duration, Instant},
};

use lb_common::maps::quota;

use super::{Look, corrections};
use crate::dataplane::{
    flows::{Glance, UsageTable},
    grace,
};

/// How often live flows are counted anew.
const INTERVAL: Duration = Duration::from_secs(60);

/// Where the recount stands.
pub(in crate::flows) enum Recount {
    /// Nothing to do until then.
    At(Instant),
    /// This pass is the first look.
    First(Looks),
    /// The first look, the numbers after it, and this pass's look.
    Second(Looks, [Vec<u32>; 3], Looks),
}

/// What a look saw of the usage, of backends, and of the quotas.
type Looks = [Look; 3];

impl Recount {
    /// One that begins with the next pass.
    pub(in crate::flows) fn due() -> Self {
        Self::At(Instant::now())
    }

    /// A pass begins.
    pub(in crate::flows) fn begin(&mut self, table: &UsageTable) {
        if matches!(self, Self::At(when) if *when <= Instant::now()) {
            *self = Self::First(looks(table));
        }
    }

    /// The pass has come to an entry.
    pub(in crate::flows) fn note(&mut self, table: &UsageTable, id: u32, glance: &Glance) {
        if let Self::First(looks) | Self::Second(_, _, looks) = self {
            let [usage, backends, quotas] = looks;
            let (network, word) = (glance.network, glance.word);
            usage.note(network, glance.service, id, word);
            backends.note_at(glance.backend_id, id, word);
            quotas.note_at(table.quotas().index(network, id), id, word);
        }
    }

    /// The pass is over. How many numbers were wrong, and are corrected.
    pub(in crate::flows) fn go_on(&mut self, table: &UsageTable) -> u64 {
        match mem::replace(self, Self::At(Instant::now() + INTERVAL)) {
            Self::At(when) => *self = Self::At(when),
            Self::First(first) => {
                // A flow that was seen live may not have been added yet.
                grace::wait();
                *self = Self::Second(first, numbers(table), looks(table));
            }
            Self::Second(first, between, second) => {
                let [usage, backends, quotas] =
                    [0, 1, 2].map(|of| corrections(&first[of], &between[of], &second[of]));
                for &(index, amount) in &usage {
                    table.owners().add(index, amount);
                    log("a network or a service", index, amount);
                }
                for &(index, amount) in &backends {
                    table.backends().add(index, amount);
                    log("a backend", index, amount);
                }
                for &(index, amount) in &quotas {
                    table.quotas().add(index, amount);
                    log("a quota", index, amount);
                }
                let wrong = usage.len() + backends.len() + quotas.len();
                return u64::try_from(wrong).unwrap_or_default();
            }
        }
        0
    }
}

/// Looks that have seen nothing yet.
fn looks(table: &UsageTable) -> Looks {
    let quotas = usize::try_from(quota::ENTRIES).unwrap_or_default();
    [table.owners().len(), table.backends().len(), quotas].map(Look::new)
}

/// The numbers as they are.
fn numbers(table: &UsageTable) -> [Vec<u32>; 3] {
    let counts = [table.owners(), table.backends()];
    let [usage, backends] = counts.map(|of| (0..).map_while(|index| of.get(index)).collect());
    let quotas = (0..quota::ENTRIES).map(|index| table.quotas().get(index).live);
    [usage, backends, quotas.collect()]
}

fn log(of: &str, index: u32, amount: i32) {
    tracing::info!(
        index,
        amount,
        "the count of live flows of {of} was wrong, and is corrected"
    );
}
