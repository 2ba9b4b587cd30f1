//! IPv6 out of any bytes: extension headers, packets, ICMPv6, answers.

use std::panic::RefUnwindSafe;

use lb_common::{
    csum_partial,
    icmp::Kind,
    nat::{self, Translation},
    reject::{
        self,
        v6::{ICMP6_BYTES, Icmp6Error, RESET6_BYTES},
    },
    verdict::DropReason,
    wire::{Chain, Packet as _, Slice},
};

use crate::{
    each_input,
    frames::{
        icmp6::{self, Quoted},
        ipv6::{
            DESTINATION, HEADERS, HOPS, LENGTH, NEXT, Parts, SOURCE, parsed, sum, translation,
            tuple, walked,
        },
        put, word,
    },
    icmp::changed,
};

/// Runs a target on frames that come of bytes: as they are, or, by the bits of the first byte, with headers
/// that let them further in, and the last of which is `protocol` or one that is often.
fn each_frame(protocol: Option<u8>, then: impl Fn(&[u8], &mut Vec<u8>) -> bool + RefUnwindSafe) {
    each_input(|how, input| {
        let mut frame = input.to_vec();
        lead_in(how, protocol, &mut frame);
        then(input, &mut frame)
    });
}

fn lead_in(how: u8, protocol: Option<u8>, frame: &mut [u8]) {
    let Ok(room @ 40..) = u16::try_from(frame.len().saturating_sub(14)) else {
        return;
    };
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    if how & 1 == 0 {
        return;
    }
    frame[14] = 0x60 | frame[14] & 15;
    put(
        frame,
        LENGTH,
        (room - 40).saturating_sub(u16::from(how >> 1 & 3)),
    );
    let protocol = protocol.unwrap_or(if how & 8 == 0 { 6 } else { 17 });
    let l4 = extend(how >> 4 & 3, protocol, frame);
    match frame.get_mut(l4..) {
        Some([kind, code, ..]) if protocol == 58 => {
            if how & 0x80 != 0 {
                (*kind, *code) = (128, *code & 1);
                return;
            }
            *kind = [1, 2, 3, 4][usize::from(*kind & 3)];
            quote(how, frame, l4 + 8);
        }
        Some(rest) if rest.len() >= 20 => {
            let length = u16::try_from(rest.len()).expect("a short frame");
            if protocol == 17 {
                put(rest, 4, length - u16::from(how >> 1 & 3));
                rest[7] |= 1;
            } else {
                rest[12] |= 0x50;
            }
        }
        _ => {}
    }
}

/// Makes the first bytes behind the IPv6 header so many short extension headers; where layer 4 begins.
fn extend(many: u8, protocol: u8, frame: &mut [u8]) -> usize {
    let mut l4 = HEADERS;
    let mut next = NEXT;
    for place in 0..many {
        let Some(header) = frame.get_mut(l4..l4 + 8) else {
            break;
        };
        let number = [60, 44, 60, 0][usize::from(header[7] & if place == 0 { 3 } else { 1 })];
        header[1] &= 1;
        header[2] = 0;
        header[3] &= 7;
        let units = if number == 44 {
            1
        } else {
            1 + usize::from(header[1])
        };
        frame[next] = number;
        next = l4;
        l4 += 8 * units;
    }
    if let Some(next) = frame.get_mut(next) {
        *next = protocol;
    }
    l4
}

/// Makes what is at `at` the quote of a packet.
fn quote(how: u8, frame: &mut [u8], at: usize) {
    if let Some(quote) = frame.get_mut(at..at + 48) {
        quote[0] = 0x60 | quote[0] & 15;
        quote[6] = [6, 17, 44, quote[6]][usize::from(how >> 5 & 3)];
        quote[40] = if quote[6] == 44 { 6 } else { quote[40] };
        quote[42] &= u8::from(quote[6] != 44).wrapping_neg();
        quote[43] &= if quote[6] == 44 { 7 } else { 0xff };
    }
}

