//! The words of the control plane, without I/O: names and the ids that stand for them, SNAT addresses, and what a
//! sampled frame is.

pub mod names;
pub mod packet;
pub mod registry;
pub mod rules;
pub mod snat;
