//! The words of the control plane, without I/O: names and the ids that stand for them, nodes, SNAT addresses, what a sampled
//! frame is, and what is the same in every report.

pub(crate) mod ago;
pub mod ha_role;
pub mod maglev;
pub mod names;
pub mod nodes;
pub mod packet;
pub mod registry;
pub mod report;
pub mod rules;
pub mod seconds;
pub mod snat;
