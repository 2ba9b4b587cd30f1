//! Frames of a kernel's stack that has left their checksums to the interface.

use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, tcp, udp},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::dataplane::attach::Mode;

use super::given::*;

/// Data of a length, no two lengths alike.
pub(crate) fn data(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| u8::try_from((at * 31 + length) % 251).expect("below 251"))
        .collect()
}

/// What the program makes of a frame, whatever its checksums.
pub(crate) fn sent(lb: &mut DataPlane, port: Port, bytes: &[u8]) -> Vec<u8> {
    let ((action, frame), _) = lb.run(port, bytes, 1);
    assert_eq!(action, Action::Redirect);
    frame
}

/// A segment of an established flow in either direction, before and after the program.
fn both_ways(ip: &Family, payload: &[u8]) -> [(Port, Frame, Frame); 2] {
    let request = request(ip.client_a, ip.api, ACK_ONLY).numbers(1001, 5001);
    let to_backend = tcp(&ip.snat(1024), ip.kas, ACK_ONLY).numbers(1001, 5001);
    let reply = ip.reply(1024, ACK_ONLY).numbers(5001, 1001);
    let to_client = tcp(ip.api, ip.client_a, ACK_ONLY).numbers(5001, 1001);
    [
        (
            Port::Tenant,
            request.payload(payload),
            to_backend
                .payload(payload)
                .ttl(63)
                .between(MGMT_NIC, ip.kas_mac),
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
#[privileged_test(families)]
fn an_open_checksum_is_made_whole_at_every_length(ip: &Family) {
    let mut lb = DataPlane::with_partial_checksums(ip.config, Mode::Native);
    ip.establish(&mut lb, ip.client_a, 1024);
    for length in 0..=1480 - ip.header {
        for (port, before, after) in both_ways(ip, &data(length)) {
            for bytes in [before.open_checksum(), before.bytes()] {
                assert_frame(&sent(&mut lb, port, &bytes), &after);
            }
        }
    }
}

#[privileged_test(families)]
fn datagrams_are_made_whole(ip: &Family) {
    let mut lb = DataPlane::with_partial_checksums(ip.config, Mode::Native);
    for length in 0..=1492 - ip.header {
        let data = data(length);
        let query = ip.query(ip.client_a).payload(&data).open_checksum();
        let after = udp(&ip.snat(1024), ip.resolver).payload(&data).ttl(63);
        let after = after.between(MGMT_NIC, ip.resolver_mac);
        assert_frame(&sent(&mut lb, Port::Tenant, &query), &after);
        let answer = ip.answer(1024).payload(&data).open_checksum();
        let after = udp(ip.dns, ip.client_a).payload(&data).ttl(63);
        let after = after.between(TENANT_NIC, CLIENT);
        assert_frame(&sent(&mut lb, Port::Mgmt, &answer), &after);
    }
}

/// RFC 768: a checksum that comes out as zero is sent as ones.
#[privileged_test(families)]
fn a_checksum_of_zero_is_none(ip: &Family) {
    let mut lb = DataPlane::with_partial_checksums(ip.config, Mode::Native);
    let zero = (0..=u16::MAX)
        .map(|word| ip.query(ip.client_a).payload(&word.to_be_bytes()))
        .find(|frame| frame.bytes()[ip.l4() + 6..ip.l4() + 8] == [0xff, 0xff])
        .expect("data whose sum is zero");
    let out = forwarded_open(&mut lb, &zero);
    let found = &zero.bytes()[ip.l4() + 8..];
    let after = udp(&ip.snat(1024), ip.resolver).payload(found).ttl(63);
    assert_frame(&out, &after.between(MGMT_NIC, ip.resolver_mac));
}

fn forwarded_open(lb: &mut DataPlane, frame: &Frame) -> Vec<u8> {
    sent(lb, Port::Tenant, &frame.open_checksum())
}

/// The SYN is the only frame whose options change as well.
#[privileged_test(families)]
fn the_first_segment_of_all_is_made_whole(ip: &Family) {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(ip.config, mode);
        let syn = request(ip.client_a, ip.api, SYN_ONLY).tcp_options(&[2, 4, 0x22, 0xc0]);
        let out = forwarded_open(&mut lb, &syn.payload(b"odd"));
        let [high, low] = ip.pick(1460_u16, 1440).to_be_bytes();
        let after = tcp(&ip.snat(1024), ip.kas, SYN_ONLY).tcp_options(&[2, 4, high, low]);
        let after = after.payload(b"odd").ttl(63);
        let after = after.between(MGMT_NIC, ip.kas_mac);
        match mode {
            Mode::Native => assert_frame(&out, &after),
            Mode::Generic => assert_eq!(out, after.open_checksum()),
        }
    }
}

/// The kernel's stack still knows that the checksum is open, and adds the data to what stands there.
#[privileged_test(families)]
fn in_generic_mode_an_open_checksum_stays_open(ip: &Family) {
    let mut lb = DataPlane::with_partial_checksums(ip.config, Mode::Generic);
    ip.establish(&mut lb, ip.client_a, 1024);
    for length in (0..=1480 - ip.header).step_by(7) {
        for (port, before, after) in both_ways(ip, &data(length)) {
            let out = sent(&mut lb, port, &before.open_checksum());
            assert_eq!(out, after.open_checksum(), "{length}");
            assert_frame(&sent(&mut lb, port, &before.bytes()), &after);
        }
    }
    let out = forwarded_open(&mut lb, &ip.query(ip.client_b).payload(b"who?"));
    let after = udp(&ip.snat(1025), ip.resolver).payload(b"who?").ttl(63);
    let after = after.between(MGMT_NIC, ip.resolver_mac);
    assert_eq!(out, after.open_checksum());
}

/// One in 65,536 whole checksums is also the sum of its pseudo-header.
#[privileged_test(families)]
fn a_whole_checksum_that_looks_open_stays_whole(ip: &Family) {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(ip.config, mode);
        ip.establish(&mut lb, ip.client_a, 1024);
        let (port, before, after) = (0..=u16::MAX)
            .flat_map(|word| both_ways(ip, &word.to_be_bytes()))
            .find(|(_, before, _)| before.bytes() == before.open_checksum())
            .expect("such data");
        assert_frame(&sent(&mut lb, port, &before.bytes()), &after);
    }
}

/// On a network of real NICs a checksum that is wrong stays wrong.
#[privileged_test(families)]
fn without_the_switch_nothing_is_computed(ip: &Family) {
    let mut lb = ip.established();
    for (port, before, after) in both_ways(ip, b"data") {
        assert_ne!(sent(&mut lb, port, &before.open_checksum()), after.bytes());
    }
    let mut lb = DataPlane::with_partial_checksums(ip.config, Mode::Native);
    ip.establish(&mut lb, ip.client_a, 1024);
    for (port, before, after) in both_ways(ip, b"data") {
        let at = ip.l4() + 16;
        let mut wrong = before.bytes();
        wrong[at] ^= 1;
        let mut out = sent(&mut lb, port, &wrong);
        assert!(check(&out).is_err(), "{}", Decoded(&out));
        out[at..at + 2].copy_from_slice(&after.bytes()[at..at + 2]);
        assert_frame(&out, &after);
    }
}

/// What passes to the host keeps its open checksum: the host's stack knows of it.
#[privileged_test(families)]
fn what_is_not_ours_is_not_touched(ip: &Family) {
    let mut lb = DataPlane::with_partial_checksums(ip.config, Mode::Native);
    let host = ip.pick("10.32.96.7:22", "[fd00:32::7]:22");
    let other = tcp(&ip.end(ip.node, 80), host, SYN_ONLY).between(ip.kas_mac, MGMT_NIC);
    assert_passed(&mut lb, Port::Mgmt, &other.open_checksum());
    let no_service = request(ip.client_a, &ip.end(ip.vip, 22), SYN_ONLY);
    assert_dropped(
        &mut lb,
        Port::Tenant,
        &no_service.open_checksum(),
        "no_service",
    );
}

/// In generic mode a reset is open where the segment was: the NIC that adds the rest, up to the frame's end, makes it
/// whole. One of a segment that is whole is whole.
#[privileged_test(families)]
fn a_reset_of_an_open_segment_is_open_in_generic_mode(ip: &Family) {
    let data = request(ip.client_a, ip.empty, SYN_ONLY)
        .numbers(1000, 0)
        .payload(&[7; 100]);
    let wanted = tcp(ip.empty, ip.client_a, RST_ACK)
        .numbers(0, 1101)
        .window(0);
    let wanted = ip.of_ours(wanted.between(TENANT_NIC, CLIENT));
    let answered = |mode, bytes: &[u8]| {
        let mut lb = DataPlane::with_partial_checksums(ip.config, mode);
        let ((action, frame), _) = lb.run(Port::Tenant, bytes, 1);
        assert_eq!(action, Action::Transmit);
        frame
    };
    let open = answered(Mode::Generic, &data.open_checksum());
    assert_eq!(open, wanted.open_checksum());
    for (mode, bytes) in [
        (Mode::Native, data.open_checksum()),
        (Mode::Native, data.bytes()),
        (Mode::Generic, data.bytes()),
    ] {
        let whole = answered(mode, &bytes);
        assert_eq!(check(&whole), Ok(()));
        assert_eq!(whole[..ip.l4() + 20], wanted.bytes());
    }
}
