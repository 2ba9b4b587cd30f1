//! Which bytes of a datagram have passed, and whether one more fragment may.
//!
//! No byte passes twice: what a fragment could overwrite at the receiver has been judged by the first one
//! (RFC 3128). Fragments may come with one hole at a time, so that a pair that was swapped on the way gets
//! through; a sender whose fragments come in greater disorder must send the datagram again.

use network_types::ip::IpProto;

use crate::{
    maps::flow::TIME_SHIFT,
    verdict::DropReason,
    wire::{
        Chain, Packet,
        header::{FRAGMENT_OFFSET, FragmentHeader, Ipv4, Ipv6, MORE_FRAGMENTS},
        ipv4_lengths, ipv6_length,
    },
};

/// How long fragments may follow the first one, in units of coarse time: 30 s, after which receivers
/// have given the datagram up (RFC 1122 section 3.3.2; Linux).
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
pub const LIFETIME: u32 = (30_000_000_000u64 >> TIME_SHIFT) as u32;

/// Identifications that a CPU takes at a time. With blocks of one count no two datagrams have the same
/// one until 65,536, less a block for each CPU, have passed; and the count is no write that all CPUs
/// share for each datagram.
pub const BLOCK: u32 = 64;

/// Largest datagram with its header (RFC 791 section 3.1).
const LARGEST: usize = 65_535;

/// A fragment other than the first: the part of its datagram's payload, in units of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First unit.
    pub from: u64,
    /// Unit behind its last one; the last fragment may not fill it.
    pub to: u64,
    /// Whether others follow.
    pub more: bool,
}

impl Piece {
    /// Reads a fragment.
    ///
    /// # Errors
    ///
    /// `Malformed` where a length lies or the datagram would be too long, `Fragment` for anything but
    /// TCP and UDP, `FragmentTiny` for an empty one or one behind which no other can follow.
    #[inline(always)]
    pub fn read<P: Packet>(packet: &P, ip: &Ipv4) -> Result<Self, DropReason> {
        let (header_bytes, total) = ipv4_lengths(packet, ip)?;
        let protocol = ip.protocol.get();
        if protocol != IpProto::Tcp as u8 && protocol != IpProto::Udp as u8 {
            return Err(DropReason::Fragment);
        }
        let field = ip.fragment.get().get();
        let more = field & MORE_FRAGMENTS != 0;
        let from = usize::from(field & FRAGMENT_OFFSET);
        if from * 8 + total > LARGEST {
            return Err(DropReason::Malformed);
        }
        Self::new(from, total - header_bytes, more)
    }

    /// Reads a fragment of IPv6, whose fragment header this is.
    ///
    /// # Errors
    ///
    /// `Malformed` and `FragmentTiny` as for IPv4.
    #[inline(always)]
    pub fn read6<P: Packet>(
        packet: &P,
        ip: &Ipv6,
        chain: Chain,
        header: &FragmentHeader,
    ) -> Result<Self, DropReason> {
        let payload = ipv6_length(packet, ip)?;
        // Behind a later fragment's header nothing is looked at.
        let bytes = payload
            .checked_sub(chain.bytes())
            .ok_or(DropReason::Malformed)?;
        let from = usize::from(header.offset());
        if from * 8 + bytes > LARGEST {
            return Err(DropReason::Malformed);
        }
        Self::new(from, bytes, header.more())
    }

    #[inline(always)]
    fn new(from: usize, bytes: usize, more: bool) -> Result<Self, DropReason> {
        if bytes == 0 || more && !bytes.is_multiple_of(8) {
            return Err(DropReason::FragmentTiny);
        }
        Ok(Self {
            from: from as u64,
            to: (from + bytes.div_ceil(8)) as u64,
            more,
        })
    }
}

/// What has passed of a datagram, in one word: everything below its highest end but for one hole.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extents(u64);

/// Bits of a number of units: up to 8192.
const BITS: u32 = 14;
const MASK: u64 = (1 << BITS) - 1;
const END: u32 = 0;
const HOLE_FROM: u32 = BITS;
const HOLE_TO: u32 = 2 * BITS;
const LAST: u64 = 1 << (3 * BITS);

impl Extents {
    /// Bits of the word.
    pub const BITS: u32 = 3 * BITS + 1;

    /// After a first fragment with this many bytes behind its IP header, a multiple of 8.
    #[inline(always)]
    pub const fn first(bytes: u64) -> Self {
        Self(((bytes / 8) & MASK) << END)
    }

    /// From the word in the record.
    #[inline(always)]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The word for the record.
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    const fn part(self, shift: u32) -> u64 {
        self.0 >> shift & MASK
    }

