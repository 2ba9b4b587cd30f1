//! Fragments: a datagram passes once, in any order that leaves one hole at a time.

use lb_common::{
    fragment::{Extents, Piece},
    nat,
    verdict::DropReason,
    wire::{Packet as _, Slice},
};

use crate::{
    every,
    frames::{
        self, DESTINATION, SOURCE, TTL,
        pieces::{self, Passed},
        translation,
    },
    spread::Spread,
};

/// Units of the largest datagram whose header has 60 bytes.
const LARGEST: usize = (65_535 - 60) / 8;

/// A datagram that is cut: what is behind its first fragment, and where the cuts are.
struct Datagram {
    /// Units before the first fragment's last ones, which the model does not look at.
    base: usize,
    /// Units of the first fragment behind those.
    first: usize,
    data: Vec<u8>,
    /// Unit and bytes of each fragment.
    cuts: Vec<(usize, Vec<u8>)>,
}

fn datagram(spread: &mut Spread) -> Datagram {
    let first = 1 + spread.below(8);
    let units = 1 + spread.below(40);
    let bytes = units * 8 - spread.below(8);
    let most = LARGEST - first - units;
    let base = match spread.below(3) {
        0 => 0,
        1 => most,
        _ => spread.below(most),
    };
    let data = spread.data(bytes);
    let mut cuts = Vec::new();
    let mut from = 0;
    while from < units {
        let to = (from + 1 + spread.below(10)).min(units);
        let part = &data[from * 8..bytes.min(to * 8)];
        cuts.push((base + first + from, part.to_vec()));
        from = to;
    }
    Datagram {
        base,
        first,
        data,
        cuts,
    }
}

/// The receiver, which has every byte at most once.
struct Receiver {
    extents: Extents,
    passed: Passed,
    base: usize,
    first: usize,
    bytes: Vec<Option<u8>>,
}

impl Receiver {
    fn of(datagram: &Datagram) -> Self {
        let Datagram { base, first, .. } = *datagram;
        Self {
            extents: Extents::first(u64::try_from((base + first) * 8).unwrap()),
            passed: Passed::first(u32::try_from(first).unwrap()),
            base,
            first,
            bytes: Vec::new(),
        }
    }

    /// The result for a fragment, which must be the model's as well; it is received if it passes.
    fn take(&mut self, piece: &Piece, data: &[u8]) -> Result<bool, DropReason> {
        let relative = |unit: u64| u32::try_from(unit).unwrap() - u32::try_from(self.base).unwrap();
        let (from, to) = (relative(piece.from), relative(piece.to));
        let said = self.passed.add(from, to, piece.more);
        let next = self.extents.add(piece);
        assert_eq!(next.map(Extents::is_complete), said, "{piece:?}");
        self.extents = next?;
        let at = (usize::try_from(from).unwrap() - self.first) * 8;
        let end = self.bytes.len().max(at + data.len());
        self.bytes.resize(end, None);
        for (place, &byte) in self.bytes[at..].iter_mut().zip(data) {
            assert_eq!(place.replace(byte), None, "a byte that passed already");
        }
        said
    }
}

/// Makes the frame of a fragment and reads it.
fn piece(spread: &mut Spread, (from, data): &(usize, Vec<u8>), more: bool) -> Piece {
    let source = translation(spread.bytes()).source;
    let mut bytes = pieces::frame(source, spread.option_bytes(), *from, more, data);
    let padding = spread.below(3) * 8;
    bytes.extend(spread.data(padding));
    let piece = pieces::read(&mut bytes).unwrap();
    let units = data.len().div_ceil(8);
    let wanted = [*from, from + units].map(|unit| u64::try_from(unit).unwrap());
    assert_eq!(([piece.from, piece.to], piece.more), (wanted, more));
    piece
}

