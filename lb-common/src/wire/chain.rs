//! chain: the extension headers between an IPv6 header and layer 4 (RFC 8200 section 4).
//!
//! Carried as they are: hop-by-hop and destination options, and the fragment header. Everything else stops a
//! packet here, because what is behind it cannot be judged: routing headers go where their sender wants
//! (RFC 5095), and of others nobody knows the length.

use super::{
    Packet,
    header::{Ethernet, Extension, FragmentHeader, Ipv6},
};
use crate::verdict::DropReason;

/// Extension headers that are looked at.
const MOST_HEADERS: usize = 9;
/// Most bytes of all of them.
const MOST_BYTES: usize = 255;
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
    #[expect(clippy::cast_possible_truncation, reason = "at most MOST_BYTES")]
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
        for place in 0..MOST_HEADERS {
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
            if at + bytes > MOST_BYTES {
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
