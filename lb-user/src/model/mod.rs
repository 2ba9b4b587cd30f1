//! The words of the control plane, without I/O: names and the ids that stand for them, SNAT addresses.

pub mod registry;
pub mod snat;
