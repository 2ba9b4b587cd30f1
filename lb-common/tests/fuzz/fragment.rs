//! Fragments out of any bytes.

use lb_common::{
    fragment::{Extents, Piece},
    nat,
    verdict::DropReason,
    wire::{Packet as _, Slice, checksum::full},
};

use crate::{
    each_frame, each_input,
    frames::{
        pieces::{Passed, read},
        put, translation, word,
    },
};

#[test]
fn fragment_headers() {
    each_frame(|input, frame| {
        if let (Some(&[.., flags, offset]), true) = (input.first_chunk::<4>(), frame.len() >= 34) {
            // Some at the end of what fits.
            put(frame, 20, u16::from_be_bytes([flags & 0x3f, offset]));
        }
        let before = frame.clone();
        let found = read(frame);
        assert_eq!(*frame, before);
        let Ok(piece) = found else {
            return false;
        };
        let header = usize::from(frame[14] & 15) * 4;
        let (total, field) = (usize::from(word(frame, 16)), word(frame, 20));
        assert!(14 + total <= frame.len());
        let bytes = total - header;
        let from = usize::from(field) % 0x2000 * 8;
        assert!(from + total <= 65_535);
        let more = field & 0x2000 != 0;
        assert!(!more || bytes % 8 == 0);
        let units = [piece.from, piece.to].map(|unit| usize::try_from(unit).unwrap());
        assert_eq!(units, [from / 8, (from + bytes).div_ceil(8)]);
        assert!(units[0] < units[1] && piece.more == more);

        let Some(to) = input.first_chunk().map(|bytes| translation(*bytes)) else {
            return false;
        };
        let packet = Slice::new(frame);
        let ip = packet.header(14).unwrap();
        nat::renumber(ip, to.source_port);
        let _addresses = nat::translate_header(ip, to.source, to.destination);
        // Right stays right, and nothing but the header changes.
        let left = |frame: &[u8]| full(&frame[14..14 + header], 0).get() % 0xffff;
        assert_eq!(left(frame), left(&before));
        assert_eq!((&frame[..14], &frame[34..]), (&before[..14], &before[34..]));
        true
    });
}

/// The result is the model's, in whatever order the fragments come.
#[test]
fn fragment_extents() {
    each_input(|how, input| {
        let first = 1 + u32::from(how % 4);
        let mut passed = Passed::first(first);
        let mut extents = Extents::first(u64::from(first) * 8);
        for &[from, what] in input.as_chunks().0 {
            let from = 1 + u32::from(from % 32);
            let to = from + 1 + u32::from(what % 8);
            let more = what & 0xe0 != 0;
            let piece = Piece {
                from: u64::from(from),
                to: u64::from(to),
                more,
            };
            let next = extents.add(&piece);
            let said = passed.add(from, to, more);
            assert_eq!(next.map(Extents::is_complete), said);
            match next {
                Ok(next) => extents = next,
                Err(DropReason::FragmentEarly) => {}
                Err(_) => return true,
            }
            if said == Ok(true) {
                return true;
            }
        }
        false
    });
}

/// A record that was recycled while it is read may hold anything.
#[test]
fn fragment_records() {
    each_input(|_, input| {
        let (Some(raw), Some(piece)) = (input.first_chunk(), input.last_chunk()) else {
            return false;
        };
        let [a, b, c, d] = *piece;
        let from = u64::from(u16::from_be_bytes([a, b]) % 0x2000);
        let piece = Piece {
            from,
            to: from + 1 + u64::from(c),
            more: d & 1 != 0,
        };
        let raw = u64::from_ne_bytes(*raw);
        let _complete = Extents::first(raw).is_complete();
        let _said = Extents::from_raw(raw).add(&piece).map(Extents::is_complete);
        true
    });
}
