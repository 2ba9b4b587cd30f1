//! Frames of IPv6, and what must hold for them: checksums computed from all of their bytes.

use lb_common::{
    addr::{Be16, Be128},
    nat::Translation,
    verdict::DropReason,
    wire::{
        Chain, Ipv6Frame, Packet as _, Slice,
        checksum::{full, pseudo_header6},
        header::{Ethernet, Ipv6},
        parse_ipv6,
    },
};

use super::{ETHERNET, put, word};

/// Where an IPv6 header ends.
pub const HEADERS: usize = ETHERNET + 40;
/// Where the length of what is behind it is, the number of that, the hop limit, and the addresses.
pub const LENGTH: usize = 18;
pub const NEXT: usize = 20;
pub const HOPS: usize = 21;
pub const SOURCE: usize = 22;
pub const DESTINATION: usize = 38;

/// Parses a frame and hands it on, if it is one.
pub fn parsed<T>(
    bytes: &mut [u8],
    then: impl FnOnce(&Slice<'_>, &Ipv6Frame<'_>) -> T,
) -> Result<T, DropReason> {
    let packet = Slice::new(bytes);
    let ethernet: &Ethernet = packet.header(0).ok_or(DropReason::Malformed)?;
    let ip: &Ipv6 = packet.header(ETHERNET).ok_or(DropReason::Malformed)?;
    let chain = Chain::walk(&packet, ip)?;
    let frame = parse_ipv6(&packet, ethernet, ip, chain)?;
    Ok(then(&packet, &frame))
}

/// The extension headers of a packet, read one by one as they are defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// What they end with.
    pub protocol: u8,
    /// Where that begins.
    pub l4: usize,
    /// Where the fragment header is.
    pub fragment: Option<usize>,
}

/// Walks them.
pub fn walked(bytes: &[u8]) -> Result<Walked, DropReason> {
    let mut at = Walked {
        protocol: *bytes.get(NEXT).ok_or(DropReason::Malformed)?,
        l4: HEADERS,
        fragment: None,
    };
    let mut headers = 0;
    while matches!(at.protocol, 0 | 43 | 44 | 60) {
        let here = bytes.get(at.l4..at.l4 + 4).ok_or(DropReason::Malformed)?;
        let is_late = headers > 0 && at.protocol == 0;
        headers += 1;
        if headers > 9 {
            return Err(DropReason::UnsupportedProtocol);
        }
        let length = match (at.protocol, at.fragment) {
            (0, _) if is_late => return Err(DropReason::Malformed),
            (43, _) if here[2] == 0 => return Err(DropReason::SourceRoute),
            (43, _) | (44, Some(_)) => return Err(DropReason::UnsupportedProtocol),
            (44, None) => 8,
            _ => (usize::from(here[1]) + 1) * 8,
        };
        if at.l4 + length > HEADERS + 255 {
            return Err(DropReason::UnsupportedProtocol);
        }
        let mut is_last = false;
        if at.protocol == 44 {
            let header = bytes.get(at.l4..at.l4 + 8).ok_or(DropReason::Malformed)?;
            at.fragment = Some(at.l4);
            is_last = word(header, 2) >= 8;
        }
        at.protocol = here[0];
        at.l4 += length;
        if is_last {
            return Ok(at);
        }
    }
    if headers >= 9 {
        return Err(DropReason::UnsupportedProtocol);
    }
    Ok(at)
}

/// Where the parts of a parsed frame are.
#[derive(Clone, Copy)]
pub struct Parts {
    /// The layer-4 protocol.
    pub protocol: u8,
    /// Where layer 4 begins.
    pub l4: usize,
    /// Where the packet ends, and padding begins.
    pub end: usize,
    /// Where layer 4's checksum is.
    pub checksum: usize,
}

impl Parts {
    pub fn of(bytes: &[u8]) -> Self {
        let Walked { protocol, l4, .. } = walked(bytes).expect("a frame that was parsed");
        let total = HEADERS + usize::from(word(bytes, LENGTH));
        let (end, checksum) = match protocol {
            // A first fragment has the beginning of its datagram.
            17 => (total.min(l4 + usize::from(word(bytes, l4 + 4))), l4 + 6),
            58 => (total, l4 + 2),
            _ => (total, l4 + 16),
        };
        Self {
            protocol,
            l4,
            end,
            checksum,
        }
    }
}

pub fn address(bytes: &[u8], at: usize) -> Be128 {
    let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
    Be128::from(core::net::Ipv6Addr::from(octets))
}

pub fn octets(address: Be128) -> [u8; 16] {
    core::net::Ipv6Addr::from(address).octets()
}

/// The sum of the pseudo-header of a frame.
pub fn pseudo(bytes: &[u8]) -> u64 {
    let Parts {
        protocol, l4, end, ..
    } = Parts::of(bytes);
    let length = u16::try_from(end - l4).unwrap();
    let (source, destination) = (address(bytes, SOURCE), address(bytes, DESTINATION));
    pseudo_header6(source, destination, protocol, length)
}

/// What is left of the sum of layer 4: 0 where the checksum is right.
pub fn sum(bytes: &[u8]) -> u16 {
    let Parts { l4, end, .. } = Parts::of(bytes);
    full(&bytes[l4..end], pseudo(bytes)).get()
}

/// Writes the checksum anew.
pub fn seal(bytes: &mut [u8]) {
    let Parts {
        protocol, checksum, ..
    } = Parts::of(bytes);
    put(bytes, checksum, 0);
    let sum = sum(bytes);
    let is_zero = protocol == 17 && sum == 0;
    put(bytes, checksum, if is_zero { 0xffff } else { sum });
}

/// Gives a frame another tuple, with its checksum written anew.
pub fn readdress(bytes: &mut [u8], to: &Translation<Be128>) {
    let Parts { l4, .. } = Parts::of(bytes);
    bytes[SOURCE..][..16].copy_from_slice(&octets(to.source));
    bytes[DESTINATION..][..16].copy_from_slice(&octets(to.destination));
    put(bytes, l4, to.source_port.get());
    put(bytes, l4 + 2, to.destination_port.get());
    seal(bytes);
}

/// The tuple of a frame: what a translation to it would be.
pub fn tuple(frame: &Ipv6Frame<'_>) -> Translation<Be128> {
    let (source_port, destination_port) = frame.l4.ports();
    Translation {
        source: frame.ip.source.get(),
        destination: frame.ip.destination.get(),
        source_port,
        destination_port,
    }
}

/// A translation out of 36 bytes.
pub fn translation(bytes: [u8; 36]) -> Translation<Be128> {
    Translation {
        source: address(&bytes, 0),
        destination: address(&bytes, 16),
        source_port: Be16::new(word(&bytes, 32)),
        destination_port: Be16::new(word(&bytes, 34)),
    }
}
