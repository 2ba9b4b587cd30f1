//! Frames for property tests and fuzz targets, and what must hold for them: checksums computed from all
//! of their bytes, and plain models of what the product decides.

pub mod icmp;
pub mod icmp6;
pub mod ipv6;
pub mod options;
pub mod pieces;

use lb_common::{
    addr::{Be16, Be32},
    nat::Translation,
    verdict::DropReason,
    wire::{
        Ipv4Frame, Packet as _, Slice,
        checksum::{full, pseudo_header},
        header::{Ethernet, Ipv4},
        parse_ipv4,
    },
};

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Where the time to live is, the header's checksum, and the addresses.
pub const TTL: usize = 22;
pub const IP_CHECKSUM: usize = 24;
pub const SOURCE: usize = 26;
pub const DESTINATION: usize = 30;

/// Whether the tests are to take their time.
pub fn long() -> bool {
    std::env::var_os("LB_TEST_LONG").is_some()
}

/// Parses a frame and hands it on, if it is one.
pub fn parsed<T>(
    bytes: &mut [u8],
    then: impl FnOnce(&Slice<'_>, &Ipv4Frame<'_>) -> T,
) -> Result<T, DropReason> {
    let packet = Slice::new(bytes);
    let ethernet: &Ethernet = packet.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv4 = packet.header(ETHERNET).ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&packet, ethernet, ip)?;
    Ok(then(&packet, &frame))
}

/// Where the parts of a parsed frame are.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Where layer 4 begins.
    pub l4: usize,
    /// Where the packet ends, and padding begins.
    pub end: usize,
    /// Where layer 4's checksum is.
    pub checksum: usize,
}

impl Parts {
    pub fn of(bytes: &[u8]) -> Self {
        let l4 = ETHERNET + usize::from(bytes[ETHERNET] & 15) * 4;
        let udp = is_udp(bytes);
        let total = ETHERNET + usize::from(word(bytes, ETHERNET + 2));
        // A first fragment has the beginning of its datagram.
        let end = if udp {
            total.min(l4 + usize::from(word(bytes, l4 + 4)))
        } else {
            total
        };
        let checksum = l4 + if udp { 6 } else { 16 };
        Self { l4, end, checksum }
    }
}

pub fn is_udp(bytes: &[u8]) -> bool {
    bytes[23] == 17
}

/// Whether this is a UDP datagram without a checksum.
pub fn is_bare(bytes: &[u8]) -> bool {
    is_udp(bytes) && word(bytes, Parts::of(bytes).checksum) == 0
}

pub fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub fn put(bytes: &mut [u8], at: usize, word: u16) {
    bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

pub fn address(bytes: &[u8], at: usize) -> Be32 {
    Be32::new(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()))
}

/// The sum of the pseudo-header of a parsed frame.
pub fn pseudo(bytes: &[u8]) -> u64 {
    let Parts { l4, end, .. } = Parts::of(bytes);
    let length = u16::try_from(end - l4).unwrap();
    pseudo_header(address(bytes, 26), address(bytes, 30), bytes[23], length)
}

/// What is left of the sums of the IP header and of layer 4: 0 where the checksum is right.
pub fn sums(bytes: &[u8]) -> (u16, u16) {
    let Parts { l4, end, .. } = Parts::of(bytes);
    let ip = full(&bytes[ETHERNET..l4], 0).get();
    (ip, full(&bytes[l4..end], pseudo(bytes)).get())
}

/// Writes both checksums anew; a datagram without one stays so.
pub fn seal(bytes: &mut [u8]) {
    seal_header(bytes);
    if is_bare(bytes) {
        return;
    }
    let at = Parts::of(bytes).checksum;
    put(bytes, at, 0);
    let (_, sum) = sums(bytes);
    let sum = if is_udp(bytes) && sum == 0 {
        0xffff
    } else {
        sum
    };
    put(bytes, at, sum);
}

/// Writes the checksum of the IP header anew.
pub fn seal_header(bytes: &mut [u8]) {
    let end = ETHERNET + usize::from(bytes[ETHERNET] & 15) * 4;
    put(bytes, IP_CHECKSUM, 0);
    let sum = full(&bytes[ETHERNET..end], 0).get();
    put(bytes, IP_CHECKSUM, sum);
}

/// Gives a frame another tuple, with its checksums written anew.
pub fn readdress(bytes: &mut [u8], to: &Translation) {
    let Parts { l4, .. } = Parts::of(bytes);
    bytes[SOURCE..][..4].copy_from_slice(&to.source.get().to_be_bytes());
    bytes[DESTINATION..][..4].copy_from_slice(&to.destination.get().to_be_bytes());
    put(bytes, l4, to.source_port.get());
    put(bytes, l4 + 2, to.destination_port.get());
    seal(bytes);
}

/// The frame without what a router changes: time to live, and the checksum over it.
pub fn without_hops(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[TTL] = 0;
    bytes[IP_CHECKSUM..][..2].fill(0);
    bytes
}

/// The tuple of a frame: what a translation to it would be.
pub fn tuple(frame: &Ipv4Frame<'_>) -> Translation {
    let (source_port, destination_port) = frame.l4.ports();
    Translation {
        source: frame.ip.source.get(),
        destination: frame.ip.destination.get(),
        source_port,
        destination_port,
    }
}

/// A translation out of twelve bytes.
pub fn translation(bytes: [u8; 12]) -> Translation {
    Translation {
        source: address(&bytes, 0),
        destination: address(&bytes, 4),
        source_port: Be16::new(word(&bytes, 8)),
        destination_port: Be16::new(word(&bytes, 10)),
    }
}
