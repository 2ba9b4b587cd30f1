//! Networks on the host: their interfaces, their cells, their neighbours.

pub mod carrier;
pub mod cell;
pub mod changes;
mod gratuitous;
pub mod link;
pub mod namespace;
pub mod neighbour;
pub mod nic;
mod offload;
pub mod raw;
pub mod resident;
mod sysctl;
