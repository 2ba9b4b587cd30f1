//! Splices: a segment becomes what one with the other connection's numbers would have been.

use lb_common::{
    addr::Be16,
    maps::splice::Numbers,
    splice::{opening, translate},
    wire::{Slice, checksum::full},
};

use crate::{
    every,
    frames::{Parts, is_udp, pseudo, put, seal, word},
    spread::Spread,
};

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Bytes of options, as senders make them and in any other order, with a mistake here and there.
fn list(spread: &mut Spread, bytes: usize) -> Vec<u8> {
    let mut list = Vec::new();
    if spread.below(4) == 0 && bytes >= 12 {
        list.extend([1, 1, 8, 10]);
        list.extend(spread.data(8));
        if let Some(blocks) = bytes.checked_sub(16).filter(|_| spread.below(4) > 0) {
            list.extend([1, 1, 5, u8::try_from(2 + blocks / 8 * 8).unwrap()]);
            list.extend(spread.data(blocks / 8 * 8));
        }
    }
    while list.len() < bytes {
        let room = bytes - list.len();
        let [any] = spread.bytes();
        let (kind, length) = match spread.below(16) {
            0..6 => (1, 1),
            6 => (0, 1),
            7..10 => (8, 10),
            10..13 => (5, 2 + 8 * (1 + spread.below(4))),
            13 => (3, 3),
            14 if spread.below(2) == 0 => (2, 2 + spread.below(4)),
            14 => (254, 2 + spread.below(9)),
            _ => (any, 2 + spread.below(40)),
        };
        // What does not fit, and an early end, only now and then.
        if (length > room || kind == 0 && room > 3) && !spread.one_in(16) {
            continue;
        }
        list.push(kind);
        if length > 1 {
            let lie = spread.one_in(64);
            list.push(if lie {
                any
            } else {
                u8::try_from(length).unwrap()
            });
            list.extend(spread.data(length - 2));
        }
    }
    list.truncate(bytes);
    list
}

/// A segment with such a list.
fn segment(spread: &mut Spread) -> Vec<u8> {
    loop {
        let mut bytes = spread.frame();
        if !is_udp(&bytes) {
            let options = options_of(&bytes);
            let list = list(spread, options.len());
            bytes[options].copy_from_slice(&list);
            // Half of them are bare acknowledgments.
            let flags = Parts::of(&bytes).l4 + 13;
            if spread.below(2) == 0 {
                bytes[flags] = ACK;
            }
            seal(&mut bytes);
            return bytes;
        }
    }
}

fn options_of(bytes: &[u8]) -> std::ops::Range<usize> {
    let l4 = Parts::of(bytes).l4;
    l4 + 20..l4 + usize::from(bytes[l4 + 12] >> 4) * 4
}

fn number(spread: &mut Spread) -> u32 {
    u32::from_be_bytes(spread.bytes())
}

fn numbers(spread: &mut Spread) -> Numbers {
    Numbers {
        sequence: number(spread),
        time: number(spread),
        scale: u16::try_from(spread.below(15)).unwrap(),
        promised: u16::try_from(spread.below(15)).unwrap(),
    }
}

/// Those that undo it, of windows that stay.
fn inverse(numbers: &Numbers) -> Numbers {
    Numbers {
        sequence: numbers.sequence.wrapping_neg(),
        time: numbers.time.wrapping_neg(),
        ..*numbers
    }
}

fn add(bytes: &mut [u8], number: u32) {
    let sum = u32::from_be_bytes(bytes.try_into().unwrap()).wrapping_add(number);
    bytes.copy_from_slice(&sum.to_be_bytes());
}

/// The list with other numbers, if it is whole: the sender's clock, its echo, the edges of blocks.
fn renumbered(list: &[u8], time: u32, echo: u32, edge: u32) -> Option<Vec<u8>> {
    let (option, rest) = match list {
        [] | [0, ..] => return Some(list.to_vec()),
        [1, ..] => list.split_at(1),
        [_, length, ..] if *length >= 2 => list.split_at_checked(usize::from(*length))?,
        _ => return None,
    };
    let mut option = option.to_vec();
    match (option[0], option.len()) {
        (8, 10) => {
            add(&mut option[2..6], time);
            add(&mut option[6..], echo);
        }
        (5, 10 | 18 | 26 | 34) => option[2..].chunks_mut(4).for_each(|it| add(it, edge)),
        (5 | 8, _) => return None,
        _ => {}
    }
    option.extend(renumbered(rest, time, echo, edge)?);
    Some(option)
}

