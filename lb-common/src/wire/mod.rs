//! The bytes of a frame: bounds-checked access, headers, parsing, checksums.

pub mod checksum;
mod field;
pub mod header;
mod packet;
mod parse;

pub use field::{N8, N16, N32, NMac};
pub use packet::{Packet, Slice, Wire};
pub use parse::{Ipv4Frame, L4, parse_ipv4};