/// Neighbours that were swapped on the way are no reason to lose a datagram.
#[test]
fn a_datagram_passes_with_its_neighbours_swapped() {
    every(20, |spread| {
        let datagram = datagram(spread);
        let mut order: Vec<usize> = (0..datagram.cuts.len()).collect();
        for pair in order.chunks_mut(2) {
            if spread.one_in(2) {
                pair.reverse();
            }
        }
        let mut receiver = Receiver::of(&datagram);
        for (sent, &index) in order.iter().enumerate() {
            let cut = &datagram.cuts[index];
            let piece = piece(spread, cut, index + 1 < order.len());
            let complete = receiver.take(&piece, &cut.1);
            assert_eq!(complete, Ok(sent + 1 == order.len()), "{order:?}");
        }
        let received: Option<Vec<u8>> = receiver.bytes.into_iter().collect();
        assert_eq!(received, Some(datagram.data));
    });
}

/// Any order, some fragments twice, and some that another sender forged: what passes has no byte twice and
/// one hole, and it is complete when every byte has passed.
#[test]
fn no_byte_passes_twice_and_no_second_hole_is_left() {
    let mut found = [0; 4];
    every(21, |spread| {
        let datagram = datagram(spread);
        let mut sent: Vec<(usize, bool)> = (0..datagram.cuts.len()).map(|at| (at, true)).collect();
        if spread.one_in(2) {
            sent.push((spread.below(sent.len()), false));
        }
        for last in (1..sent.len()).rev() {
            sent.swap(last, spread.below(last + 1));
        }
        let mut receiver = Receiver::of(&datagram);
        for (index, genuine) in sent {
            let (mut from, mut data) = datagram.cuts[index].clone();
            let mut more = index + 1 < datagram.cuts.len();
            if !genuine {
                // The same once more, or anything nearby.
                from += spread.below(3);
                from -= spread.below(9).min(from - datagram.base - 1);
                from = from.min(LARGEST - 1);
                data.resize(8 * (1 + spread.below(6)).min(LARGEST - from), 0);
                more = !spread.one_in(4);
            }
            let cut = (from, data);
            let piece = piece(spread, &cut, more);
            let said = receiver.take(&piece, &cut.1);
            found[match said {
                Ok(false) => 0,
                Ok(true) => 1,
                Err(DropReason::FragmentEarly) => 2,
                Err(_) => 3,
            }] += 1;
            let holes = receiver.bytes.chunk_by(|a, b| a.is_some() == b.is_some());
            let holes = holes.filter(|run| run[0].is_none()).count();
            assert!(holes <= 1);
            match said {
                Ok(true) => {
                    assert_eq!(holes, 0);
                    break;
                }
                Err(DropReason::FragmentOverlap) => break,
                Ok(false) | Err(_) => {}
            }
        }
    });
    assert!(found.iter().all(|&times| times > 5000), "{found:?}");
}

/// A fragment without ports has the IP header of one made so, and its bytes.
#[test]
fn a_translated_fragment_has_the_checksum_of_one_made_so() {
    every(22, |spread| {
        let data = spread.below(64) * 8 + 8;
        let data = spread.data(data);
        let source = translation(spread.bytes()).source;
        let from = 1 + spread.below(8000);
        let mut bytes = pieces::frame(source, spread.option_bytes(), from, true, &data);
        let mut anew = bytes.clone();
        let to = translation(spread.bytes());
        let packet = Slice::new(&mut bytes);
        let ip = packet.header(14).unwrap();
        nat::renumber(ip, to.source_port);
        let _addresses = nat::translate_header(ip, to.source, to.destination);
        frames::put(&mut anew, 18, to.source_port.get());
        anew[TTL] -= 1;
        anew[SOURCE..][..4].copy_from_slice(&to.source.get().to_be_bytes());
        anew[DESTINATION..][..4].copy_from_slice(&to.destination.get().to_be_bytes());
        frames::seal_header(&mut anew);
        assert_eq!(bytes, anew);
    });
}
