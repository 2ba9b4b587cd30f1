//! Networks on the host: their interfaces, their cells, their neighbours.

pub mod carrier;
pub mod cell;
pub mod cell_thread;
pub mod changes;
mod garp_listener;
pub mod link;
pub mod namespace;
pub mod neighbour;
pub mod nic;
mod offload;
pub mod raw;
mod silence;
mod sysctl;
