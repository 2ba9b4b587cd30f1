//! What follows the fixed header, the rewrite of a frame of a flow, neighbour discovery, ICMPv6, fragments.

pub(crate) mod fragment;
pub(crate) mod headers;
pub(crate) mod icmp;
pub(crate) mod neighbour;
pub(crate) mod rewrite;
