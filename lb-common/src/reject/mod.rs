//! A frame that cannot be served becomes the refusal of its own sender: a TCP reset or an ICMP error. Pure.

pub mod v4;
pub mod v6;
