//! Ids of what is configured no more, and ids that were lost.
//!
//! [`retired`] are those that wait until no flow holds them, [`sweep`] looks through the flow table for that, and
//! [`lost_ids`] finds free flow ids that a killed process has lost.

pub mod lost_ids;
pub mod retired;
pub mod sweep;
