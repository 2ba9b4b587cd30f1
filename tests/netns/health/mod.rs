//! Backends that are checked, that flap, that die and that vanish.

mod all_silent;
mod backup;
mod balance;
mod carrier;
mod dies;
mod flap;
mod new_port;
mod passive;
mod probe;
mod redispatch;
mod reselect;
mod service_down;
mod silent;
mod stays;
mod sweep;
pub(crate) mod verdicts;
mod weights;
