//! What holds for every packet, over as many as there is time for: 100,000 each, and a million with
//! `LB_TEST_LONG`. The packets are the same in every run.
#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

#[path = "../frames/mod.rs"]
#[expect(unreachable_pub, reason = "a module of two test targets")]
mod frames;

mod conntrack;
mod discovery;
mod fragment;
mod icmp;
mod icmp6;
mod ipv6;
mod options;
mod splice;
mod spread;

use frames::{
    Parts, is_bare, is_udp, long, parsed, pseudo, readdress, seal, sums, translation, tuple,
    without_hops,
};
use lb_common::{
    addr::Be16,
    csum_partial, mss,
    nat::{self, Translation},
    wire::{Packet as _, Slice, checksum::full},
};
use spread::Spread;

/// Does it so many times.
fn every(seed: u64, mut then: impl FnMut(&mut Spread)) {
    let mut spread = Spread(seed);
    for _ in 0..if long() { 1_000_000 } else { 100_000 } {
        then(&mut spread);
    }
}

/// Hands so many packets on.
fn every_packet(seed: u64, mut then: impl FnMut(&mut Spread, Vec<u8>)) {
    every(seed, |spread| {
        let frame = spread.frame();
        then(spread, frame);
    });
}

/// Translates a frame; gives its tuple before.
fn translate(bytes: &mut [u8], to: &Translation) -> Translation {
    let translated = parsed(bytes, |_, frame| {
        let before = tuple(frame);
        nat::translate(frame, to);
        before
    });
    translated.unwrap()
}

/// Whether both checksums are right, or the datagram has none.
fn is_sealed(bytes: &[u8]) -> bool {
    let (ip, l4) = sums(bytes);
    ip == 0 && (is_bare(bytes) || l4 == 0)
}

/// The tuple with another destination port: one with which the checksum comes out as zero.
fn summing_to_zero(frame: &[u8], mut to: Translation) -> Translation {
    let mut frame = frame.to_vec();
    to.destination_port = Be16::default();
    readdress(&mut frame, &to);
    to.destination_port = Be16::new(frames::word(&frame, Parts::of(&frame).checksum));
    to
}

/// RFC 1624: what is updated is what would be computed anew, to the bit.
#[test]
fn reliability_20_a_translated_packet_has_the_checksums_of_one_made_so() {
    let mut zeros = 0;
    every_packet(1, |spread, before| {
        let mut to = translation(spread.bytes());
        if spread.one_in(64) {
            to = summing_to_zero(&before, to);
        }
        let mut bytes = before.clone();
        translate(&mut bytes, &to);
        let mut anew = before.clone();
        anew[frames::TTL] -= 1;
        readdress(&mut anew, &to);
        assert_eq!(bytes, anew, "from {before:02x?}");
        let sum = frames::word(&bytes, Parts::of(&bytes).checksum);
        zeros += u32::from(!is_bare(&before) && matches!(sum, 0 | 0xffff));
    });
    assert!(zeros > 1000, "{zeros} checksums came out as zero");
}

/// What may be in pieces has an identification of ours, and the checksum covers it.
#[test]
fn a_renumbered_packet_has_the_checksum_of_one_made_so() {
    every_packet(5, |spread, before| {
        let mut bytes = before.clone();
        let identification = Be16::new(frames::word(&spread.bytes::<2>(), 0));
        let old = Be16::new(frames::word(&bytes, 18));
        let renumber =
            |bytes: &mut [u8], to| nat::renumber(Slice::new(bytes).header(14).unwrap(), to);
        renumber(&mut bytes, identification);
        let mut anew = before.clone();
        frames::put(&mut anew, 18, identification.get());
        frames::seal_header(&mut anew);
        assert_eq!(bytes, anew, "from {before:02x?}");
        renumber(&mut bytes, old);
        assert_eq!(bytes, before);
    });
}

/// reverse(translate(p)) == p, but for the hops.
#[test]
fn the_reverse_translation_gives_the_packet_back() {
    every_packet(2, |spread, before| {
        let mut bytes = before.clone();
        let first = translate(&mut bytes, &translation(spread.bytes()));
        translate(&mut bytes, &first);
        assert_eq!(without_hops(&bytes), without_hops(&before));
        assert!(is_sealed(&bytes), "{bytes:02x?} from {before:02x?}");
    });
}

/// A segment size is found where it stands, and the checksum is the one of a packet made so.
#[test]
fn a_clamped_segment_size_keeps_the_checksum_right() {
    let mut written = 0;
    every_packet(3, |spread, before| {
        if is_udp(&before) {
            return;
        }
        let l4 = Parts::of(&before).l4;
        let most = frames::word(&spread.bytes::<2>(), 0);
        let most = most >> (most & 15);
        let list = &before[l4 + 20..l4 + usize::from(before[l4 + 12] >> 4) * 4];
        let found = frames::options::segment_size(list).map(|at| l4 + 20 + at);
        let larger = found.filter(|&at| frames::word(&before, at) > most);
        let mut bytes = before.clone();
        let said = mss::clamp(&Slice::new(&mut bytes), most);
        assert_eq!(said.is_some(), larger.is_some(), "{before:02x?}");
        let mut wanted = before;
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
    every_packet(4, |spread, mut sealed| {
        if spread.one_in(64) {
            let to = summing_to_zero(&sealed, translation(spread.bytes()));
            readdress(&mut sealed, &to);
        }
        let at = Parts::of(&sealed).checksum;
        let mut open = sealed.clone();
        // Not inverted: `full` inverts what it is given.
        let sum = !full(&[], pseudo(&sealed)).get();
        open[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(
            csum_partial::complete(&Slice::new(&mut open), false),
            csum_partial::WHOLE
        );
        let mut wanted = sealed;
        wanted[at + 1] |= u8::from(wanted[at..at + 2] == [0, 0]);
        seal(&mut wanted);
        assert_eq!(open, wanted);
    });
}
