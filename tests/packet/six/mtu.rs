//! Packets that are too big for the way on or have spent their hops: their sender is told.

use lb_tests::frames::six::{Frame, IPV6, icmp, read};

use super::given::*;

const TOO_BIG: (u8, u8) = (2, 0);
const TIME_EXCEEDED: (u8, u8) = (3, 0);

/// IPv6 and TCP headers.
const HEADERS: usize = 60;
/// What an error quotes at least: the IPv6 header, and eight bytes.
const QUOTED: usize = IPV6 + 8;

/// Asserts that `frame` comes back in an ICMPv6 error of this kind and nothing else.
fn assert_told(lb: &mut DataPlane, port: Port, frame: &Frame, error: (u8, u8), rest: u32) {
    let bytes = frame.bytes();
    let reason = if error == TOO_BIG {
        "too_big"
    } else {
        "ttl_expired"
    };
    let answer = assert_refused(lb, port, &bytes, reason);
    let (us, sender) = match port {
        Port::Mgmt => (MGMT_NIC, KAS_MAC),
        _ => (TENANT_NIC, CLIENT),
    };
    let about = read(&bytes).expect("IPv6");
    let quote = answer.get(14 + IPV6 + 8..).expect("a whole header");
    assert!(quote.len() >= QUOTED, "{} bytes", quote.len());
    assert!(
        answer.len() <= 14 + 1280,
        "the least that everybody carries"
    );
    let packet = frame.packet();
    assert_eq!(quote, &packet[..quote.len()], "as it was sent");
    let [from, to] = [about.destination, about.source].map(|address| address.to_string());
    let wanted = icmp(&from, &to, error, rest)
        .between(us, sender)
        .payload(quote);
    assert_frame(&answer, &wanted);
}

fn data(length: usize) -> Frame {
    request(CLIENT_A, API, ACK_ONLY)
        .numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
        .payload(&vec![7; length - HEADERS])
}

fn back(length: usize) -> Frame {
    reply(1024, ACK_ONLY)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .payload(&vec![7; length - HEADERS])
}

#[privileged_test]
fn reliability_16_the_sender_learns_the_mtu_of_the_other_side() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    set_mtu(&mut lb, "mgmt", 1280);
    set_mtu(&mut lb, "tenant-a", 1400);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    for length in [1281, 1400, 1500] {
        assert_told(&mut lb, Port::Tenant, &data(length), TOO_BIG, 1280);
    }
    for length in [1401, 1500] {
        assert_told(&mut lb, Port::Mgmt, &back(length), TOO_BIG, 1400);
    }
    // They did nothing to their flow, not even one that would have closed it.
    let fin = reply(1024, FIN_ACK)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .payload(&[7; 1400]);
    assert_told(&mut lb, Port::Mgmt, &fin, TOO_BIG, 1400);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
    forwarded(&mut lb, Port::Tenant, &data(1280));
    forwarded(&mut lb, Port::Mgmt, &back(1400));
}

#[privileged_test]
fn what_is_too_big_makes_no_flow() {
    let mut lb = DataPlane::new(CONFIG);
    set_mtu(&mut lb, "mgmt", 1280);
    let big = query(CLIENT_A).payload(&[7; 1281 - 48]);
    assert_told(&mut lb, Port::Tenant, &big, TOO_BIG, 1280);
    assert_eq!(lb.maps.flow_index.keys().count(), 0);
    forwarded(
        &mut lb,
        Port::Tenant,
        &query(CLIENT_A).payload(&[7; 1280 - 48]),
    );
}

/// A reset, a station that is a group and a packet without a service get no answer.
#[privileged_test]
fn what_must_not_be_answered_is_not() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    set_mtu(&mut lb, "mgmt", 1280);
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    let big = reset.clone().payload(&[7; 1300]).bytes();
    assert_dropped(&mut lb, Port::Tenant, &big, "too_big");
    assert_dropped(&mut lb, Port::Tenant, &reset.hops(1).bytes(), "ttl_expired");
    let group = lb_common::addr::Mac::new([0x33, 0x33, 0, 0, 0, 1]);
    let bytes = data(1300).between(group, TENANT_NIC).bytes();
    assert_dropped(&mut lb, Port::Tenant, &bytes, "group_source");
    let closed = request(CLIENT_A, "[fd00:203::110]:22", SYN_ONLY).hops(1);
    assert_dropped(&mut lb, Port::Tenant, &closed.bytes(), "no_service");
    let spoofed = request("[fd00:204::1]:40000", API, SYN_ONLY).hops(1);
    assert_dropped(&mut lb, Port::Tenant, &spoofed.bytes(), "spoofed");
}

/// A traceroute to a service ends at its VIP, whoever would come next.
#[privileged_test]
fn reliability_17_the_last_hop_to_a_service_is_its_vip() {
    let mut lb = DataPlane::new(CONFIG);
    for hops in [0, 1] {
        let syn = request(CLIENT_A, API, SYN_ONLY).hops(hops);
        assert_told(&mut lb, Port::Tenant, &syn, TIME_EXCEEDED, 0);
        let query = query(CLIENT_A).payload(b"who?").hops(hops);
        assert_told(&mut lb, Port::Tenant, &query, TIME_EXCEEDED, 0);
    }
    assert_eq!(lb.maps.flow_index.keys().count(), 0);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    assert_told(&mut lb, Port::Tenant, &data(100).hops(1), TIME_EXCEEDED, 0);
    assert_told(&mut lb, Port::Mgmt, &back(100).hops(1), TIME_EXCEEDED, 0);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
    // Nothing is spent on the way: two hops are one more.
    let sent = forwarded(&mut lb, Port::Tenant, &data(100).hops(2));
    assert_eq!(read(&sent).expect("IPv6").hops, 1);
}
