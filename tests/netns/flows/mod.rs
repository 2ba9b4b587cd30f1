//! Flows of plain TCP and UDP from their first packet to the end of their id.

pub(crate) mod account;
mod alive;
pub(crate) mod cookies;
mod endure;
mod expiry;
pub(crate) mod keepalive;
pub(crate) mod life;
mod load;
mod local;
pub(crate) mod million;
mod one_arm;
mod overlap;
mod ports;
mod refuse;
mod request;
mod routed;
mod silence;
mod time_wait;
mod two_cpus;
mod vlan;
