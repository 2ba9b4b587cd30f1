//! How many live flows each network's clients and each service have.
//!
//! The CPU that publishes a flow adds one to both, the winner of its close takes one off; userspace counts
//! the entries anew from time to time, so what a crash in between has lost is found again.

use super::MAX_NETWORKS;

/// Index of a network's clients in the map `USAGE`; the value is a `u32`.
#[inline(always)]
pub const fn network(id: u16) -> u32 {
    id as u32 % MAX_NETWORKS
}

/// Index of a service.
#[inline(always)]
pub const fn service(id: u16) -> u32 {
    MAX_NETWORKS + id as u32
}

/// Entries of the map for services up to this id.
pub const fn entries(services: u32) -> u32 {
    MAX_NETWORKS + services + 1
}
