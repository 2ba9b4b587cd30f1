//! Backend to SNAT port.

use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// SYN-ACK: source becomes the VIP, destination the client; the frame goes from the tenant NIC to
/// the station that the SYN came from.
#[privileged_test]
fn a_reply_comes_from_the_vip() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let sent = forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, SYN_ACK).numbers(5000, 1001),
    );
    let wanted = tcp(API, CLIENT_A, SYN_ACK).numbers(5000, 1001).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

#[privileged_test]
fn a_udp_answer_comes_from_the_vip() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A));
    let answer = udp(RESOLVER, &snat(1024))
        .payload(b"me")
        .between(RESOLVER_MAC, MGMT_NIC);
    let sent = forwarded(&mut lb, Port::Mgmt, &answer);
    let wanted = udp(DNS, CLIENT_A).payload(b"me").ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

#[privileged_test]
fn only_the_flows_own_backend_may_reply() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let strangers = [
        tcp("10.32.96.106:30918", &snat(1024), ACK_ONLY),
        tcp("10.32.96.105:30919", &snat(1024), ACK_ONLY),
        tcp(KAS, &snat(1025), ACK_ONLY),
        tcp(KAS, &snat(1023), ACK_ONLY),
        tcp(KAS, &snat(64511), ACK_ONLY),
    ];
    for stranger in strangers {
        let bytes = stranger.between(KAS_MAC, MGMT_NIC).bytes();
        assert_refused(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    }
    // Who only knocks learns nothing.
    for stranger in [
        udp(KAS, &snat(1024)),
        tcp("10.32.96.106:30918", &snat(1024), SYN_ONLY),
        tcp("10.32.96.106:30918", &snat(1024), SYN_ACK),
        tcp("10.32.96.106:30918", &snat(1024), RST_ACK),
    ] {
        let bytes = stranger.between(KAS_MAC, MGMT_NIC).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    }
}

/// DATA-PLANE-RULES 4: the same backend, the next flow on a recycled id.
#[privileged_test]
fn a_late_reply_of_an_earlier_flow_does_not_reach_the_next_one() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0),
    );
    let late = [
        reply(1024, SYN_ACK).numbers(5000, 999),
        reply(1024, ACK_ONLY).numbers(5000, 999).payload(b"secret"),
        reply(1024, FIN_ACK).numbers(5000, 999),
    ];
    for frame in late {
        assert_dropped(&mut lb, Port::Mgmt, &frame.bytes(), "reply_unexpected");
    }
    // A challenge ACK of the backend's TIME_WAIT must get through: the client resets it.
    forwarded(
        &mut lb,
        Port::Mgmt,
        &reply(1024, ACK_ONLY).numbers(5000, 999),
    );
}
