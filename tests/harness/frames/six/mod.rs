//! What only frames of IPv6 have: extension headers, neighbour discovery; read and checked from scratch.

pub mod discovery;
mod extension;
mod read;

pub use self::{
    extension::Extension,
    read::{Read, check, read},
};

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of an IPv6 header.
pub const IPV6: usize = 40;
/// Offset of what follows the IPv6 header.
pub const L4: usize = ETHERNET + IPV6;

/// Numbers of what may follow an IPv6 header.
pub mod number {
    /// Options for every router on the way.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP of IPv4.
    pub const ICMP_V4: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// Addresses to be visited on the way.
    pub const ROUTING: u8 = 43;
    /// A piece of a packet.
    pub const FRAGMENT: u8 = 44;
    /// Encrypted.
    pub const ESP: u8 = 50;
    /// Signed.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6.
    pub const ICMP: u8 = 58;
    /// Nothing.
    pub const NONE: u8 = 59;
    /// Options for the receiver.
    pub const DESTINATION: u8 = 60;
    /// Mobility.
    pub const MOBILITY: u8 = 135;
}

/// The partial sum of the pseudo-header (RFC 8200 section 8.1): addresses, length and protocol.
pub(super) fn pseudo_header(addresses: &[u8; 32], length: usize, protocol: u8) -> u64 {
    let length = u32::try_from(length).expect("a packet below 4 GiB");
    let words = [
        addresses.as_slice(),
        &length.to_be_bytes(),
        &[0, 0, 0, protocol],
    ]
    .concat();
    let (pairs, _none) = words.as_chunks::<2>();
    let words = pairs.iter().map(|pair| u16::from_ne_bytes(*pair));
    words.map(u64::from).sum()
}
