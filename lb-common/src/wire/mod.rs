//! The bytes of a frame: bounds-checked access, headers, parsing, checksums.

pub mod checksum;
mod ethertype;
mod field;
pub mod header;
mod packet;
mod parse;
mod tag;

pub use ethertype::is_link_control;
pub use field::{N8, N16, N32, NMac};
pub use packet::{Packet, Slice, Wire};
pub use parse::{Ipv4Frame, L4, parse_ipv4};
pub use tag::{Tag, Tagging, tagging};
