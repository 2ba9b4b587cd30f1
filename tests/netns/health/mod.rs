//! Backends that are checked, that flap and that die.

mod carrier;
mod dies;
mod flap;
mod probe;
mod sweep;
pub(crate) mod verdicts;
