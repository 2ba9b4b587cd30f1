//! The bytes of a frame: bounds-checked access, headers, parsing, checksums.

pub mod checksum;
mod ethertype;
mod field;
pub mod header;
pub mod options;
mod packet;
mod parse;
mod tag;

pub use ethertype::is_link_control;
pub use field::{N8, N16, N32, NMac};
pub use packet::{Block, Packet, Slice, Wire};
pub(crate) use parse::{FRAGMENT_MASK, OFFSET_MASK};
pub use parse::{Ipv4Frame, L4, ipv4_lengths, parse_ipv4};
pub use tag::{Tag, Tagging, tagging};
