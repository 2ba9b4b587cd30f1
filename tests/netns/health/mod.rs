//! Backends that are checked, that flap and that die.

mod carrier;
mod dies;
mod flap;
mod probe;
pub(crate) mod verdicts;
