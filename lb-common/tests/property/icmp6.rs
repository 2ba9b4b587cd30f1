//! ICMPv6, as ICMP.

use lb_common::{addr::Be128, nat::Translation};

use crate::{
    every,
    frames::{
        icmp6::{self, Quoted},
        ipv6::{
            DESTINATION, HEADERS, HOPS, Parts, SOURCE, octets, parsed, readdress, seal, sum,
            translation, tuple,
        },
        put,
    },
    spread::Spread,
};

/// An error about a packet that we had sent, and what it must become.
struct Told {
    bytes: Vec<u8>,
    /// Made of the packet as its first sender had sent it.
    wanted: Vec<u8>,
    /// The tuple of that packet, and of the one that we had sent.
    to: Translation<Be128>,
    back: Translation<Be128>,
}

/// An ICMPv6 message from somewhere to `ends`, its checksum right.
fn message(spread: &mut Spread, extensions: bool, ends: [u8; 32], message: &[u8]) -> Vec<u8> {
    let extensions = if extensions {
        spread.extensions(58)
    } else {
        (58, Vec::new())
    };
    let hops = u8::try_from(3 + spread.below(253)).unwrap();
    let mut bytes = spread.packet6(extensions, hops, message);
    bytes[SOURCE..HEADERS].copy_from_slice(&ends);
    seal(&mut bytes);
    let padding = spread.below(24);
    bytes.extend(spread.data(padding));
    bytes
}

/// A packet that may be quoted: with a fragment header at most.
fn sent(spread: &mut Spread) -> Vec<u8> {
    loop {
        let frame = spread.frame6();
        let has_other = matches!(frame[20], 0 | 60) || frame[20] == 44 && frame[HEADERS] == 60;
        if !has_other {
            return frame;
        }
    }
}

/// An error that quotes as much as some router quotes.
fn error(spread: &mut Spread) -> Told {
    let mut sent = sent(spread);
    let to = parsed(&mut sent, |_, frame| tuple(frame)).unwrap();
    let back = translation(spread.bytes());
    let mut ours = sent.clone();
    readdress(&mut ours, &back);
    let [hops] = spread.bytes();
    for bytes in [&mut sent, &mut ours] {
        bytes[HOPS] = hops;
    }
    let Parts {
        l4, end, protocol, ..
    } = Parts::of(&ours);
    let length = match spread.below(3) {
        0 => end - l4,
        1 => 8,
        _ => 8 + spread.below(end - l4 - 7),
    };
    if protocol == 6 && length == 17 {
        // Half a checksum is not updated.
        sent[l4 + 16] = ours[l4 + 16];
    }
    let extension = spread.data(if length == end - l4 { 20 } else { 0 });
    let [kind, code, high, low] = spread.bytes();
    let head = [1 + kind % 4, code % 16, 0, 0, 0, 0, high, low];
    let body = |bytes: &[u8]| [&head[..], &bytes[14..l4 + length], &extension].concat();
    let mut ends = spread.bytes::<32>();
    ends[16..].copy_from_slice(&octets(back.source));
    let bytes = message(spread, true, ends, &body(&ours));

    let mut wanted = bytes.clone();
    let at = Parts::of(&bytes).l4;
    let body = body(&sent);
    wanted[at..][..body.len()].copy_from_slice(&body);
    wanted[HOPS] -= 1;
    wanted[SOURCE..][..16].copy_from_slice(&octets(to.destination));
    wanted[DESTINATION..][..16].copy_from_slice(&octets(to.source));
    seal(&mut wanted);
    Told {
        bytes,
        wanted,
        to,
        back,
    }
}

fn translate(bytes: &mut [u8], to: &Translation<Be128>) {
    let translated = icmp6::parsed(bytes, |packet, message| {
        let quote = message.quote(packet)?;
        message.translate(packet, &quote, to);
        Ok(())
    });
    translated.unwrap();
}

/// To the bit: every checksum is the one that would be computed anew, and nothing is left of the side that
/// the error came from.
#[test]
fn a_translated_error_is_the_error_about_the_packet_before_its_translation() {
    every(30, |spread| {
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
    every(31, |spread| {
        let Told {
            mut bytes,
            to,
            back,
            ..
        } = error(spread);
        let mut wanted = bytes.clone();
        wanted[HOPS] -= 2;
        wanted[SOURCE..][..16].copy_from_slice(&octets(back.destination));
        seal(&mut wanted);
        translate(&mut bytes, &to);
        translate(&mut bytes, &back);
        assert_eq!(bytes, wanted);
    });
}

/// A receiver that verifies it finds out, as it would have without us.
#[test]
fn a_wrong_checksum_in_an_error_stays_wrong_by_as_much() {
    every(32, |spread| {
        let Told { mut bytes, to, .. } = error(spread);
        let message = Parts::of(&bytes).checksum;
        for at in [Some(message), Quoted::of(&bytes).checksum] {
            if let Some(at) = at.filter(|_| spread.one_in(2)) {
                bytes[at..at + 2].copy_from_slice(&spread.bytes::<2>());
            }
        }
        let before = (sum(&bytes) % 0xffff, Quoted::sum(&bytes));
        translate(&mut bytes, &to);
        assert_eq!((sum(&bytes) % 0xffff, Quoted::sum(&bytes)), before);
    });
}

#[test]
fn an_echo_request_becomes_its_reply() {
    every(33, |spread| {
        let [a, b, c, d] = spread.bytes();
        let (ends, length) = (spread.bytes(), spread.below(100));
        let data = spread.data(length);
        let body = [&[128, 0, 0, 0, a, b, c, d], &data[..]].concat();
        let mut bytes = message(spread, false, ends, &body);
        let mut wanted = bytes.clone();
        for (at, length) in [(0, 6), (SOURCE, 16)] {
            let (first, second) = wanted[at..at + 2 * length].split_at_mut(length);
            first.swap_with_slice(second);
        }
        wanted[HOPS] = 64;
        wanted[HEADERS] = 129;
        seal(&mut wanted);
        let mut wrong = bytes.clone();
        put(&mut wrong, HEADERS + 2, u16::from_be_bytes(spread.bytes()));
        let before = sum(&wrong) % 0xffff;
        answer(&mut wrong);
        assert_eq!(sum(&wrong) % 0xffff, before, "wrong by as much");
        answer(&mut bytes);
        assert_eq!(bytes, wanted);
    });
}

fn answer(bytes: &mut [u8]) {
    icmp6::parsed(bytes, |_, message| {
        message.answer();
        Ok(())
    })
    .unwrap();
}
