//! What is different in IPv4 and IPv6: `version` for what conntrack, policy and a new flow need of both, and a folder
//! for each. `datagram` has the records of datagrams in pieces, of either.

mod datagram;
pub(crate) mod v4;
pub(crate) mod v6;
pub(crate) mod version;
