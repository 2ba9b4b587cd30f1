//! Frames of a kernel's stack that has left their checksums to the interface.

use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, tcp, udp},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::dataplane::attach::Mode;

use super::given::*;

/// Data of a length, no two lengths alike.
fn data(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from((at * 31 + length) % 251).expect("below 251"))
        .collect()
}

/// What the program makes of a frame, whatever its checksums.
fn sent(lb: &mut DataPlane, port: Port, bytes: &[u8]) -> Vec<u8> {
    let ((action, frame), _) = lb.run(port, bytes, 1);
    assert_eq!(action, Action::Redirect);
    frame
}

/// A segment of an established flow in either direction, before and after the program.
fn both_ways(payload: &[u8]) -> [(Port, Frame, Frame); 2] {
    let request = request(CLIENT_A, API, ACK_ONLY).numbers(1001, 5001);
    let to_backend = tcp(&snat(1024), KAS, ACK_ONLY).numbers(1001, 5001);
    let reply = reply(1024, ACK_ONLY).numbers(5001, 1001);
    let to_client = tcp(API, CLIENT_A, ACK_ONLY).numbers(5001, 1001);
    [
        (
            Port::Tenant,
            request.payload(payload),
            to_backend
                .payload(payload)
                .ttl(63)
                .between(MGMT_NIC, KAS_MAC),
        ),
        (
            Port::Mgmt,
            reply.payload(payload),
            to_client
                .payload(payload)
                .ttl(63)
                .between(TENANT_NIC, CLIENT),
        ),
    ]
}

/// A24: the first data of a connection, at every length that fits into a packet.
#[privileged_test]
fn an_open_checksum_is_made_whole_at_every_length() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    establish(&mut lb, CLIENT_A, 1024);
    for length in 0..=1460 {
        for (port, before, after) in both_ways(&data(length)) {
            for bytes in [before.open_checksum(), before.bytes()] {
                assert_frame(&sent(&mut lb, port, &bytes), &after);
            }
        }
    }
}

#[privileged_test]
fn datagrams_are_made_whole_and_those_without_a_checksum_stay_without() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    for length in 0..=1472 {
        let query = query(CLIENT_A).payload(&data(length));
        let after = udp(&snat(1024), RESOLVER).payload(&data(length)).ttl(63);
        let after = after.between(MGMT_NIC, RESOLVER_MAC);
        assert_frame(&sent(&mut lb, Port::Tenant, &query.open_checksum()), &after);
        let bare = query.without_checksum().bytes();
        assert_frame(
            &sent(&mut lb, Port::Tenant, &bare),
            &after.without_checksum(),
        );
    }
}

/// RFC 768: a checksum that comes out as zero is sent as ones.
#[privileged_test]
fn a_checksum_of_zero_is_none() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    let zero = (0..=u16::MAX)
        .map(|word| query(CLIENT_A).payload(&word.to_be_bytes()))
        .find(|frame| frame.bytes()[40..42] == [0xff, 0xff])
        .expect("data whose sum is zero");
    let out = forwarded_open(&mut lb, &zero);
    let found = &zero.bytes()[42..];
    let after = udp(&snat(1024), RESOLVER).payload(found).ttl(63);
    assert_frame(&out, &after.between(MGMT_NIC, RESOLVER_MAC));
}

fn forwarded_open(lb: &mut DataPlane, frame: &Frame) -> Vec<u8> {
    sent(lb, Port::Tenant, &frame.open_checksum())
}

/// The SYN is the only frame whose options change as well.
#[privileged_test]
fn the_first_segment_of_all_is_made_whole() {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        let syn = request(CLIENT_A, API, SYN_ONLY).tcp_options(&[2, 4, 0x22, 0xc0]);
        let out = forwarded_open(&mut lb, &syn);
        let after = tcp(&snat(1024), KAS, SYN_ONLY).tcp_options(&[2, 4, 5, 0xb4]);
        let after = after.ttl(63).between(MGMT_NIC, KAS_MAC);
        match mode {
            Mode::Native => assert_frame(&out, &after),
            Mode::Generic => assert_eq!(out, after.open_checksum()),
        }
    }
}

