//! The words of the control plane, without I/O: names and the ids that stand for them, SNAT addresses.

pub mod names;
pub mod registry;
pub mod rules;
pub mod snat;
