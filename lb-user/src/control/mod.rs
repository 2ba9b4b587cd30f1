//! A change: load -> validate -> desired -> plan -> apply. The first two are in `config`.
//!
//! And what goes on between changes: [`expiry`] ends flows, [`retire`] and [`sweep`] free ids of what is
//! configured no more, [`recover`] finds free flow ids that a killed process has lost.

pub mod apply;
mod attach;
pub mod desired;
pub mod expiry;
pub mod ids;
pub mod plan;
pub mod recover;
pub mod retire;
pub mod rules;
pub mod snat;
pub mod start;
pub mod sweep;
