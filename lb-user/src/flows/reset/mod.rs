//! Resets to the two ends of a flow that ends without them, and keepalive probes.
//!
//! [`segments`] makes the frames, `queue` keeps those of evicted flows until it is their turn, and
//! `sender` sends them out of the networks' NICs.

mod queue;
pub mod segments;
pub(crate) mod sender;
