//! Hellos that are cut, swapped and doubled on their way: see [`bind`](super::bind).

use lb_tests::{
    frames::{packet::flags::*, segment::Segment},
    product::program::{DataPlane, IDS, Port},
};

use super::{
    bind::{CONFIG, receive, syn_ack},
    bind_again::free_ids,
    bind_two::{long_hello, segments, syn},
    cookies::{Answer, ISN, OPTIONS, begin_epoch, start_with},
    given::passed_on,
};

/// Cut in two at places of all kinds: XDP opens the connection of what a size of segments may have cut; what a client cuts itself
/// is the process's, as it came.
#[privileged_test]
fn a_hello_may_be_cut_anywhere() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let whole = long_hello();
    let length = u32::try_from(whole.len()).expect("a short hello");
    for cut in (1..=1448).filter(|cut| cut % 29 == 0 || matches!(cut, ..8 | 530..542 | 1440..)) {
        begin_epoch(&lb, 8);
        lb.raw_maps()["HELLO_SLOTS"].clear().expect("no hellos");
        let (one, other) = whole.split_at(cut);
        let offset = u32::try_from(cut).expect("a short hello");
        let first = answer.segment(0, ACK_ONLY).payload(one);
        let second = answer.segment(offset, ACK_ONLY).payload(other);
        let [first, second] =
            [first, second].map(|frame| receive(&mut lb, Port::Tenant, &frame.bytes()).counted);
        let given: Vec<Vec<u8>> = lb.hellos().into_iter().map(|record| record.bytes).collect();
        if cut < 536 {
            assert_eq!(first, ["consumed", "unread"], "{cut}");
            assert_eq!(
                (second, given),
                (vec!["hello_unordered"], vec![one.to_vec()]),
                "{cut}"
            );
        } else {
            assert_eq!(
                (first, second),
                (vec!["consumed"], vec!["forwarded"]),
                "{cut}"
            );
            assert_eq!((free_ids(&lb), given.len()), (IDS - 1, 0), "{cut}");
            receive(
                &mut lb,
                Port::Tenant,
                &answer.segment(length, RST_ONLY).bytes(),
            );
        }
        assert_eq!(free_ids(&lb), IDS, "{cut}");
    }
}

/// The second segment comes first: it is dropped, and opens the connection when it comes again; doubled ones open nothing more.
#[privileged_test]
fn swapped_and_doubled_segments_open_one_connection() {
    let mut lb = start_with(CONFIG);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let [first, second] = segments(&answer, &long_hello()).map(|frame| frame.bytes());
    let counted = |lb: &mut DataPlane, frame: &[u8]| receive(lb, Port::Tenant, frame).counted;
    assert_eq!(counted(&mut lb, &second), ["hello_unordered"]);
    assert_eq!(counted(&mut lb, &first), ["consumed"]);
    let (_, port) = syn(&passed_on(&mut lb, Port::Tenant, &second));
    assert_eq!(counted(&mut lb, &second), ["hello_unordered"]);
    assert_eq!(syn(&passed_on(&mut lb, Port::Tenant, &first)).1, port);
    let met = receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    assert_eq!(met.counted, ["forwarded", "bound"]);
    for (frame, sequence) in [(&second, 1449), (&first, 1)] {
        let again = passed_on(&mut lb, Port::Tenant, frame);
        let again = Segment::read(&again).expect("a segment");
        assert_eq!(again.flags & SYN_ONLY, 0);
        assert_eq!(again.sequence, ISN.wrapping_add(sequence));
    }
    assert_eq!(free_ids(&lb), IDS - 1);
    assert!(lb.hellos().is_empty());
}
