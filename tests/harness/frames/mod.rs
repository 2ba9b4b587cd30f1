//! Frames by name: built from what they mean, and read as they were on a wire.

mod frame;
pub mod icmp_message;
pub mod packet;
pub mod raw;
pub mod segment;
pub mod six;