    #[inline(always)]
    const fn new(end: u64, hole_from: u64, hole_to: u64, last: u64) -> Self {
        let (hole_from, hole_to) = if hole_from < hole_to {
            (hole_from, hole_to)
        } else {
            (0, 0)
        };
        Self(end << END | hole_from << HOLE_FROM | hole_to << HOLE_TO | last)
    }

    /// After one more fragment.
    ///
    /// # Errors
    ///
    /// `FragmentOverlap` if it has bytes that have passed already, or is not inside the datagram whose
    /// end is known: then no more of it may pass. `FragmentEarly` if it would leave a second hole.
    #[inline(always)]
    pub const fn add(self, piece: &Piece) -> Result<Self, DropReason> {
        let Piece { from, to, more } = *piece;
        let (end, hole_from, hole_to) = (self.part(END), self.part(HOLE_FROM), self.part(HOLE_TO));
        let last = self.0 & LAST;
        if from >= end {
            if last != 0 {
                return Err(DropReason::FragmentOverlap);
            }
            let last = if more { 0 } else { LAST };
            return if from == end {
                Ok(Self::new(to, hole_from, hole_to, last))
            } else if hole_to == 0 {
                Ok(Self::new(to, end, from, last))
            } else {
                Err(DropReason::FragmentEarly)
            };
        }
        if from < hole_from || to > hole_to || !more {
            Err(DropReason::FragmentOverlap)
        } else if from == hole_from {
            Ok(Self::new(end, to, hole_to, last))
        } else if to == hole_to {
            Ok(Self::new(end, hole_from, from, last))
        } else {
            Err(DropReason::FragmentEarly)
        }
    }

