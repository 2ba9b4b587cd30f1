//! The extension headers between an IPv6 header and layer 4 (RFC 8200 section 4).
//!
//! Carried as they are: hop-by-hop and destination options, and the fragment header. Everything else stops a
//! packet here, because what is behind it cannot be judged: routing headers go where their sender wants (RFC
//! 5095), and of others the length is not known.

use super::{
    Packet,
    header::{Ethernet, Extension, FragmentHeader, Ipv6},
};
use crate::verdict::DropReason;

/// One more than the extension headers that there may be: the last look is at layer 4.
const MAX_HEADERS: usize = 9;
/// Most bytes of all of them.
const MAX_BYTES: usize = 255;
/// Where the IPv6 header ends, in bytes from the frame's first.
const FIRST: usize = size_of::<Ethernet>() + size_of::<Ipv6>();

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// What is behind an IPv6 header, in one number.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain(u32);

impl Chain {
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BYTES")]
    const fn new(protocol: u8, bytes: usize, fragment: usize) -> Self {
        Self(protocol as u32 | (bytes as u32 & 0xff) << 8 | (fragment as u32 & 0xff) << 16)
    }

    /// No extension header in front of this protocol.
    #[inline(always)]
    pub const fn none(protocol: u8) -> Self {
        Self(protocol as u32)
    }

    /// From [`Self::raw`].
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// As a number below 2^24, for a function of its own.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The number of the layer-4 protocol.
    #[inline(always)]
    pub const fn protocol(self) -> u8 {
        let [protocol, ..] = self.0.to_le_bytes();
        protocol
    }

    /// Bytes of all extension headers.
    #[inline(always)]
    pub const fn bytes(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// Where layer 4 begins, in bytes from the frame's first.
    #[inline(always)]
    pub const fn end(self) -> usize {
        FIRST + self.bytes()
    }

    /// Where the fragment header is, in bytes from the frame's first.
    #[inline(always)]
    pub const fn fragment_at(self) -> Option<usize> {
        match self.0 >> 16 & 0xff {
            0 => None,
            // One more than its distance, so that 0 is none.
            more => Some(FIRST + more as usize - 1),
        }
    }

    /// The fragment header.
    #[inline(always)]
    pub fn fragment<P: Packet>(self, packet: &P) -> Option<&FragmentHeader> {
        packet.header(self.fragment_at()?)
    }

    /// Walks the headers behind that of the IPv6 packet in an untagged frame. Behind a fragment header that
    /// is not the first one's, nothing is looked at.
    ///
    /// # Errors
    ///
    /// `SourceRoute` for a routing header of type 0, `UnsupportedProtocol` for those of other types, for a
    /// chain that is too long, and for a second fragment header; `Malformed` if it breaks off, or
    /// hop-by-hop options are not the first.
    #[inline(always)]
    pub fn walk<P: Packet>(packet: &P, ip: &Ipv6) -> Result<Self, DropReason> {
        let (mut next, mut at, mut fragment) = (ip.next_header.get(), 0, 0);
        for place in 0..MAX_HEADERS {
            let known = matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION);
            if !known {
                return Ok(Self::new(next, at, fragment));
            }
            let here: &Extension = packet.header(FIRST + at).ok_or(DropReason::Malformed)?;
            let bytes = match next {
                HOP_BY_HOP if place > 0 => return Err(DropReason::Malformed),
                ROUTING if here.kind.get() == 0 => return Err(DropReason::SourceRoute),
                ROUTING => return Err(DropReason::UnsupportedProtocol),
                FRAGMENT if fragment != 0 => return Err(DropReason::UnsupportedProtocol),
                FRAGMENT => size_of::<FragmentHeader>(),
                _ => (usize::from(here.length.get()) + 1) * 8,
            };
            if at + bytes > MAX_BYTES {
                return Err(DropReason::UnsupportedProtocol);
            }
            let is_fragment = next == FRAGMENT;
            next = here.next_header.get();
            if is_fragment {
                fragment = at + 1;
                let header: &FragmentHeader =
                    packet.header(FIRST + at).ok_or(DropReason::Malformed)?;
                if header.offset() != 0 {
                    return Ok(Self::new(next, at + bytes, fragment));
                }
            }
            at += bytes;
        }
        Err(DropReason::UnsupportedProtocol)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Slice, *};

    /// An IPv6 packet with these extension headers, as number and bytes, and then `protocol` and `behind`.
    fn frame(headers: &[(u8, Vec<u8>)], protocol: u8, behind: &[u8]) -> Vec<u8> {
        let numbers: Vec<u8> = headers.iter().map(|(number, _)| *number).collect();
        let numbers = [&numbers[..], &[protocol]].concat();
        let mut bytes = vec![0; 54];
        bytes[20] = numbers[0];
        for ((_, header), next) in headers.iter().zip(&numbers[1..]) {
            let first = bytes.len();
            bytes.extend(header);
            bytes[first] = *next;
        }
        bytes.extend(behind);
        bytes
    }

    fn walk(mut bytes: Vec<u8>) -> Result<Chain, DropReason> {
        let packet = Slice::new(&mut bytes);
        Chain::walk(&packet, packet.header(14).unwrap())
    }

    /// Options of so many bytes.
    fn options(number: u8, bytes: usize) -> (u8, Vec<u8>) {
        let mut header = vec![0; bytes];
        header[1] = u8::try_from(bytes / 8 - 1).unwrap();
        (number, header)
    }