/// The kernel's stack still knows that the checksum is open, and adds the data to what stands there.
#[privileged_test]
fn in_generic_mode_an_open_checksum_stays_open() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Generic);
    establish(&mut lb, CLIENT_A, 1024);
    for length in (0..=1460).step_by(7) {
        for (port, before, after) in both_ways(&data(length)) {
            let out = sent(&mut lb, port, &before.open_checksum());
            assert_eq!(out, after.open_checksum(), "{length}");
            assert_frame(&sent(&mut lb, port, &before.bytes()), &after);
        }
    }
    let out = forwarded_open(&mut lb, &query(CLIENT_B).payload(b"who?"));
    let after = udp(&snat(1025), RESOLVER).payload(b"who?").ttl(63);
    let after = after.between(MGMT_NIC, RESOLVER_MAC);
    assert_eq!(out, after.open_checksum());
}

/// One in 65,536 whole checksums is also the sum of its pseudo-header.
#[privileged_test]
fn a_whole_checksum_that_looks_open_stays_whole() {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        establish(&mut lb, CLIENT_A, 1024);
        let (port, before, after) = (0..=u16::MAX)
            .flat_map(|word| both_ways(&word.to_be_bytes()))
            .find(|(_, before, _)| before.bytes() == before.open_checksum())
            .expect("such data");
        assert_frame(&sent(&mut lb, port, &before.bytes()), &after);
    }
}

/// On a network of real NICs a checksum that is wrong stays wrong.
#[privileged_test]
fn without_the_switch_nothing_is_computed() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for (port, before, after) in both_ways(b"data") {
        assert_ne!(sent(&mut lb, port, &before.open_checksum()), after.bytes());
    }
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    establish(&mut lb, CLIENT_A, 1024);
    for (port, before, after) in both_ways(b"data") {
        let mut wrong = before.bytes();
        wrong[50] ^= 1;
        let mut out = sent(&mut lb, port, &wrong);
        assert!(check(&out).is_err(), "{}", Decoded(&out));
        out[50..52].copy_from_slice(&after.bytes()[50..52]);
        assert_frame(&out, &after);
    }
}

/// What passes to the host keeps its open checksum: the host's stack knows of it.
#[privileged_test]
fn what_is_not_ours_is_not_touched() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    let other = tcp("10.32.96.105:80", "10.32.96.7:22", SYN_ONLY).between(KAS_MAC, MGMT_NIC);
    assert_passed(&mut lb, Port::Mgmt, &other.open_checksum());
    let nobody = request(CLIENT_A, "192.168.203.110:22", SYN_ONLY);
    assert_dropped(&mut lb, Port::Tenant, &nobody.open_checksum(), "no_service");
}

/// In generic mode a reset is open where the segment was: the NIC that adds the rest, up to the frame's end, makes it
/// whole. One of a segment that is whole is whole.
#[privileged_test]
fn a_reset_of_an_open_segment_is_open_in_generic_mode() {
    const EMPTY: &str = "192.168.203.110:80";
    let data = request(CLIENT_A, EMPTY, SYN_ONLY)
        .numbers(1000, 0)
        .payload(&[7; 100]);
    let wanted = tcp(EMPTY, CLIENT_A, RST_ACK).numbers(0, 1101).window(0);
    let wanted = wanted.between(TENANT_NIC, CLIENT);
    let answered = |mode, bytes: &[u8]| {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        let ((action, frame), _) = lb.run(Port::Tenant, bytes, 1);
        assert_eq!(action, Action::Transmit);
        frame
    };
    let open = answered(Mode::Generic, &data.open_checksum());
    assert_eq!(without_id(&open), without_id(&wanted.open_checksum()));
    for (mode, bytes) in [
        (Mode::Native, data.open_checksum()),
        (Mode::Native, data.bytes()),
        (Mode::Generic, data.bytes()),
    ] {
        let whole = answered(mode, &bytes);
        assert_eq!(check(&whole), Ok(()));
        assert_eq!(without_id(&whole[..54]), without_id(&wanted.bytes()));
    }
}

/// A frame without what an answer chooses itself: identification, flags, and so the header's checksum.
fn without_id(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[18..22].fill(0);
    frame[24..26].fill(0);
    frame
}
