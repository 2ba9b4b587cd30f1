//! Fragments of packets (RFC 791, RFC 8200 section 4.5), made of whole ones.

use std::ops::Range;

use lb_common::wire::checksum::full;

use super::six::{ETHERNET, Extension, IPV6, number};

/// More fragments follow, of IPv4.
const MORE: u16 = 0x2000;
/// The flags of IPv4 that a sender gives all fragments of a packet.
const KEPT: u16 = 0xc000;

/// Which fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Identification of the packet: 16 bits of IPv4, 32 of IPv6.
    pub id: u32,
    /// Its bytes, counted from behind the IP header of the whole packet.
    pub bytes: Range<usize>,
    /// Whether it says that more follow.
    pub more: bool,
}

/// A fragment of a whole frame, which has no padding: everything behind its IP header may be cut.
#[must_use]
pub fn cut(whole: &[u8], cut: &Cut) -> Vec<u8> {
    let l4 = l4(whole);
    let part = &whole[l4 + cut.bytes.start..l4 + cut.bytes.end];
    let units = u16::try_from(cut.bytes.start / 8).expect("an offset below 64 KiB");
    let mut fragment = whole[..l4].to_vec();
    if is_v6(whole) {
        let header = Extension::Fragment {
            field: units << 3 | u16::from(cut.more),
            id: cut.id,
        };
        let header = header.bytes(whole[ETHERNET + 6]);
        let length = u16::try_from(header.len() + part.len()).expect("a small fragment");
        fragment[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
        fragment[ETHERNET + 6] = number::FRAGMENT;
        fragment.extend(header);
        fragment.extend(part);
    } else {
        let length = u16::try_from(l4 - ETHERNET + part.len()).expect("a small fragment");
        let id = u16::try_from(cut.id).expect("16 bits");
        let kept = u16::from_be_bytes([whole[20], whole[21]]) & KEPT;
        let field = kept | if cut.more { MORE } else { 0 } | units;
        fragment[16..18].copy_from_slice(&length.to_be_bytes());
        fragment[18..20].copy_from_slice(&id.to_be_bytes());
        fragment[20..22].copy_from_slice(&field.to_be_bytes());
        fragment.extend(part);
        seal(&mut fragment);
    }
    fragment
}

/// All fragments of a whole frame that is cut at these places.
#[must_use]
pub fn pieces(whole: &[u8], id: u32, places: &[usize]) -> Vec<Vec<u8>> {
    let total = whole.len() - l4(whole);
    let begins = [0].into_iter().chain(places.iter().copied());
    let ends = places.iter().copied().chain([total]);
    let piece = |(begin, end)| {
        let piece = Cut {
            id,
            bytes: begin..end,
            more: end < total,
        };
        cut(whole, &piece)
    };
    begins.zip(ends).map(piece).collect()
}

/// Writes the checksum of an IPv4 header anew; IPv6 has none.
pub fn seal(frame: &mut [u8]) {
    if is_v6(frame) {
        return;
    }
    let l4 = l4(frame);
    frame[24..26].fill(0);
    let sum = full(&frame[ETHERNET..l4], 0);
    frame[24..26].copy_from_slice(&sum.get().to_be_bytes());
}

/// Offset of what follows the IP header and its options.
fn l4(frame: &[u8]) -> usize {
    ETHERNET
        + if is_v6(frame) {
            IPV6
        } else {
            usize::from(frame[ETHERNET] & 15) * 4
        }
}

fn is_v6(frame: &[u8]) -> bool {
    frame[12..ETHERNET] == [0x86, 0xdd]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{
        packet::udp,
        six::{L4, read},
    };

    #[test]
    fn pieces_put_together_are_the_whole() {
        let whole = udp("[fd00::1]:1000", "[fd00::2]:53")
            .payload(&[7; 100])
            .bytes();
        let pieces = pieces(&whole, 0xabcd_1234, &[48, 96]);
        let mut segment: Vec<u8> = Vec::new();
        for (piece, more) in pieces.iter().zip([true, true, false]) {
            let read = read(piece).expect("IPv6");
            let field = u16::try_from(segment.len()).expect("small") | u16::from(more);
            assert_eq!(read.fragment, Some((field, 0xabcd_1234)));
            assert_eq!((read.protocol, read.is_piece()), (number::UDP, true));
            segment.extend(read.segment);
        }
        assert_eq!(segment, whole[L4..]);
    }

    #[test]
    fn pieces_of_ipv4_say_where_they_belong() {
        let whole = udp("10.0.0.1:1000", "10.0.0.2:53")
            .payload(&[7; 100])
            .options(&[1; 4])
            .bytes();
        let pieces = pieces(&whole, 0xabcd, &[48, 96]);
        let mut segment: Vec<u8> = Vec::new();
        // "Don't fragment" as the sender had it, and whether more follow.
        for (piece, flags) in pieces.iter().zip([0x6000, 0x6000, 0x4000]) {
            assert_eq!(full(&piece[14..38], 0).raw(), 0);
            let field = flags | u16::try_from(segment.len() / 8).expect("small");
            assert_eq!(piece[18..22], [[0xab, 0xcd], field.to_be_bytes()].concat());
            let length = u16::try_from(piece.len() - 14).expect("small");
            assert_eq!(piece[16..18], length.to_be_bytes());
            segment.extend(&piece[38..]);
        }
        assert_eq!(segment, whole[38..]);
    }
}