    /// Whether the whole datagram has passed.
    #[inline(always)]
    pub const fn is_complete(self) -> bool {
        self.0 & LAST != 0 && self.part(HOLE_TO) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::wire::Slice;

    const OVERLAP: Result<bool, DropReason> = Err(DropReason::FragmentOverlap);
    const EARLY: Result<bool, DropReason> = Err(DropReason::FragmentEarly);

    fn piece(from: u64, to: u64, more: bool) -> Piece {
        Piece { from, to, more }
    }

    /// Adds pieces behind a first one of 10 units; whether the datagram is complete with the last.
    fn pass(pieces: &[(u64, u64, bool)]) -> Result<bool, DropReason> {
        let mut extents = Extents::first(80);
        for &(from, to, more) in pieces {
            extents = extents.add(&piece(from, to, more))?;
        }
        Ok(extents.is_complete())
    }

    #[test]
    fn a_datagram_is_complete_with_its_last_fragment() {
        assert_eq!(pass(&[]), Ok(false));
        assert_eq!(pass(&[(10, 20, true)]), Ok(false));
        assert_eq!(pass(&[(10, 20, false)]), Ok(true));
        assert_eq!(pass(&[(10, 20, true), (20, 25, false)]), Ok(true));
        assert_eq!(pass(&[(10, 8192, false)]), Ok(true), "the largest");
    }

    #[test]
    fn one_hole_may_be_filled_from_either_end() {
        let (b, c, d) = ((10, 20, true), (20, 30, true), (30, 35, false));
        for order in [
            [b, c, d],
            [b, d, c],
            [c, b, d],
            [d, b, c],
            [d, c, b],
            [c, d, b],
        ] {
            assert_eq!(pass(&order), Ok(true), "{order:?}");
            assert_eq!(pass(&order[..2]), Ok(false), "{order:?}");
        }
        // A second hole when the first one is filled.
        assert_eq!(
            pass(&[c, b, (40, 50, true), (30, 40, true), (50, 51, false)]),
            Ok(true)
        );
    }

    #[test]
    fn a_second_hole_is_early() {
        assert_eq!(pass(&[(20, 30, true), (40, 50, true)]), EARLY);
        assert_eq!(
            pass(&[(40, 50, true), (20, 30, true)]),
            EARLY,
            "in the middle of the hole"
        );
    }

    #[test]
    fn no_byte_passes_twice() {
        for again in [(1, 10, true), (9, 11, true), (1, 2, false), (9, 20, false)] {
            assert_eq!(pass(&[again]), OVERLAP, "the first fragment, {again:?}");
        }
        for again in [
            (10, 20, true),
            (15, 16, true),
            (19, 21, true),
            (12, 30, false),
            (10, 20, false),
        ] {
            assert_eq!(pass(&[(10, 20, true), again]), OVERLAP, "{again:?}");
        }
        // A hole from 10 to 20, and 20 to 30 behind it.
        for again in [
            (9, 12, true),
            (18, 21, true),
            (9, 21, true),
            (20, 30, true),
            (29, 31, true),
        ] {
            assert_eq!(pass(&[(20, 30, true), again]), OVERLAP, "{again:?}");
        }
        // What filled the hole's start is no hole any more.
        assert_eq!(
            pass(&[(20, 30, true), (10, 14, true), (13, 20, true)]),
            OVERLAP
        );
        assert_eq!(
            pass(&[(20, 30, true), (16, 20, true), (10, 17, true)]),
            OVERLAP
        );
    }

    #[test]
    fn nothing_comes_behind_the_end() {
        let (hole, last) = ((20, 30, true), (20, 30, false));
        assert_eq!(pass(&[last, (30, 40, true)]), OVERLAP);
        assert_eq!(pass(&[last, (30, 40, false)]), OVERLAP);
        assert_eq!(pass(&[last, (10, 20, false)]), OVERLAP, "two ends");
        assert_eq!(
            pass(&[hole, (10, 20, false)]),
            OVERLAP,
            "an end before what was there"
        );
    }

    /// Random fragments against a set of the units that have passed.
    #[test]
    fn what_passes_is_what_a_set_of_units_says() {
        let mut state = 0x9e37_79b9_u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut complete = 0;
        for _ in 0..100_000 {
            let mut extents = Extents::first(16);
            let mut passed: BTreeSet<u64> = [0, 1].into();
            let mut end = None;
            for _ in 0..6 {
                let from = 1 + random(7);
                let part = piece(from, from + 1 + random(3), random(3) != 0);
                let units = part.from..part.to;
                match extents.add(&part) {
                    Ok(next) => {
                        extents = next;
                        assert!(units.clone().all(|unit| passed.insert(unit)), "{part:?}");
                        end = if part.more { end } else { Some(part.to) };
                    }
                    Err(DropReason::FragmentOverlap) => {
                        let highest = passed.last().map_or(0, |unit| unit + 1);
                        let twice = units.clone().any(|unit| passed.contains(&unit));
                        let behind = end.is_some_and(|end| part.from >= end);
                        let another_end = !part.more && part.to < highest;
                        assert!(twice || behind || another_end, "{part:?} {passed:?}");
                        break;
                    }
                    Err(reason) => {
                        assert_eq!(reason, DropReason::FragmentEarly);
                        assert!(units.clone().all(|unit| !passed.contains(&unit)));
                    }
                }
                let highest = passed.last().map_or(0, |unit| unit + 1);
                let whole = end == Some(highest) && passed.len() as u64 == highest;
                assert_eq!(extents.is_complete(), whole, "{passed:?} {end:?}");
                assert!(
                    end.is_none_or(|end| end == highest),
                    "nothing behind the end"
                );
                complete += u32::from(whole);
                if whole {
                    break;
                }
            }
        }
        assert!(complete > 1000, "{complete} datagrams were complete");
    }

    /// A frame with an IP header of `words` words whose fields are `total`, `field` and `protocol`, and
    /// `bytes` behind it.
    fn read(
        words: u8,
        total: u16,
        field: u16,
        protocol: u8,
        bytes: usize,
    ) -> Result<Piece, DropReason> {
        let mut frame = vec![0; 14 + usize::from(words) * 4 + bytes];
        frame[14] = 0x40 | words;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        frame[23] = protocol;
        let packet = Slice::new(&mut frame);
        Piece::read(&packet, packet.header(14).unwrap())
    }

    #[test]
    fn a_fragment_says_where_its_bytes_belong() {
        assert_eq!(read(5, 36, 0x2001, 17, 16), Ok(piece(1, 3, true)));
        assert_eq!(read(5, 36, 0x2001, 6, 30), Ok(piece(1, 3, true)), "padding");
        assert_eq!(
            read(6, 40, 0x6001, 6, 16),
            Ok(piece(1, 3, true)),
            "options, DF"
        );
        assert_eq!(
            read(5, 37, 185, 17, 17),
            Ok(piece(185, 188, false)),
            "the last one"
        );
    }

    #[test]
    fn fragments_that_lie_do_not_pass() {
        let malformed = Err(DropReason::Malformed);
        let tiny = Err(DropReason::FragmentTiny);
        assert_eq!(
            read(5, 37, 0x2001, 17, 16),
            malformed,
            "longer than the frame"
        );
        assert_eq!(read(4, 37, 0x2001, 17, 30), malformed, "a short header");
        assert_eq!(read(5, 35, 0x2001, 17, 16), tiny, "no other can follow");
        assert_eq!(read(5, 20, 0x2001, 17, 16), tiny, "empty");
        assert_eq!(read(5, 20, 1, 17, 16), tiny, "empty");
        assert_eq!(read(5, 28, 0x2001, 1, 8), Err(DropReason::Fragment), "ICMP");
        // 8189 units and a header are 65,532 bytes.
        assert_eq!(read(5, 23, 8189, 17, 3), Ok(piece(8189, 8190, false)));
        assert_eq!(read(5, 24, 8189, 17, 4), malformed);
        assert_eq!(read(5, 28, 0x3fff, 17, 8), malformed);
    }
}
