//! Backend to SNAT port.

use lb_common::conntrack::{FlowState, State};
use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// A17: of a SYN-ACK the source becomes the VIP, the destination the client; the frame goes from the tenant NIC to
/// the station that the SYN came from.
#[privileged_test(families)]
fn a_reply_comes_from_the_vip(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let sent = forwarded(
        &mut lb,
        Port::Mgmt,
        &ip.reply(1024, SYN_ACK).numbers(5000, 1001),
    );
    let wanted = tcp(ip.api, ip.client_a, SYN_ACK)
        .numbers(5000, 1001)
        .ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

/// A17.
#[privileged_test(families)]
fn a_udp_answer_comes_from_the_vip(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    forwarded(&mut lb, Port::Tenant, &ip.query(ip.client_a));
    for payload in [&b"me"[..], b"", &[9; 1452]] {
        let sent = forwarded(&mut lb, Port::Mgmt, &ip.answer(1024).payload(payload));
        let wanted = udp(ip.dns, ip.client_a).payload(payload).ttl(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    }
}

#[privileged_test(families)]
fn only_the_flows_own_backend_may_reply(ip: &Family) {
    let mut lb = ip.established();
    // The same port of another node, and of one that is no backend.
    let [other, unknown] =
        [ip.resolver_node, ip.pick("10.32.96.107", "fd00:32::107")].map(|node| ip.end(node, 30918));
    let strangers = [
        tcp(&other, &ip.snat(1024), ACK_ONLY),
        tcp(&unknown, &ip.snat(1024), ACK_ONLY),
        tcp(&ip.end(ip.node, 30919), &ip.snat(1024), ACK_ONLY),
        tcp(ip.kas, &ip.snat(1025), ACK_ONLY),
        tcp(ip.kas, &ip.snat(1023), ACK_ONLY),
        tcp(ip.kas, &ip.snat(64511), ACK_ONLY),
    ];
    for stranger in strangers {
        let bytes = stranger.between(ip.kas_mac, MGMT_NIC).bytes();
        assert_refused(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    }
    // A segment that only knocks gets no answer.
    let knocks = [&other, &unknown].into_iter().flat_map(|from| {
        [SYN_ONLY, SYN_ACK, RST_ACK].map(|flags| tcp(from, &ip.snat(1024), flags))
    });
    for stranger in knocks.chain([udp(ip.kas, &ip.snat(1024))]) {
        let bytes = stranger.between(ip.kas_mac, MGMT_NIC).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    }
}

/// DATA-PLANE-RULES 4: the same backend, the next flow on a recycled id.
#[privileged_test(families)]
fn a_late_reply_of_an_earlier_flow_does_not_reach_the_next_one(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let late = [
        ip.reply(1024, SYN_ACK).numbers(5000, 999),
        ip.reply(1024, ACK_ONLY)
            .numbers(5000, 999)
            .payload(b"secret"),
        ip.reply(1024, FIN_ACK).numbers(5000, 999),
    ];
    for frame in late {
        assert_dropped(&mut lb, Port::Mgmt, &frame.bytes(), "reply_unexpected");
    }
    // A challenge ACK of the backend's TIME_WAIT must get through: the client resets it.
    forwarded(
        &mut lb,
        Port::Mgmt,
        &ip.reply(1024, ACK_ONLY).numbers(5000, 999),
    );
}

/// Both FINs close a flow, and the next SYN of the same tuple opens it again.
#[privileged_test(families)]
fn a_flow_closes_and_opens_again(ip: &Family) {
    let mut lb = ip.established();
    let fin = request(ip.client_a, ip.api, FIN_ACK).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &fin);
    let fin = ip
        .reply(1024, FIN_ACK)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 2);
    forwarded(&mut lb, Port::Mgmt, &fin);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    let state = FlowState::from_raw(flow.word).state();
    assert_eq!(state, State::Closed);
    let ack = request(ip.client_a, ip.api, ACK_ONLY).numbers(CLIENT_ISN + 2, BACKEND_ISN + 2);
    forwarded(&mut lb, Port::Tenant, &ack);
    let late = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_dropped(&mut lb, Port::Tenant, &late.bytes(), "late_syn");
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN + 100_000, 0);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    // From whichever port.
    let port = u16::from_be_bytes([sent[ip.l4()], sent[ip.l4() + 1]]);
    let wanted = tcp(&ip.snat(port), ip.kas, SYN_ONLY).numbers(CLIENT_ISN + 100_000, 0);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, ip.kas_mac));
}
