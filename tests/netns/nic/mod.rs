//! NICs, cells, and the kernel's table of neighbours.

pub(crate) mod announce;
pub(crate) mod cell;
mod crowded;
mod exempt;
mod hotplug;
mod mode;
mod neighbours;
pub(crate) mod resolve;
mod room;