/// The segment as one with other numbers would have been made.
fn made(before: &[u8], own: &Numbers, other: &Numbers) -> Option<Vec<u8>> {
    let (mut bytes, l4) = (before.to_vec(), Parts::of(before).l4);
    let edge = other.sequence.wrapping_neg();
    let mut echo = 0;
    add(&mut bytes[l4 + 4..l4 + 8], own.sequence);
    if bytes[l4 + 13] & ACK != 0 {
        add(&mut bytes[l4 + 8..l4 + 12], edge);
        echo = other.time.wrapping_neg();
    }
    if bytes[l4 + 13] & SYN == 0 {
        let window = u64::from(word(&bytes, l4 + 14)) << own.scale >> own.promised;
        put(
            &mut bytes,
            l4 + 14,
            u16::try_from(window).unwrap_or(u16::MAX),
        );
    }
    let options = options_of(before);
    let list = renumbered(&before[options.clone()], own.time, echo, edge)?;
    bytes[options].copy_from_slice(&list);
    seal(&mut bytes);
    Some(bytes)
}

/// To the bit, the checksum too; and a list that is broken leaves everything as it was.
#[test]
fn a_translated_segment_is_the_one_made_with_the_other_numbers() {
    let mut found = [0; 2];
    every(40, |spread| {
        let before = segment(spread);
        let (own, other) = (numbers(spread), numbers(spread));
        let wanted = made(&before, &own, &other);
        found[usize::from(wanted.is_some())] += 1;
        let mut bytes = before.clone();
        let said = translate(&Slice::new(&mut bytes), &own, &other, false);
        assert_eq!(said.is_some(), wanted.is_some(), "{before:02x?}");
        assert_eq!(bytes, wanted.unwrap_or(before));
    });
    assert!(found.iter().all(|&times| times > 5000), "{found:?}");
}

/// There and, with the numbers that undo it, back.
#[test]
fn a_segment_is_translated_back_to_itself() {
    let mut there = 0;
    every(41, |spread| {
        let before = segment(spread);
        let still = |numbers| Numbers {
            scale: 0,
            promised: 0,
            ..numbers
        };
        let (own, other) = (still(numbers(spread)), still(numbers(spread)));
        let mut bytes = before.clone();
        if translate(&Slice::new(&mut bytes), &own, &other, false).is_some() {
            there += 1;
            let mut sealed = bytes.clone();
            seal(&mut sealed);
            assert_eq!(bytes, sealed, "from {before:02x?}");
            let (own, other) = (inverse(&own), inverse(&other));
            let back = translate(&Slice::new(&mut bytes), &own, &other, false);
            assert_eq!(back, Some(()));
        }
        assert_eq!(bytes, before);
    });
    assert!(there > 50_000, "{there} segments went there");
}

/// What a stack leaves to the interface is left to it still, and it computes the same.
#[test]
fn an_open_checksum_stays_through_a_translation() {
    every(42, |spread| {
        let sealed = segment(spread);
        let (own, other) = (numbers(spread), numbers(spread));
        let at = Parts::of(&sealed).checksum;
        let mut open = sealed.clone();
        // Not inverted: `full` inverts what it is given.
        let sum = Be16::new(!full(&[], pseudo(&sealed)).get());
        put(&mut open, at, sum.get());
        let said = translate(&Slice::new(&mut open), &own, &other, true);
        assert_eq!(word(&open, at), sum.get());
        seal(&mut open);
        assert_eq!(said.is_some(), made(&sealed, &own, &other).is_some());
        assert_eq!(open, made(&sealed, &own, &other).unwrap_or(sealed));
    });
}

/// The last timestamp and the last segment size of a list that is whole, as a receiver reads it; nothing if a
/// size has another length than it has.
fn last_said(list: &[u8]) -> Option<(Option<u32>, Option<u16>)> {
    match list {
        [] | [0, ..] => Some((None, None)),
        [2, length, ..] if *length != 4 => None,
        [1, rest @ ..] => last_said(rest),
        [kind, length, ..] => {
            let (option, rest) = list.split_at(usize::from(*length));
            let (time, mss) = last_said(rest)?;
            let own = |wanted: u8, bytes: usize| (*kind == wanted).then(|| &option[2..2 + bytes]);
            let own_time = || own(8, 4).map(|time| u32::from_be_bytes(time.try_into().unwrap()));
            let own_mss = || own(2, 2).map(|mss| u16::from_be_bytes(mss.try_into().unwrap()));
            Some((time.or_else(own_time), mss.or_else(own_mss)))
        }
        [_] => unreachable!("an option without length: {list:?}"),
    }
}

#[test]
fn what_a_syn_ack_says_is_found_where_it_stands() {
    let (mut times, mut sizes) = (0, 0);
    every(43, |spread| {
        let mut bytes = segment(spread);
        let list = bytes[options_of(&bytes)].to_vec();
        let wanted = renumbered(&list, 0, 0, 0).and_then(|list| {
            let (time, mss) = last_said(&list)?;
            times += u32::from(time.is_some());
            sizes += u32::from(mss.is_some());
            Some((time, mss.unwrap_or(536)))
        });
        let said = opening(&Slice::new(&mut bytes));
        assert_eq!(said.map(|said| (said.time, said.mss)), wanted, "{list:?}");
    });
    assert!(times > 10_000, "{times} timestamps were found");
    assert!(sizes > 1000, "{sizes} segment sizes were found");
}
