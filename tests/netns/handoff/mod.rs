//! Connections of a shared VIP that are handed over to the data plane: FEATURES B15.

mod blast;
pub(crate) mod connections;
mod cost;
mod killed;
mod much;
pub(crate) mod opener;
mod room;
mod scales;
mod segments;
mod size;
mod tenants;
mod trouble;
