//! Who cannot be served is told so.

use lb_tests::frames::six::{Frame, IPV6, L4, icmp, tcp, udp};

use super::given::*;

const EMPTY: &str = "[fd00:203::110]:80";
const EMPTY_UDP: &str = "[fd00:203::110]:54";

/// A reset as it must be but for its window; what stands behind it is padding.
fn assert_reset(found: &[u8], wanted: Frame) {
    let wanted = wanted.window(0).bytes();
    assert_eq!(found[..wanted.len()], wanted, "{found:02x?}");
    assert!(found[wanted.len()..].iter().all(|byte| *byte == 0));
}

#[privileged_test]
fn a_syn_to_an_empty_pool_is_reset() {
    let mut lb = DataPlane::new(CONFIG);
    for options in [&[][..], &[2, 4, 5, 0xa0]] {
        let syn = request(CLIENT_A, EMPTY, SYN_ONLY)
            .numbers(1000, 0)
            .tcp_options(options);
        let answer = assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "no_backend");
        let wanted = tcp(EMPTY, CLIENT_A, RST_ACK).numbers(0, 1001);
        assert_reset(&answer, wanted.between(TENANT_NIC, CLIENT));
    }
}

#[privileged_test]
fn the_rest_of_an_unknown_connection_is_reset_from_either_side() {
    let mut lb = DataPlane::new(CONFIG);
    let data = request(CLIENT_A, API, ACK_ONLY)
        .numbers(1000, 5000)
        .payload(&[7; 1000]);
    let answer = assert_refused(&mut lb, Port::Tenant, &data.bytes(), "no_flow");
    assert_eq!(answer.len(), L4 + 20, "the data is cut off");
    let wanted = tcp(API, CLIENT_A, RST_ONLY).numbers(5000, 0);
    assert_reset(&answer, wanted.between(TENANT_NIC, CLIENT));
    let data = reply(1024, ACK_ONLY).numbers(5000, 1000).payload(&[7; 100]);
    let answer = assert_refused(&mut lb, Port::Mgmt, &data.bytes(), "reply_mismatch");
    let wanted = tcp(&snat(1024), KAS, RST_ONLY).numbers(1000, 0);
    assert_reset(&answer, wanted.between(MGMT_NIC, KAS_MAC));
}

#[privileged_test]
fn a_datagram_that_cannot_be_served_comes_back_as_unreachable() {
    let mut lb = DataPlane::new(CONFIG);
    for payload in [0, 1, 600] {
        let query = udp(CLIENT_A, EMPTY_UDP)
            .between(CLIENT, TENANT_NIC)
            .payload(&vec![7; payload]);
        let bytes = query.bytes();
        let answer = assert_refused(&mut lb, Port::Tenant, &bytes, "no_backend");
        let quote = &answer[14 + IPV6 + 8..];
        assert!(quote.len() >= IPV6 + 8);
        assert_eq!(quote, &query.packet()[..quote.len()]);
        let wanted = icmp(VIP, HOST, (1, 4), 0).payload(quote);
        assert_frame(&answer, &wanted.between(TENANT_NIC, CLIENT));
    }
}

/// A reset of what had extension headers has none; where that is not possible there is no answer.
#[privileged_test]
fn a_syn_behind_options_is_reset_or_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let syn = request(CLIENT_A, EMPTY, SYN_ONLY)
        .numbers(1000, 0)
        .extension(lb_tests::frames::six::Extension::Destination(vec![]));
    let outcome = lb.receive(Port::Tenant, &syn.bytes());
    match outcome.action {
        Action::Drop => assert_eq!(outcome.counted.2, "no_backend"),
        _ => {
            let wanted = tcp(EMPTY, CLIENT_A, RST_ACK).numbers(0, 1001);
            assert_reset(&outcome.frame, wanted.between(TENANT_NIC, CLIENT));
        }
    }
}
