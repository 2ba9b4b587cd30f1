//! ICMP out of any bytes.

use std::panic::RefUnwindSafe;

use lb_common::{icmp::Kind, nat::Translation};

use crate::{
    each_input,
    frames::{
        ETHERNET, IP_CHECKSUM, TTL,
        icmp::{self, Parts, Quoted, parsed},
        put, translation, word,
    },
};

/// Runs a target on frames of which many are ICMP messages, and their quotes IP packets, by the bits of the
/// first byte.
fn each_message(then: impl Fn(&[u8], &mut Vec<u8>) -> bool + RefUnwindSafe) {
    each_input(|how, input| {
        let mut frame = input.to_vec();
        lead_in(how, &mut frame);
        then(input, &mut frame)
    });
}

fn lead_in(how: u8, frame: &mut [u8]) {
    let Ok(room @ 20..) = u16::try_from(frame.len().saturating_sub(ETHERNET)) else {
        return;
    };
    if how & 1 == 0 {
        return;
    }
    frame[14] = if how & 2 == 0 {
        0x45
    } else {
        0x40 | frame[14] & 15
    };
    put(frame, 16, room - u16::from(how >> 2 & 3));
    put(frame, 20, 0);
    frame[23] = 1;
    let icmp = ETHERNET + usize::from(frame[14] & 15) * 4;
    let Some([kind, code, _, _, _, _, _, _, quote @ ..]) = frame.get_mut(icmp..) else {
        return;
    };
    if how & 0x10 != 0 {
        (*kind, *code) = (8, *code & 1);
        return;
    }
    *kind = [3, 11, 12, *kind][usize::from(*kind & 3)];
    if let Some(quote) = quote.get_mut(..20) {
        quote[0] = if how & 0x20 == 0 {
            0x45
        } else {
            0x40 | quote[0] & 15
        };
        quote[6] &= 0x60;
        quote[7] = 0;
        quote[9] = if how & 0x40 == 0 { 6 } else { 17 };
    }
}

/// Where two frames differ.
pub(crate) fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
    assert_eq!(before.len(), after.len());
    let differs = |&at: &usize| before[at] != after[at];
    (0..after.len()).filter(differs).collect()
}

#[test]
fn icmp_errors() {
    each_message(|input, frame| {
        let Some(to) = input.last_chunk().map(|bytes| translation(*bytes)) else {
            return false;
        };
        let before = frame.clone();
        let done = parsed(frame, |packet, message| {
            let quote = message.quote(packet)?;
            let inner = quote.ip;
            let back = (
                inner.source.get(),
                inner.destination.get(),
                quote.l4.source.get(),
                quote.l4.destination.get(),
            );
            message.translate(packet, &quote, &to, 0);
            Ok(back)
        });
        let Ok((source, destination, source_port, destination_port)) = done else {
            assert_eq!(*frame, before);
            return false;
        };
        let Parts { icmp, end } = Parts::of(&before);
        let Quoted { ip, l4, checksum } = Quoted::of(&before);
        assert!(l4 + 8 <= end && end <= before.len());
        let may = |at: &usize| {
            let sum = checksum.is_some_and(|sum| (sum..sum + 2).contains(at));
            let outer = *at == TTL || (IP_CHECKSUM..34).contains(at);
            let message = (icmp + 2..icmp + 4).contains(at);
            outer || message || (ip + 10..ip + 20).contains(at) || (l4..l4 + 4).contains(at) || sum
        };
        let touched = changed(&before, frame);
        assert!(touched.iter().all(may), "{touched:?} of {before:02x?}");
        // Right stays right, wrong stays wrong by as much.
        assert_eq!(icmp::sums(frame), icmp::sums(&before));
        assert_eq!(Quoted::sums(frame), Quoted::sums(&before));

        let back = Translation {
            source,
            destination,
            source_port,
            destination_port,
        };
        parsed(frame, |packet, message| {
            let quote = message.quote(packet)?;
            message.translate(packet, &quote, &back, 0);
            Ok(())
        })
        .expect("a message as before");
        let mut sums = vec![IP_CHECKSUM, icmp + 2, ip + 10];
        sums.extend(checksum);
        let is_sum = |at: &usize| sums.iter().any(|sum| (*sum..sum + 2).contains(at));
        let outer = |at: &usize| *at == TTL || (26..34).contains(at);
        let differs = changed(&before, frame);
        assert!(differs.iter().all(|at| is_sum(at) || outer(at)));
        for at in &sums[1..] {
            assert_eq!(word(frame, *at) % 0xffff, word(&before, *at) % 0xffff);
        }
        true
    });
}

#[test]
fn echo_requests() {
    each_message(|_, frame| {
        let before = frame.clone();
        let kind = parsed(frame, |_, message| {
            let kind = message.kind();
            if kind == Kind::Echo {
                message.answer();
            }
            Ok(kind)
        });
        if kind != Ok(Kind::Echo) {
            assert_eq!(*frame, before);
            return false;
        }
        let Parts { icmp, .. } = Parts::of(&before);
        assert_eq!((before[icmp], frame[icmp], frame[TTL]), (8, 0, 64));
        assert_eq!(icmp::sums(frame), icmp::sums(&before));
        let may = |at: &usize| {
            let outer = *at < 12 || *at == TTL || (IP_CHECKSUM..34).contains(at);
            outer || *at == icmp || (icmp + 2..icmp + 4).contains(at)
        };
        assert!(changed(&before, frame).iter().all(may));
        true
    });
}
