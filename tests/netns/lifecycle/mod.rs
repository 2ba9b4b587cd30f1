//! A process and its data plane: starts, kills, take-overs, stops, and what is taken away from it.

pub(crate) mod alone;
mod bad_start;
pub(crate) mod clock;
mod confirm;
mod disk;
mod doors;
mod faults;
mod grow;
mod killed;
pub(crate) mod mend;
mod migrate;
mod networks;
pub(crate) mod privileges;
mod remains;
mod replace;
mod restart;
mod stop;
mod survive;
pub(crate) mod takeover;
mod through;
mod undone;
mod unit;
