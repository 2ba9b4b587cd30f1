//! A flow: its entry, what a packet does to it, and the budgets that it is in.
//!
//! `conntrack` finds the flow of a packet, and `advance` is the rare packet that changes it; `rewrite` and `splice`
//! translate the frame. `claim` and `allocate` give a new flow its id and take it back, `half_open` and `budget` bound
//! how many there are, `flood` says when half-open ones are too many, and `events` reports a flow's begin and end to userspace, `backend_answers` how backends answer. `traffic`
//! counts a flow's packets.
//! `entry` alone touches a flow's memory.

mod advance;
pub(crate) mod allocate;
pub(crate) mod atomic;
pub(crate) mod backend_answers;
pub(crate) mod budget;
mod claim;
pub(crate) mod conntrack;
pub(crate) mod entry;
pub(crate) mod events;
pub(crate) mod flood;
pub(crate) mod free_ids;
pub(crate) mod half_open;
pub(crate) mod index;
pub(crate) mod rewrite;
pub(crate) mod snat;
pub(crate) mod splice;
pub(crate) mod traffic;
