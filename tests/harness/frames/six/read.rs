//! IPv6 frames as they were on a wire: read, and every checksum computed again.

use std::{fmt, net::Ipv6Addr};

use lb_common::wire::checksum::full;

use super::{ETHERNET, IPV6, number, pseudo_header};

/// An untagged IPv6 frame, header by header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read<'f> {
    /// Its sender.
    pub source: Ipv6Addr,
    /// Its receiver.
    pub destination: Ipv6Addr,
    /// Hop limit.
    pub hops: u8,
    /// The numbers of its extension headers, in order.
    pub extensions: Vec<u8>,
    /// Offset field and identification of the fragment header, if it has one.
    pub fragment: Option<(u16, u32)>,
    /// The number of what it carries.
    pub protocol: u8,
    /// What it carries, or of a fragment: the part of it.
    pub segment: &'f [u8],
}

impl Read<'_> {
    /// Whether it is not all of a packet.
    #[must_use]
    pub fn is_piece(&self) -> bool {
        self.fragment.is_some_and(|(field, _)| field != 0)
    }

    /// The ports of TCP or UDP; zero where it has none.
    #[must_use]
    pub fn ports(&self) -> [u16; 2] {
        [0, 2].map(|at| {
            let bytes = self.segment.get(at..at + 2);
            bytes.map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
        })
    }
}

impl fmt::Display for Read<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, destination) = (self.source, self.destination);
        write!(f, "IPv6 {source} > {destination} hops {}", self.hops)?;
        for number in &self.extensions {
            write!(f, " header {number}")?;
        }
        if let Some((field, id)) = self.fragment {
            write!(f, " from byte {} of {id:08x}", field & !7)?;
        }
        let bytes = self.segment.len();
        write!(
            f,
            " protocol {} {:?} bytes {bytes}",
            self.protocol,
            self.ports()
        )
    }
}

/// Reads a frame; what is behind the packet is padding.
///
/// # Errors
///
/// What about it is no IPv6.
pub fn read(frame: &[u8]) -> Result<Read<'_>, String> {
    if frame.get(12..14) != Some(&[0x86, 0xdd]) {
        return Err("another Ethernet type".to_owned());
    }
    let (header, rest) = frame[ETHERNET..]
        .split_at_checked(IPV6)
        .ok_or("a short IPv6 header")?;
    if header[0] >> 4 != 6 {
        return Err(format!("version {}", header[0] >> 4));
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let address = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().expect("sixteen bytes");
        Ipv6Addr::from(octets)
    };
    let mut read = Read {
        source: address(8),
        destination: address(24),
        hops: header[7],
        extensions: Vec::new(),
        fragment: None,
        protocol: header[6],
        segment: rest.get(..length).ok_or("it is longer than its frame")?,
    };
    while let Some(length) = extension_length(&read)? {
        let (extension, segment) = read
            .segment
            .split_at_checked(length)
            .ok_or("a short extension header")?;
        if read.protocol == number::FRAGMENT {
            let field = u16::from_be_bytes([extension[2], extension[3]]);
            let id = u32::from_be_bytes([extension[4], extension[5], extension[6], extension[7]]);
            read.fragment = Some((field, id));
        }
        read.extensions.push(read.protocol);
        (read.protocol, read.segment) = (extension[0], segment);
        // What a later piece begins with is no header.
        if read.fragment.is_some_and(|(field, _)| field >= 8) {
            break;
        }
    }
    Ok(read)
}

/// The bytes of the extension header that comes next, if one does.
fn extension_length(read: &Read<'_>) -> Result<Option<usize>, String> {
    let units = || {
        let units = read.segment.get(1).copied().map(usize::from);
        units.ok_or("a short extension header")
    };
    Ok(match read.protocol {
        number::HOP_BY_HOP | number::DESTINATION | number::ROUTING => Some((units()? + 1) * 8),
        number::FRAGMENT => Some(8),
        _ => None,
    })
}

/// Whether every length and checksum of a frame is right, computed from all of its bytes. Of a fragment
/// only the lengths can be judged.
///
/// # Errors
///
/// Which one is wrong.
pub fn check(frame: &[u8]) -> Result<(), String> {
    let read = read(frame)?;
    if read.is_piece() {
        return Ok(());
    }
    let segment = read.segment;
    let (protocol, length) = (read.protocol, segment.len());
    let shortest = match protocol {
        number::TCP => 20,
        number::UDP | number::ICMP => 8,
        _ => return Ok(()),
    };
    if length < shortest {
        return Err(format!("{length} bytes of protocol {protocol}"));
    }
    if protocol == number::UDP {
        let says = usize::from(u16::from_be_bytes([segment[4], segment[5]]));
        if says != length {
            return Err(format!("a datagram of {length} bytes says {says}"));
        }
        if segment[6..8] == [0, 0] {
            return Err("a datagram without checksum".to_owned());
        }
    }
    let mut addresses = [0; 32];
    addresses.copy_from_slice(&frame[ETHERNET + 8..ETHERNET + IPV6]);
    if full(segment, pseudo_header(&addresses, length, protocol)).raw() != 0 {
        return Err(format!("the checksum of protocol {protocol} is wrong"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{packet::udp, six::Extension};

    #[test]
    fn a_frame_is_read_as_it_was_built() {
        let frame = udp("[fd00::1]:1000", "[fd00::2]:53")
            .ttl(9)
            .extension(Extension::HopByHop(vec![]))
            .extension(Extension::Destination(vec![0; 9]))
            .extension(Extension::Fragment { field: 0, id: 77 })
            .payload(b"abc")
            .padding(4)
            .bytes();
        let read = read(&frame).expect("IPv6");
        assert_eq!(read.source.to_string(), "fd00::1");
        assert_eq!(read.destination.to_string(), "fd00::2");
        assert_eq!((read.hops, read.protocol), (9, number::UDP));
        assert_eq!(read.extensions, [0, 60, 44]);
        assert_eq!(read.fragment, Some((0, 77)));
        assert_eq!((read.ports(), read.segment.len()), ([1000, 53], 11));
        assert!(!read.is_piece());
    }
}