/// The walk finds what one finds that reads header by header.
#[test]
fn extension_headers() {
    each_frame(None, |_, frame| {
        let before = frame.clone();
        let packet = Slice::new(frame);
        let Some(ip) = packet.header(14) else {
            return false;
        };
        let chain = Chain::walk(&packet, ip);
        let model = walked(&before);
        assert_eq!(
            chain.map(Chain::protocol),
            model.map(|walked| walked.protocol)
        );
        assert_eq!(chain.map(Chain::end), model.map(|walked| walked.l4));
        assert_eq!(
            chain.map(Chain::fragment_at),
            model.map(|walked| walked.fragment)
        );
        assert_eq!(*frame, before);
        chain.is_ok_and(|chain| chain.bytes() > 0)
    });
}

#[test]
fn parse() {
    each_frame(None, |_, frame| {
        let before = frame.clone();
        let room = frame.len();
        let found = parsed(frame, |_, frame| {
            (frame.payload, frame.l4.protocol(), frame.at)
        });
        assert_eq!(*frame, before);
        let Ok((payload, protocol, at)) = found else {
            return false;
        };
        let Parts { l4, end, .. } = Parts::of(frame);
        assert!(end <= room && matches!(protocol, 6 | 17) && at == l4);
        let header = if protocol == 17 {
            8
        } else {
            usize::from(frame[l4 + 12] >> 4) * 4
        };
        let total = HEADERS + usize::from(word(frame, LENGTH));
        assert_eq!(total - l4 - header, usize::from(payload));
        true
    });
}

#[test]
fn nat() {
    each_frame(None, |input, frame| {
        let Some(to) = input.first_chunk() else {
            return false;
        };
        let before = frame.clone();
        let Ok(first) = parsed(frame, |_, frame| {
            let first = tuple(frame);
            nat::translate6(frame, &translation(*to));
            first
        }) else {
            assert_eq!(*frame, before);
            return false;
        };
        // Right stays right, wrong stays wrong by as much.
        assert_eq!(sum(frame) % 0xffff, sum(&before) % 0xffff);
        parsed(frame, |_, frame| nat::translate6(frame, &first)).expect("a frame as before");
        let at = Parts::of(frame).checksum;
        let is_sum = |place: &usize| (at..at + 2).contains(place) || *place == HOPS;
        assert!(changed(&before, frame).iter().all(is_sum));
        assert_eq!(word(frame, at) % 0xffff, word(&before, at) % 0xffff);
        true
    });
}

#[test]
fn partial_checksum() {
    each_frame(None, |input, frame| {
        let keep = input.first().is_some_and(|byte| byte & 1 != 0);
        let before = frame.clone();
        let is_whole = parsed(frame, |packet, frame| {
            let fragment = walked(&before).ok()?.fragment;
            let piece = fragment.is_some_and(|at| before[at + 3] & 1 != 0);
            let protocol = frame.l4.protocol();
            (!piece).then(|| csum_partial::complete6(packet, protocol, frame.at, keep))
        });
        let Ok(Some(state)) = is_whole else {
            assert_eq!(*frame, before);
            return false;
        };
        assert_ne!(state, csum_partial::TOO_LONG);
        if *frame != before {
            assert_eq!((state, sum(frame)), (csum_partial::WHOLE, 0));
        }
        if state == csum_partial::OPEN {
            parsed(frame, |_, frame| csum_partial::reopen6(frame)).expect("a frame as before");
            assert_eq!(*frame, before, "nothing was translated");
        }
        true
    });
}

