//! A change: load -> validate -> desired -> plan -> apply. The first two are in `config`.
//!
//! And what goes on between changes: [`expiry`] ends flows, [`retire`] frees ids.

pub mod apply;
pub mod desired;
pub mod expiry;
pub mod ids;
pub mod plan;
pub mod retire;
pub mod rules;
pub mod snat;
pub mod start;
