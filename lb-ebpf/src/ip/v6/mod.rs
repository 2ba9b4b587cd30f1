//! What follows the fixed header, neighbour discovery, flows, ICMPv6, fragments.

pub(crate) mod forward;
mod fragment;
pub(crate) mod headers;
mod icmp;
pub(crate) mod neighbour;
pub(crate) mod receive;
