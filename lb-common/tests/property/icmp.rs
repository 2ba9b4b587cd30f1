//! ICMP: an error becomes the one that the other end would have got about its own packet, and an echo
//! request its reply.

use lb_common::nat::Translation;

use crate::{
    every,
    frames::{
        self, DESTINATION, ETHERNET, Parts, SOURCE, TTL,
        icmp::{self, Quoted},
        is_udp, parsed, readdress, seal, translation, tuple,
    },
    spread::Spread,
};

/// An error about a packet that we had sent, and what it must become.
struct Told {
    bytes: Vec<u8>,
    /// Made of the packet as its first sender had sent it.
    wanted: Vec<u8>,
    /// The tuple of that packet, and of the one that we had sent.
    to: Translation,
    back: Translation,
}

/// An ICMP message from somewhere to `ends`, its checksums right.
fn message(spread: &mut Spread, ends: [u8; 8], head: [u8; 8], body: &[u8]) -> Vec<u8> {
    let options = spread.option_bytes();
    let total = u16::try_from(20 + options + head.len() + body.len()).unwrap();
    let mut bytes: Vec<u8> = spread.bytes::<12>().to_vec();
    bytes.extend([8, 0, 0x45 + u8::try_from(options / 4).unwrap(), 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend(spread.bytes::<2>());
    bytes.extend([u8::try_from(spread.below(2)).unwrap() << 6, 0]);
    bytes.extend([u8::try_from(3 + spread.below(253)).unwrap(), 1, 0, 0]);
    bytes.extend(ends);
    bytes.extend(spread.data(options));
    bytes.extend(head);
    bytes.extend(body);
    icmp::seal(&mut bytes);
    let padding = spread.below(24);
    bytes.extend(spread.data(padding));
    bytes
}

/// An error that quotes as much as some router quotes.
fn error(spread: &mut Spread) -> Told {
    let mut sent = spread.frame();
    let to = parsed(&mut sent, |_, frame| tuple(frame)).unwrap();
    let back = translation(spread.bytes());
    let mut ours = sent.clone();
    readdress(&mut ours, &back);
    let [hops] = spread.bytes();
    for bytes in [&mut sent, &mut ours] {
        bytes[TTL] = hops;
        seal(bytes);
    }
    let (l4, end) = (
        Parts::of(&ours).l4,
        ETHERNET + usize::from(frames::word(&ours, 16)),
    );
    let length = match spread.below(3) {
        0 => end - l4,
        1 => 8,
        _ => 8 + spread.below(end - l4 - 7),
    };
    if !is_udp(&ours) && length == 17 {
        // Half a checksum is not updated.
        sent[l4 + 16] = ours[l4 + 16];
    }
    let extension = spread.data(if length == end - l4 { 20 } else { 0 });
    let quote = |bytes: &[u8]| [&bytes[ETHERNET..l4 + length], &extension].concat();
    let [kind, code, high, low] = spread.bytes();
    let head = [
        [3, 11, 12][usize::from(kind % 3)],
        code % 16,
        0,
        0,
        0,
        0,
        high,
        low,
    ];
    let mut ends = spread.bytes::<8>();
    ends[4..].copy_from_slice(&ours[SOURCE..][..4]);
    let bytes = message(spread, ends, head, &quote(&ours));

    let mut wanted = bytes.clone();
    let body = icmp::Parts::of(&bytes).icmp + icmp::HEADER;
    let quote = quote(&sent);
    wanted[body..][..quote.len()].copy_from_slice(&quote);
    wanted[TTL] -= 1;
    wanted[SOURCE..][..4].copy_from_slice(&sent[DESTINATION..][..4]);
    wanted[DESTINATION..][..4].copy_from_slice(&sent[SOURCE..][..4]);
    icmp::seal(&mut wanted);
    Told {
        bytes,
        wanted,
        to,
        back,
    }
}

fn translate(bytes: &mut [u8], to: &Translation) {
    let translated = icmp::parsed(bytes, |packet, message| {
        let quote = message.quote(packet)?;
        message.translate(packet, &quote, to, 0);
        Ok(())
    });
    translated.unwrap();
}

/// To the bit: every checksum is the one that would be computed anew, a datagram without one stays so,
/// and nothing is left of the side that the error came from.
#[test]
fn a_translated_error_is_the_error_about_the_packet_before_its_translation() {
    every(10, |spread| {
        let Told {
            mut bytes,
            wanted,
            to,
            ..
        } = error(spread);
        let before = bytes.clone();
        translate(&mut bytes, &to);
        assert_eq!(bytes, wanted, "from {before:02x?}");
    });
}

/// There and back it is as it was, but for the hops, and for its source.
#[test]
fn the_reverse_translation_gives_the_error_back() {
    every(11, |spread| {
        let Told {
            mut bytes,
            to,
            back,
            ..
        } = error(spread);
        let mut wanted = bytes.clone();
        wanted[TTL] -= 2;
        wanted[SOURCE..][..4].copy_from_slice(&back.destination.get().to_be_bytes());
        frames::seal_header(&mut wanted);
        translate(&mut bytes, &to);
        translate(&mut bytes, &back);
        assert_eq!(bytes, wanted);
    });
}

/// A receiver that verifies it finds out, as it would have without us.
#[test]
fn a_wrong_checksum_in_an_error_stays_wrong_by_as_much() {
    every(12, |spread| {
        let Told { mut bytes, to, .. } = error(spread);
        let Quoted { ip, checksum, .. } = Quoted::of(&bytes);
        let message = icmp::Parts::of(&bytes).icmp + 2;
        for at in [
            Some(frames::IP_CHECKSUM),
            Some(message),
            Some(ip + 10),
            checksum,
        ] {
            if let Some(at) = at.filter(|_| spread.one_in(2)) {
                bytes[at..at + 2].copy_from_slice(&spread.bytes::<2>());
            }
        }
        let before = (icmp::sums(&bytes), Quoted::sums(&bytes));
        translate(&mut bytes, &to);
        assert_eq!((icmp::sums(&bytes), Quoted::sums(&bytes)), before);
    });
}

#[test]
fn an_echo_request_becomes_its_reply() {
    every(13, |spread| {
        let [a, b, c, d] = spread.bytes();
        let (ends, length) = (spread.bytes(), spread.below(100));
        let data = spread.data(length);
        let mut bytes = message(spread, ends, [8, 0, 0, 0, a, b, c, d], &data);
        let mut wanted = bytes.clone();
        for (at, length) in [(0, 6), (SOURCE, 4)] {
            let (first, second) = wanted[at..at + 2 * length].split_at_mut(length);
            first.swap_with_slice(second);
        }
        wanted[TTL] = 64;
        let at = icmp::Parts::of(&bytes).icmp;
        wanted[at] = 0;
        icmp::seal(&mut wanted);
        let mut wrong = bytes.clone();
        wrong[at + 2..at + 4].copy_from_slice(&spread.bytes::<2>());
        let before = icmp::sums(&wrong);
        answer(&mut wrong);
        assert_eq!(icmp::sums(&wrong), before, "wrong by as much");
        answer(&mut bytes);
        assert_eq!(bytes, wanted);
    });
}

fn answer(bytes: &mut [u8]) {
    icmp::parsed(bytes, |_, message| {
        message.answer();
        Ok(())
    })
    .unwrap();
}