#[test]
fn answers() {
    each_frame(None, |_, frame| {
        let error = match frame.first() {
            Some(first) if first & 1 == 0 => Icmp6Error::PORT_UNREACHABLE,
            _ => Icmp6Error::too_big(1280),
        };
        let before = frame.clone();
        let made = parsed(frame, |packet, frame| {
            let is_quotable = reject::v6::is_quotable(frame, error);
            (is_quotable, reject::v6::reset(packet, frame))
        });
        if let Ok((_, Some(()))) = made {
            assert_eq!(sum(&frame[..RESET6_BYTES]), 0);
        }
        if let Ok((true, _)) = made {
            let mut bytes = [vec![0; ICMP6_BYTES], before.clone()].concat();
            reject::v6::error(&Slice::new(&mut bytes), error).expect("a quotable frame");
            assert_eq!(sum(&bytes[..error.frame_bytes()]), 0);
            assert_eq!(bytes[HEADERS + 8..], before[14..]);
        }
        matches!(made, Ok((true, _) | (_, Some(()))))
    });
}

#[test]
fn icmp6_errors() {
    each_frame(Some(58), |input, frame| {
        let Some(to) = input.last_chunk().map(|bytes| translation(*bytes)) else {
            return false;
        };
        let before = frame.clone();
        let done = icmp6::parsed(frame, |packet, message| {
            let quote = message.quote(packet)?;
            let inner = quote.ip;
            let back = Translation {
                source: inner.source.get(),
                destination: inner.destination.get(),
                source_port: quote.l4.source.get(),
                destination_port: quote.l4.destination.get(),
            };
            message.translate(packet, &quote, &to);
            Ok(back)
        });
        let Ok(back) = done else {
            assert_eq!(*frame, before);
            return false;
        };
        let Parts {
            end,
            checksum: message,
            ..
        } = Parts::of(&before);
        let Quoted {
            ip, l4, checksum, ..
        } = Quoted::of(&before);
        assert!(l4 + 8 <= end && end <= before.len());
        let is_sum = |at: &usize| {
            let quoted = checksum.is_some_and(|sum| (sum..sum + 2).contains(at));
            quoted || (message..message + 2).contains(at)
        };
        let is_outer = |at: &usize| (HOPS..HEADERS).contains(at);
        let may = |at: &usize| {
            let inner = (ip + 8..ip + 40).contains(at) || (l4..l4 + 4).contains(at);
            is_outer(at) || inner || is_sum(at)
        };
        let touched = changed(&before, frame);
        assert!(touched.iter().all(may), "{touched:?} of {before:02x?}");
        // Right stays right, wrong stays wrong by as much.
        assert_eq!(sum(frame) % 0xffff, sum(&before) % 0xffff);
        assert_eq!(Quoted::sum(frame), Quoted::sum(&before));

        icmp6::parsed(frame, |packet, message| {
            let quote = message.quote(packet)?;
            message.translate(packet, &quote, &back);
            Ok(())
        })
        .expect("a message as before");
        let differs = changed(&before, frame);
        assert!(differs.iter().all(|at| is_sum(at) || is_outer(at)));
        true
    });
}

#[test]
fn echo_requests6() {
    each_frame(Some(58), |_, frame| {
        let before = frame.clone();
        let kind = icmp6::parsed(frame, |_, message| {
            let kind = message.kind();
            if kind == Kind::Echo {
                message.answer();
            }
            Ok::<_, DropReason>(kind)
        });
        if kind != Ok(Kind::Echo) {
            assert_eq!(*frame, before);
            return false;
        }
        let Parts { l4, checksum, .. } = Parts::of(&before);
        assert_eq!((before[l4], frame[l4], frame[HOPS]), (128, 129, 64));
        assert_eq!(sum(frame) % 0xffff, sum(&before) % 0xffff);
        assert_eq!(frame[SOURCE..DESTINATION], before[DESTINATION..HEADERS]);
        let may = |at: &usize| {
            let outer = *at < 12 || (HOPS..HEADERS).contains(at);
            outer || *at == l4 || (checksum..checksum + 2).contains(at)
        };
        assert!(changed(&before, frame).iter().all(may));
        true
    });
}
