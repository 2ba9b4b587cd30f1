//! Frames by name: built from what they mean, and read as they were on a wire.

pub mod cut;
mod frame;
pub mod icmp_message;
pub mod packet;
pub mod raw;
pub mod segment;
pub mod six;
