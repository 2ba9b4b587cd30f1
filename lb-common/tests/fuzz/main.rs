//! Any bytes at all: nothing panics, and what is refused is not touched.
//!
//! `cargo test` runs each target for a moment with random bytes, and for a minute with
//! `LB_TEST_LONG`; `cargo bolero test -p lb-common NAME` looks for new paths with libFuzzer.
#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

#[path = "../frames/mod.rs"]
#[expect(unreachable_pub, dead_code, reason = "a module of two test targets")]
mod frames;

mod flow_line;
mod fragment;
mod icmp;
mod ipv6;
mod options;

use std::{
    panic::RefUnwindSafe,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bolero::{check, generator::produce};
use frames::{Parts, is_bare, long, parsed, sums, translation, tuple, without_hops};
use lb_common::{
    csum_partial, mss, nat,
    reject::{
        self,
        v4::{ERROR_BYTES, ICMP_BYTES, IcmpError, RESET_BYTES},
    },
    wire::{Packet as _, Slice, checksum::full, tagging},
};

/// Most bytes of an input.
const LONGEST: usize = 256;

/// Runs a target on frames that come of bytes: as they are, or with a header that lets them further in.
fn each_frame(then: impl Fn(&[u8], &mut Vec<u8>) -> bool + RefUnwindSafe) {
    each_input(|how, rest| {
        let mut frame = rest.to_vec();
        lead_in(how, &mut frame);
        then(rest, &mut frame)
    });
}

/// Runs a target on bytes, the first of which selects what to make of the others. The target returns whether
/// they got as far as what it is about: enough of them must.
fn each_input(then: impl Fn(u8, &[u8]) -> bool + RefUnwindSafe) {
    // Without a length of its own a list has 64 bytes at most, which is no error and its quote.
    let bytes = produce::<Vec<u8>>().with().len(0..LONGEST);
    let target = check!().with_generator(bytes).with_max_len(2 * LONGEST);
    let target = if long() {
        target.with_test_time(Duration::from_secs(60))
    } else {
        target.with_iterations(20_000)
    };
    let reached = AtomicU32::new(0);
    target.for_each(|input: &Vec<u8>| {
        if let [how, rest @ ..] = &input[..] {
            reached.fetch_add(u32::from(then(*how, rest)), Ordering::Relaxed);
        }
    });
    let reached = reached.into_inner();
    assert!(reached >= 50, "{reached} got far enough");
}

/// Makes the headers of a frame more likely to be taken, by the bits of `how`.
fn lead_in(how: u8, frame: &mut [u8]) {
    let length = u16::try_from(frame.len()).expect("a short frame");
    let Some([ethernet @ .., protocol]) = frame.get_mut(..24) else {
        return;
    };
    if how & 1 != 0 {
        ethernet[12..14].copy_from_slice(&[8, 0]);
        ethernet[14] = if how & 2 == 0 {
            0x45
        } else {
            0x40 | ethernet[14] & 15
        };
        ethernet[20] &= 0x40;
        ethernet[21] = 0;
    }
    if how & 4 != 0 {
        ethernet[16..18].copy_from_slice(&(length - 14).to_be_bytes());
    }
    *protocol = [*protocol, 6, 17, 17][usize::from(how >> 3 & 3)];
    let l4 = 14 + usize::from(frame[14] & 15) * 4;
    match frame.get_mut(l4..l4 + 20) {
        Some(tcp) if how & 0x20 != 0 && how >> 3 & 3 == 1 => tcp[12] |= 0x50,
        Some(udp) if how & 0x20 != 0 => {
            let rest = usize::from(length).saturating_sub(l4);
            udp[4..6].copy_from_slice(&u16::try_from(rest).unwrap_or(0).to_be_bytes());
        }
        _ => {}
    }
}

#[test]
fn parse() {
    each_frame(|_, frame| {
        let packet = Slice::new(frame);
        if let Some(ethernet) = packet.header(0) {
            let _ = tagging(&packet, ethernet);
        }
        let before = frame.clone();
        let room = frame.len();
        let found = parsed(frame, |_, frame| (frame.payload, frame.l4.protocol()));
        assert_eq!(*frame, before);
        if let Ok((payload, protocol)) = found {
            let Parts { l4, end, .. } = Parts::of(frame);
            assert!(end <= room && matches!(protocol, 6 | 17));
            let header = if protocol == 17 {
                8
            } else {
                usize::from(frame[l4 + 12] >> 4) * 4
            };
            let total = 14 + usize::from(frames::word(frame, 16));
            assert_eq!(total - l4 - header, usize::from(payload));
        }
        found.is_ok()
    });
}

#[test]
fn nat() {
    each_frame(|input, frame| {
        let Some(to) = input.first_chunk() else {
            return false;
        };
        let before = frame.clone();
        let Ok(first) = parsed(frame, |_, frame| {
            let first = tuple(frame);
            nat::translate(frame, &translation(*to));
            first
        }) else {
            assert_eq!(*frame, before);
            return false;
        };
        // Right stays right, wrong stays wrong by as much.
        let bare = is_bare(&before);
        let ((ip, l4), (ip_before, l4_before)) = (sums(frame), sums(&before));
        assert_eq!(ip % 0xffff, ip_before % 0xffff);
        assert!(bare || l4 % 0xffff == l4_before % 0xffff);
        assert_eq!(is_bare(frame), bare);
        parsed(frame, |_, frame| nat::translate(frame, &first)).expect("a frame as before");
        let at = Parts::of(frame).checksum;
        let mut again = without_hops(frame);
        let mut wanted = without_hops(&before);
        let checksum = |bytes: &[u8]| frames::word(bytes, at);
        assert_eq!(checksum(&again) % 0xffff, checksum(&wanted) % 0xffff);
        again[at..at + 2].fill(0);
        wanted[at..at + 2].fill(0);
        assert_eq!(again, wanted);
        true
    });
}

#[test]
fn segment_size() {
    each_frame(|input, frame| {
        let known = parsed(frame, |_, frame| frame.l4.protocol()) == Ok(6);
        let l4 = if known { Parts::of(frame).l4 } else { 0 };
        let list = l4 + 20
            ..l4 + frame
                .get(l4 + 12)
                .map_or(0, |byte| usize::from(byte >> 4) * 4);
        if let (true, Some([kind, length, ..])) = (known, frame.get_mut(list.clone())) {
            // Otherwise there would hardly ever be one.
            *kind = [2, 2, 1, 3][usize::from(*kind & 3)];
            *length = [4, 4, 4, *length & 7][usize::from(*length >> 6)];
        }
        let before = frame.clone();
        let most = input
            .first_chunk()
            .map_or(0, |most| u16::from_be_bytes(*most) >> 4);
        let written = mss::clamp(&Slice::new(frame), most);
        assert_eq!(written.is_some(), *frame != before);
        if known {
            let found = frames::options::segment_size(&before[list.clone()]);
            let larger = found.filter(|at| frames::word(&before, list.start + at) > most);
            assert_eq!(written.is_some(), larger.is_some());
            assert_eq!(sums(frame).1 % 0xffff, sums(&before).1 % 0xffff);
        }
        known && written.is_some()
    });
}

#[test]
fn partial_checksum() {
    each_frame(|input, frame| {
        let keep = input.first().is_some_and(|byte| byte & 1 != 0);
        let before = frame.clone();
        let state = csum_partial::complete(&Slice::new(frame), keep);
        let whole = parsed(frame, |_, frame| !frame.ip.is_fragment());
        if whole != Ok(true) {
            return false;
        }
        assert_ne!(state, csum_partial::TOO_LONG);
        if *frame != before {
            assert_eq!((state, sums(frame).1), (csum_partial::WHOLE, 0));
        }
        if state == csum_partial::OPEN {
            parsed(frame, |_, frame| csum_partial::reopen(frame)).expect("a frame as before");
            assert_eq!(*frame, before, "nothing was translated");
        }
        true
    });
}

#[test]
fn answers() {
    each_frame(|_, frame| {
        let ok = parsed(frame, |packet, frame| {
            (
                reject::v4::is_quotable(frame),
                reject::v4::reset(packet, frame),
            )
        });
        match ok {
            Ok((_, Some(()))) => {
                assert_eq!(full(&frame[14..34], 0).raw(), 0);
                assert_eq!(sums(&frame[..RESET_BYTES]), (0, 0));
            }
            Ok((true, None)) => {
                let mut room = vec![0; ICMP_BYTES];
                room.extend_from_slice(frame);
                let error = IcmpError::too_big(u16::from_be_bytes([frame[0], frame[1]]));
                reject::v4::error(&Slice::new(&mut room), error).expect("a quotable frame");
                let room = &room[..ERROR_BYTES];
                assert_eq!(full(&room[14..34], 0).raw(), 0);
                assert_eq!(full(&room[34..], 0).raw(), 0);
            }
            Ok((false, None)) | Err(_) => return false,
        }
        true
    });
}
