//! The same of IPv6: what is updated is what would be computed anew, and what is answered has the checksum of
//! what stands there.

use lb_common::{
    addr::{Be16, Be128},
    csum_partial, mss,
    nat::{self, Translation},
    reject::{
        self,
        v6::{ICMP6_BYTES, Icmp6Error, RESET6_BYTES},
    },
    wire::{Slice, checksum::full, header::RST},
};

use crate::{
    every,
    frames::{
        self,
        ipv6::{
            DESTINATION, HEADERS, HOPS, Parts, SOURCE, parsed, readdress, seal, sum, translation,
            tuple,
        },
    },
    spread::Spread,
};

/// Hands so many packets on.
fn every_packet(seed: u64, mut then: impl FnMut(&mut Spread, Vec<u8>)) {
    every(seed, |spread| {
        let frame = spread.frame6();
        then(spread, frame);
    });
}

/// Translates a frame; gives its tuple before.
pub(crate) fn translate(bytes: &mut [u8], to: &Translation<Be128>) -> Translation<Be128> {
    let translated = parsed(bytes, |_, frame| {
        let before = tuple(frame);
        nat::translate6(frame, to);
        before
    });
    translated.unwrap()
}

/// The tuple with another destination port: one with which the checksum comes out as zero.
fn summing_to_zero(frame: &[u8], mut to: Translation<Be128>) -> Translation<Be128> {
    let mut frame = frame.to_vec();
    to.destination_port = Be16::default();
    readdress(&mut frame, &to);
    to.destination_port = Be16::new(frames::word(&frame, Parts::of(&frame).checksum));
    to
}

#[test]
fn a_translated_packet_has_the_checksum_of_one_made_so() {
    let mut zeros = 0;
    every_packet(20, |spread, before| {
        let mut to = translation(spread.bytes());
        if spread.one_in(64) {
            to = summing_to_zero(&before, to);
        }
        let mut bytes = before.clone();
        translate(&mut bytes, &to);
        let mut anew = before.clone();
        anew[HOPS] -= 1;
        readdress(&mut anew, &to);
        assert_eq!(bytes, anew, "from {before:02x?}");
        let sum = frames::word(&bytes, Parts::of(&bytes).checksum);
        zeros += u32::from(matches!(sum, 0 | 0xffff));
    });
    assert!(zeros > 1000, "{zeros} checksums came out as zero");
}

/// reverse(translate(p)) == p, but for the hops.
#[test]
fn the_reverse_translation_gives_the_packet_back() {
    every_packet(21, |spread, mut before| {
        let mut bytes = before.clone();
        let first = translate(&mut bytes, &translation(spread.bytes()));
        translate(&mut bytes, &first);
        before[HOPS] -= 2;
        assert_eq!(bytes, before);
        assert_eq!(sum(&bytes), 0);
    });
}

/// A segment size is found where it stands behind any extension headers.
#[test]
fn a_clamped_segment_size_keeps_the_checksum_right() {
    let mut written = 0;
    every_packet(22, |spread, before| {
        let Parts { l4, protocol, .. } = Parts::of(&before);
        if protocol == 17 {
            return;
        }
        let most = frames::word(&spread.bytes::<2>(), 0);
        let most = most >> (most & 15);
        let list = &before[l4 + 20..l4 + usize::from(before[l4 + 12] >> 4) * 4];
        let found = frames::options::segment_size(list).map(|at| l4 + 20 + at);
        let mut bytes = before.clone();
        let said = mss::clamp_at(&Slice::new(&mut bytes), l4, most);
        let mut wanted = before;
        let larger = found.filter(|&at| frames::word(&wanted, at) > most);
        assert_eq!(said.is_some(), larger.is_some());
        if let Some(at) = larger {
            written += 1;
            frames::put(&mut wanted, at, most);
            seal(&mut wanted);
        }
        assert_eq!(bytes, wanted);
    });
    assert!(written > 10_000, "{written} sizes were written down");
}

/// What a stack leaves to the interface becomes what it would have computed itself.
#[test]
fn an_open_checksum_becomes_the_computed_one() {
    every_packet(23, |spread, mut sealed| {
        if spread.one_in(64) {
            let to = summing_to_zero(&sealed, translation(spread.bytes()));
            readdress(&mut sealed, &to);
        }
        let Parts {
            protocol,
            l4,
            checksum,
            ..
        } = Parts::of(&sealed);
        let mut open = sealed.clone();
        // Not inverted: `full` inverts what it is given.
        let pseudo = !full(&[], frames::ipv6::pseudo(&sealed)).get();
        frames::put(&mut open, checksum, pseudo);
        let whole = csum_partial::complete6(&Slice::new(&mut open), protocol, l4, false);
        assert_eq!(whole, csum_partial::WHOLE);
        assert_eq!(open, sealed);
    });
}

/// The ends of a frame, as they stand in an answer to it.
fn turned(before: &[u8]) -> Vec<u8> {
    let macs = [&before[6..12], &before[..6], &[0x86, 0xdd]].concat();
    let ends = [&before[DESTINATION..][..16], &before[SOURCE..][..16]].concat();
    [macs, ends].concat()
}

#[test]
fn a_reset_has_the_checksum_of_what_stands_there() {
    let mut answered = 0;
    every_packet(24, |_, before| {
        let mut bytes = before.clone();
        let made = parsed(&mut bytes, |packet, frame| reject::v6::reset(packet, frame));
        let Parts { protocol, l4, .. } = Parts::of(&before);
        let is_from_one = before[6] & 1 == 0 && !frames::ipv6::address(&before, SOURCE).is_bogon();
        let wanted = protocol == 6 && before[l4 + 13] & RST == 0 && is_from_one;
        assert_eq!(made.unwrap().is_some(), wanted);
        if wanted {
            answered += 1;
            bytes.truncate(RESET6_BYTES);
            assert_eq!(
                [&bytes[..14], &bytes[SOURCE..HEADERS]].concat(),
                turned(&before)
            );
            assert_eq!((sum(&bytes), Parts::of(&bytes).l4), (0, HEADERS));
        } else {
            assert_eq!(bytes, before);
        }
    });
    assert!(answered > 10_000, "{answered} were answered");
}

#[test]
fn an_error_has_the_checksum_of_what_it_quotes() {
    let mut answered = 0;
    every_packet(25, |spread, mut before| {
        let error = match spread.below(3) {
            0 => Icmp6Error::PORT_UNREACHABLE,
            1 => Icmp6Error::TIME_EXCEEDED,
            _ => Icmp6Error::too_big(u32::from_be_bytes(spread.bytes())),
        };
        let quotable = parsed(&mut before, |_, frame| {
            reject::v6::is_quotable(frame, error)
        });
        if !quotable.unwrap() {
            return;
        }
        answered += 1;
        let mut bytes = [spread.data(ICMP6_BYTES), before.clone()].concat();
        reject::v6::error(&Slice::new(&mut bytes), error).expect("a quotable frame");
        bytes.truncate(error.frame_bytes());
        assert_eq!(
            [&bytes[..14], &bytes[SOURCE..HEADERS]].concat(),
            turned(&before)
        );
        assert_eq!(sum(&bytes), 0);
        let quoted = &bytes[HEADERS + 8..];
        assert_eq!(quoted, &before[14..][..quoted.len()]);
        // With eight bytes of layer 4 at least: by these the sender finds its socket.
        assert!(Parts::of(&before).l4 + 8 - 14 <= quoted.len());
    });
    assert!(answered > 10_000, "{answered} were answered");
}
