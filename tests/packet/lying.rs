//! RELIABILITY 24: truncated and lying headers: a verdict, a counter, no misparse, at every length.

use lb_tests::{
    frames::packet::{Decoded, L4, check, flags::*, udp},
    product::program::{Action, CLIENT, DataPlane, Port, TENANT_NIC},
};

use super::given::*;

#[privileged_test]
fn reliability_24_every_truncation_of_a_frame_is_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    let frames = [
        request(CLIENT_A, API, SYN_ONLY).payload(&[7; 74]).bytes(),
        request(CLIENT_A, API, SYN_ONLY)
            .options(&[1; 40])
            .payload(&[7; 34])
            .bytes(),
        query(CLIENT_A).payload(&[7; 86]).bytes(),
    ];
    for frame in frames {
        assert_eq!(frame.len(), 128);
        for length in 14..frame.len() {
            let cut = &frame[..length];
            // Shorter than its addresses: it cannot be known to be for a VIP.
            let reason = "malformed";
            assert_dropped(&mut lb, Port::Tenant, cut, reason);
        }
        forwarded_bytes(&mut lb, &frame);
    }
}

/// Every value of the fields that say lengths, in frames of every length: forwarded only where all
/// of them agree, and then with right checksums.
#[privileged_test]
fn reliability_24_fields_that_lie_about_lengths_never_forward_a_broken_frame() {
    let mut lb = DataPlane::new(CONFIG);
    for length in 54..=128usize {
        let whole = request(CLIENT_A, API, SYN_ONLY)
            .payload(&vec![7; length - 54])
            .bytes();
        for ihl in 0..16u8 {
            lie(&mut lb, &whole, 14, 0x40 | ihl);
        }
        for total in [
            0,
            1,
            19,
            20,
            39,
            length - 14 - 1,
            length - 14,
            length - 14 + 1,
            255,
        ] {
            lie(&mut lb, &whole, 17, u8::try_from(total).expect("a byte"));
        }
        lie(&mut lb, &whole, 16, 0xff);
        for offset in 0..16u8 {
            lie(&mut lb, &whole, L4 + 12, offset << 4);
        }
    }
    for length in 42..=128usize {
        let whole = query(CLIENT_A).payload(&vec![7; length - 42]).bytes();
        for claimed in [0, 7, 8, length - 34 - 1, length - 34, length - 34 + 1, 255] {
            lie(
                &mut lb,
                &whole,
                L4 + 5,
                u8::try_from(claimed).expect("a byte"),
            );
        }
    }
}

/// Writes one byte of a header and sends the frame: `receive` makes sure of exactly one counter.
fn lie(lb: &mut DataPlane, whole: &[u8], at: usize, byte: u8) {
    let mut bytes = whole.to_vec();
    bytes[at] = byte;
    let outcome = lb.receive(Port::Tenant, &bytes);
    match outcome.action {
        Action::Drop => assert_eq!(outcome.frame, bytes, "a dropped frame is untouched"),
        Action::Redirect => {
            // The checksum as sent was over the true bytes: it is right again only where the
            // lie was the truth, or the same bytes are still covered.
            if bytes == whole {
                assert_eq!(check(&outcome.frame), Ok(()), "{}", Decoded(&outcome.frame));
            }
            let header = usize::from(bytes[14] & 15) * 4;
            let total = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
            assert!(header >= 20 && total >= header + 8 && 14 + total <= bytes.len());
        }
        other => panic!("{other:?} for {}", Decoded(&bytes)),
    }
}

fn forwarded_bytes(lb: &mut DataPlane, bytes: &[u8]) {
    let outcome = lb.receive(Port::Tenant, bytes);
    assert_eq!(outcome.action, Action::Redirect, "{}", Decoded(bytes));
    assert_eq!(check(&outcome.frame), Ok(()), "{}", Decoded(&outcome.frame));
}

/// Whatever stands in the headers of a frame to us: a verdict and one counter.
#[privileged_test]
fn reliability_24_random_bytes_behind_our_addresses_always_end_in_one_verdict() {
    let mut lb = DataPlane::new(CONFIG);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..4000usize {
        let mut bytes = udp(CLIENT_A, DNS)
            .between(CLIENT, TENANT_NIC)
            .payload(&[0; 86])
            .bytes();
        for byte in bytes.iter_mut().skip(14) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_ne_bytes()[0];
        }
        bytes[30..34].copy_from_slice(&[192, 168, 203, 110]);
        bytes.truncate(14 + round % 115);
        lb.receive(Port::Tenant, &bytes);
    }
}
