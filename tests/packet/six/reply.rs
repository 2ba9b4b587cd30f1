//! Backend to SNAT port.

use lb_tests::frames::six::{tcp, udp};

use super::given::*;

/// SYN-ACK: source becomes the VIP, destination the client; the frame goes from the tenant NIC to
/// the station that the SYN came from.
#[privileged_test]
fn a17_a_reply_comes_from_the_vip() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let syn_ack = reply(1024, SYN_ACK).numbers(5000, 1001);
    let sent = forwarded(&mut lb, Port::Mgmt, &syn_ack);
    let wanted = tcp(API, CLIENT_A, SYN_ACK).numbers(5000, 1001).hops(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

#[privileged_test]
fn a17_a_udp_answer_comes_from_the_vip() {
    let mut lb = DataPlane::new(CONFIG);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A));
    for payload in [&b"me"[..], b"", &[9; 1452]] {
        let sent = forwarded(&mut lb, Port::Mgmt, &answer(1024).payload(payload));
        let wanted = udp(DNS, CLIENT_A).payload(payload).hops(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    }
}

#[privileged_test]
fn only_the_flows_own_backend_may_reply() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let strangers = [
        tcp("[fd00:32::106]:30918", &snat(1024), ACK_ONLY),
        tcp("[fd00:32::107]:30918", &snat(1024), ACK_ONLY),
        tcp("[fd00:32::105]:30919", &snat(1024), ACK_ONLY),
        tcp(KAS, &snat(1025), ACK_ONLY),
        tcp(KAS, &snat(1023), ACK_ONLY),
    ];
    for stranger in strangers {
        let bytes = stranger.between(KAS_MAC, MGMT_NIC).bytes();
        assert_refused(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    }
    // Who only knocks learns nothing.
    for stranger in [
        udp(KAS, &snat(1024)),
        tcp("[fd00:32::107]:30918", &snat(1024), SYN_ONLY),
        tcp("[fd00:32::107]:30918", &snat(1024), RST_ACK),
    ] {
        let bytes = stranger.between(KAS_MAC, MGMT_NIC).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    }
}

/// Both FINs close a flow, and the next SYN of the same tuple opens it again.
#[privileged_test]
fn a_flow_closes_and_opens_again() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let fin = request(CLIENT_A, API, FIN_ACK).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &fin);
    let fin = reply(1024, FIN_ACK).numbers(BACKEND_ISN + 1, CLIENT_ISN + 2);
    forwarded(&mut lb, Port::Mgmt, &fin);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    let state = lb_common::conntrack::FlowState::from_raw(flow.word).state();
    assert_eq!(state, lb_common::conntrack::State::Closed);
    let ack = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 2, BACKEND_ISN + 2);
    forwarded(&mut lb, Port::Tenant, &ack);
    let late = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_dropped(&mut lb, Port::Tenant, &late.bytes(), "late_syn");
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN + 100_000, 0);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let read = lb_tests::frames::six::read(&sent).expect("IPv6");
    assert_eq!(read.destination.to_string(), NODE);
}

/// A client of IPv4 has nothing to do with it: what it sends to the same host is no reply.
#[privileged_test]
fn ipv4_from_the_backend_is_no_reply() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let frame = lb_tests::frames::packet::tcp("10.32.96.105:30918", "10.32.96.50:1024", ACK_ONLY);
    let bytes = frame.between(KAS_MAC, MGMT_NIC).bytes();
    assert_passed(&mut lb, Port::Mgmt, &bytes);
}
