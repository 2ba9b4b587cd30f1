//! Fragments of IPv6 packets (RFC 8200 section 4.5), made of whole ones.

use std::ops::Range;

use super::{ETHERNET, Extension, IPV6, L4, number};

/// Which fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Identification of the packet.
    pub id: u32,
    /// Its bytes, counted from behind the IPv6 header of the whole packet.
    pub bytes: Range<usize>,
    /// Whether it says that more follow.
    pub more: bool,
}

/// A fragment of a whole frame, which has no padding: everything behind its IPv6 header may be cut.
#[must_use]
pub fn cut(whole: &[u8], cut: &Cut) -> Vec<u8> {
    let Cut { id, bytes, more } = cut;
    let units = u16::try_from(bytes.start / 8).expect("an offset below 64 KiB");
    let header = Extension::Fragment {
        field: units << 3 | u16::from(*more),
        id: *id,
    };
    let header = header.bytes(whole[ETHERNET + 6]);
    let part = &whole[L4 + bytes.start..L4 + bytes.end];
    let length = u16::try_from(header.len() + part.len()).expect("a small fragment");

    let mut fragment = whole[..ETHERNET + IPV6].to_vec();
    fragment[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&length.to_be_bytes());
    fragment[ETHERNET + 6] = number::FRAGMENT;
    fragment.extend(header);
    fragment.extend(part);
    fragment
}

/// All fragments of a whole frame that is cut at these places.
#[must_use]
pub fn pieces(whole: &[u8], id: u32, places: &[usize]) -> Vec<Vec<u8>> {
    let total = whole.len() - L4;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{packet::udp, six::read};

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
}
