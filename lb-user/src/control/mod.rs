//! A change: load -> validate -> desired -> plan -> apply. The first two are in `config`.

pub mod apply;
pub mod desired;
pub mod ids;
pub mod plan;
pub mod retire;
pub mod rules;
pub mod snat;
pub mod start;