    /// A fragment header with this offset field.
    fn piece(field: u16) -> (u8, Vec<u8>) {
        let [high, low] = field.to_be_bytes();
        (FRAGMENT, vec![0, 0, high, low, 1, 2, 3, 4])
    }

    /// Protocol, bytes, and where the fragment header is.
    fn found(
        headers: &[(u8, Vec<u8>)],
        protocol: u8,
    ) -> Result<(u8, usize, Option<usize>), DropReason> {
        let chain = walk(frame(headers, protocol, &[]))?;
        assert_eq!(Chain::from_raw(chain.raw()), chain);
        assert!(chain.raw() < 1 << 24);
        assert_eq!(chain.end(), 54 + chain.bytes());
        Ok((chain.protocol(), chain.bytes(), chain.fragment_at()))
    }

    #[test]
    fn what_is_carried_is_passed_over() {
        assert_eq!(found(&[], 6), Ok((6, 0, None)));
        for (number, bytes) in [(HOP_BY_HOP, 8), (DESTINATION, 8), (DESTINATION, 248)] {
            assert_eq!(found(&[options(number, bytes)], 17), Ok((17, bytes, None)));
        }
        let all = [
            options(HOP_BY_HOP, 16),
            options(DESTINATION, 8),
            piece(0),
            options(DESTINATION, 24),
        ];
        assert_eq!(found(&all, 58), Ok((58, 56, Some(78))));
        assert_eq!(found(&[piece(1)], 6), Ok((6, 8, Some(54))), "a first one");
    }

    #[test]
    fn what_is_unknown_is_the_protocol() {
        // Authentication, ESP, no next header, mobility, HIP, shim6: whatever is in them.
        for protocol in [50, 51, 59, 135, 139, 140, 253, 255] {
            assert_eq!(found(&[], protocol), Ok((protocol, 0, None)));
            let behind = found(&[options(DESTINATION, 8)], protocol);
            assert_eq!(behind, Ok((protocol, 8, None)));
        }
    }

    #[test]
    fn what_goes_its_own_way_is_refused() {
        let routing = |kind| (ROUTING, vec![0, 0, kind, 1, 0, 0, 0, 0]);
        assert_eq!(found(&[routing(0)], 6), Err(DropReason::SourceRoute));
        for kind in [2, 3, 4, 255] {
            let found = found(&[routing(kind)], 6);
            assert_eq!(found, Err(DropReason::UnsupportedProtocol), "{kind}");
        }
        let behind = [options(DESTINATION, 8), routing(0)];
        assert_eq!(found(&behind, 6), Err(DropReason::SourceRoute));
    }

    #[test]
    fn behind_a_later_fragment_nothing_is_looked_at() {
        for field in [8, 9, 0xfff8] {
            let headers = [options(HOP_BY_HOP, 8), piece(field)];
            assert_eq!(found(&headers, 6), Ok((6, 16, Some(62))));
            // Even where a header's number stands there.
            assert_eq!(
                found(&headers, DESTINATION),
                Ok((DESTINATION, 16, Some(62)))
            );
            assert_eq!(found(&headers, ROUTING), Ok((ROUTING, 16, Some(62))));
        }
        let reserved = piece(6);
        assert_eq!(found(&[reserved], 6), Ok((6, 8, Some(54))), "no offset");
    }

    #[test]
    fn a_chain_has_an_end() {
        let unsupported = Err(DropReason::UnsupportedProtocol);
        let many = |count| vec![options(DESTINATION, 8); count];
        assert_eq!(found(&many(MAX_HEADERS - 1), 6), Ok((6, 64, None)));
        assert_eq!(found(&many(MAX_HEADERS), 6), unsupported);
        assert_eq!(found(&many(MAX_HEADERS + 5), 6), unsupported);
        let long = |first| [options(HOP_BY_HOP, first), options(DESTINATION, 128)];
        assert_eq!(found(&long(120), 6), Ok((6, 248, None)));
        assert_eq!(found(&long(128), 6), unsupported);
        assert_eq!(found(&[options(DESTINATION, 2048)], 6), unsupported);
        assert_eq!(found(&[piece(0), piece(0)], 6), unsupported);
        assert_eq!(
            found(&[piece(1), options(DESTINATION, 8), piece(0)], 6),
            unsupported
        );
    }

    #[test]
    fn a_chain_that_breaks_off_is_malformed() {
        let malformed = Err(DropReason::Malformed);
        let late = [options(DESTINATION, 8), options(HOP_BY_HOP, 8)];
        assert_eq!(
            found(&late, 6),
            malformed,
            "hop-by-hop options behind others"
        );
        let twice = [options(HOP_BY_HOP, 8), options(HOP_BY_HOP, 8)];
        assert_eq!(found(&twice, 6), malformed);
        let malformed = Err(DropReason::Malformed);
        for number in [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION] {
            for bytes in 0..4 {
                assert_eq!(walk(frame(&[], number, &vec![0; bytes])), malformed);
            }
        }
        // A fragment header is 8 bytes, whatever its second byte is.
        assert_eq!(
            walk(frame(&[], FRAGMENT, &[6, 9, 0, 0, 1, 2, 3])),
            malformed
        );
        assert!(walk(frame(&[], FRAGMENT, &[6, 9, 0, 0, 1, 2, 3, 4])).is_ok());
    }
}
