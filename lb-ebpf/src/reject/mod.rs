//! A frame that cannot be served becomes the TCP reset or the ICMP error to its sender, at a rate.

pub(crate) mod judge;
pub(crate) mod limits;
pub(crate) mod v4;
mod v6;
