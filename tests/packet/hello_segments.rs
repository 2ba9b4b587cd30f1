//! Hellos whose size has cut them in two, on their way to userspace: see [`cookies`](super::cookies).

use lb_common::{
    addr::{Be16, Be32},
    maps::flow::FlowKey,
    syn_cookie::{CookieStanding, judge, payload},
};
use lb_tests::{frames::packet::flags::*, product::program::Port};
use lb_user::model::registry::Kind;

use super::{
    cookies::{Answer, ISN, OPTIONS, begin_epoch, consumed, keys, start},
    given::assert_dropped,
};

/// Of a hello in two segments userspace gets both at once.
#[privileged_test]
fn a_hello_of_two_segments_waits_for_the_second() {
    let mut lb = start();
    let answer = Answer::to(&mut lb, &OPTIONS);
    let whole = [&[22, 3, 1, 3, 0][..], &[7; 0x300]].concat();
    let (one, other) = whole.split_at(600);
    let first = answer.segment(0, ACK_ONLY).payload(one);
    let second = answer.segment(600, ACK_ONLY).payload(other);
    // Swapped: the second one comes again.
    assert_dropped(&mut lb, Port::Tenant, &second.bytes(), "hello_unordered");
    consumed(&mut lb, &first);
    assert!(lb.hellos().is_empty());
    // What does not follow at once is not the next one.
    let far = answer.segment(601, ACK_ONLY).payload(other).bytes();
    assert_dropped(&mut lb, Port::Tenant, &far, "hello_unordered");
    consumed(&mut lb, &second);
    let hellos = lb.hellos();
    assert_eq!(hellos.len(), 1);
    assert_eq!(
        (hellos[0].bytes.as_slice(), hellos[0].head.lengths),
        (&whole[..], [600, 173])
    );
    for (piece, sum) in [one, other].into_iter().zip(hellos[0].head.sums) {
        assert!(payload::is_whole(piece, sum));
    }
    // Both are there: a copy of one changes nothing, and the first one alone says that none was acknowledged.
    assert_dropped(&mut lb, Port::Tenant, &second.bytes(), "hello_unordered");
    consumed(&mut lb, &first);
    let hellos = lb.hellos();
    assert_eq!(hellos.len(), 1);
    assert_eq!(hellos[0].bytes, whole);
    for (piece, sum) in [one, other].into_iter().zip(hellos[0].head.sums) {
        assert!(payload::is_whole(piece, sum));
    }
}

/// A number that by chance is right for the second segment as well does not make it a first one.
#[privileged_test]
fn a_second_segment_may_look_like_a_first_one() {
    let mut lb = start();
    let found = (8..200).find_map(|epoch| {
        begin_epoch(&lb, epoch);
        let answer = Answer::to(&mut lb, &OPTIONS);
        let key = FlowKey {
            client: Be32::new(0xc0a8_cb32),
            vip: Be32::new(0xc0a8_cb6e),
            client_port: Be16::new(40_000),
            vip_port: Be16::new(6443),
            network: u16::try_from(lb.ids.get(Kind::Network, "tenant-a")?).ok()?,
            protocol: 6,
        };
        let looks = |bytes: &u32| {
            let isn = ISN.wrapping_add(*bytes);
            let standing = judge(&keys(epoch), key.packed(), isn, answer.number);
            matches!(standing, CookieStanding::Right { .. })
        };
        (536..1448).find(looks).map(|bytes| (answer, bytes))
    });
    let (answer, bytes) = found.expect("one of 4096");
    let whole = [&[22, 3, 1, 8, 0][..], &[7; 0x800]].concat();
    let (one, other) = whole[..1500].split_at(bytes as usize);
    let first = answer.segment(0, ACK_ONLY).payload(one);
    let second = answer.segment(bytes, ACK_ONLY).payload(other);
    consumed(&mut lb, &first);
    consumed(&mut lb, &second);
    let hellos = lb.hellos();
    assert_eq!(hellos.len(), 1);
    assert_eq!(hellos[0].bytes, whole[..1500]);
    assert_eq!(hellos[0].head.isn, ISN);
}

/// Of a hello whose second segment does not come userspace gets the first one when it is repeated.
#[privileged_test]
fn a_first_segment_alone_goes_on_when_it_is_repeated() {
    let mut lb = start();
    let answer = Answer::to(&mut lb, &OPTIONS);
    let one = [&[22, 3, 1, 3, 0][..], &[7; 595]].concat();
    let first = answer.segment(0, ACK_ONLY).payload(&one);
    for _ in 0..2 {
        consumed(&mut lb, &first);
        assert!(lb.hellos().is_empty());
        consumed(&mut lb, &first);
        let hellos = lb.hellos();
        assert_eq!(hellos.len(), 1);
        assert_eq!(
            (hellos[0].bytes.as_slice(), hellos[0].head.lengths),
            (&one[..], [600, 0])
        );
    }
}
