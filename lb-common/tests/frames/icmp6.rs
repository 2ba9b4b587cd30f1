//! ICMPv6 messages, and their checksums computed from all of their bytes.

use lb_common::{
    icmp6::{Message, parse},
    verdict::DropReason,
    wire::{
        Chain, Packet as _, Slice,
        checksum::{full, pseudo_header6},
        header::{Ethernet, Ipv6},
    },
};

use super::{
    ETHERNET,
    ipv6::{self, address},
};

/// Bytes of an ICMPv6 header.
pub const HEADER: usize = 8;

/// Parses an ICMPv6 message and hands it on, if it is one.
pub fn parsed<T>(
    bytes: &mut [u8],
    then: impl FnOnce(&Slice<'_>, &Message<'_>) -> Result<T, DropReason>,
) -> Result<T, DropReason> {
    let packet = Slice::new(bytes);
    let ethernet: &Ethernet = packet.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv6 = packet.header(ETHERNET).ok_or(DropReason::Malformed)?;
    let chain = Chain::walk(&packet, ip)?;
    if chain.protocol() != 58 {
        return Err(DropReason::UnsupportedProtocol);
    }
    let message = parse(&packet, ethernet, ip, chain)?;
    then(&packet, &message)
}

/// Where the parts of what a parsed error quotes are.
#[derive(Clone, Copy)]
pub struct Quoted {
    /// Where its IPv6 header begins.
    pub ip: usize,
    /// Where layer 4 begins.
    pub l4: usize,
    /// The layer-4 protocol.
    pub protocol: u8,
    /// Where layer 4's checksum is, if it is quoted.
    pub checksum: Option<usize>,
}

impl Quoted {
    pub fn of(bytes: &[u8]) -> Self {
        let ipv6::Parts { l4: icmp, end, .. } = ipv6::Parts::of(bytes);
        let ip = icmp + HEADER;
        let (l4, protocol) = match bytes[ip + 6] {
            44 => (ip + 48, bytes[ip + 40]),
            protocol => (ip + 40, protocol),
        };
        let checksum = l4 + if protocol == 17 { 6 } else { 16 };
        Self {
            ip,
            l4,
            protocol,
            checksum: Some(checksum).filter(|at| at + 2 <= end),
        }
    }

    /// What is left of the sum of as much of layer 4 as is quoted; `None` without a checksum. Both zeros
    /// count as one.
    pub fn sum(bytes: &[u8]) -> Option<u16> {
        let Self {
            ip,
            l4,
            protocol,
            checksum,
        } = Self::of(bytes);
        let pseudo = pseudo_header6(address(bytes, ip + 8), address(bytes, ip + 24), protocol, 0);
        let end = ipv6::Parts::of(bytes).end;
        let is_summed = checksum.is_some_and(|at| protocol != 17 || super::word(bytes, at) != 0);
        is_summed.then(|| full(&bytes[l4..end], pseudo).get() % 0xffff)
    }
}
