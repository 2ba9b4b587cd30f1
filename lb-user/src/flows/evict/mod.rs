//! Flows that end at once, not because of what they do, but because of what they are.
//!
//! [`selector`] selects the flows, `queue` keeps the evictions that are ordered and those under way, `pass`
//! carries them out over the table, and [`terminate`] ends one flow beside the data plane.

mod pass;
pub(crate) mod queue;
pub mod selector;
pub mod terminate;
