//! The bytes of a frame: bounds-checked access, headers, parsing, checksums.

mod chain;
pub mod checksum;
mod ethertype;
mod field;
pub mod header;
pub mod options;
mod packet;
mod parse;
pub(crate) mod tcp_options;
mod vlan;

pub use chain::Chain;
pub use ethertype::is_link_control;
pub use field::{N8, N16, N32, N128, NMac};
pub use packet::{Block, Packet, Slice, Wire};
pub(crate) use parse::{FRAGMENT_MASK, OFFSET_MASK};
pub use parse::{
    Frame, Ip, Ipv4Frame, Ipv6Frame, L4, ipv4_lengths, ipv6_length, parse_ipv4, parse_ipv6,
};
pub use vlan::{Tag, Tagging, tagging};
