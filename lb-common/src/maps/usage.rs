//! How many live flows each network's clients and each service have; each backend's are in the map `BACKEND_FLOWS`, by
//! its id.
//!
//! The CPU that publishes a flow adds one to all of them, the winner of its close takes one off; userspace counts
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

/// A count as it is to be taken: one that a crash of userspace has made wrong may be below zero.
#[inline(always)]
pub const fn live(count: u32) -> u32 {
    if (count as i32) < 0 { 0 } else { count }
}

/// Whether a backend with so many flows has fewer of them for its share than another one, or as many.
#[inline(always)]
pub const fn is_lighter(
    (flows, share): (u32, u32),
    (other_flows, other_share): (u32, u32),
) -> bool {
    flows as u64 * other_share as u64 <= other_flows as u64 * share as u64
}

/// Entries of the map for services up to this id.
pub const fn entries(services: u32) -> u32 {
    MAX_NETWORKS + services + 1
}
