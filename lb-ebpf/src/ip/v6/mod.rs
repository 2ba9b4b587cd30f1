//! What follows the fixed header, neighbour discovery, flows, ICMPv6, fragments.

pub(crate) mod chain;
pub(crate) mod forward;
mod fragment;
mod icmp;
pub(crate) mod neighbour;
