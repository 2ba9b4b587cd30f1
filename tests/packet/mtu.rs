//! Packets that are too big for the way on or have spent their hops: their sender gets an ICMP error.

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Frame, flags::*, icmp, tag, untagged},
    product::program::{Action, CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// Asserts that `frame` comes back in an ICMP error of this kind and nothing else.
pub(crate) fn assert_told(
    ip: &Family,
    lb: &mut DataPlane,
    port: Port,
    frame: &Frame,
    error: (u8, u8),
    rest: u32,
) {
    let reason = if error == ip.too_big {
        "too_big"
    } else {
        "ttl_expired"
    };
    let answer = assert_refused(lb, port, &frame.bytes(), reason);
    assert_error(ip, port, &answer, frame, error, rest);
}

/// Asserts that `answer` is an ICMP error of this kind about `frame`, and nothing else.
pub(crate) fn assert_error(
    ip: &Family,
    port: Port,
    answer: &[u8],
    frame: &Frame,
    error: (u8, u8),
    rest: u32,
) {
    let (us, sender) = match port {
        Port::Mgmt => ((MGMT_NIC, ip.snat), (ip.kas_mac, ip.node)),
        _ => ((TENANT_NIC, ip.vip), (CLIENT, ip.host)),
    };
    let quote = answer.get(ip.l4() + 8..).expect("a whole header");
    // Of IPv6 as much as fits into what every network carries.
    let lengths = ip.pick(28..=28, 48..=1280 - 48);
    assert!(lengths.contains(&quote.len()), "{} bytes", quote.len());
    assert_eq!(quote, &frame.packet()[..quote.len()], "as it was sent");
    let wanted = icmp(us.1, sender.1, error, rest).between(us.0, sender.0);
    assert_frame(answer, &ip.of_ours(wanted).payload(quote));
}

fn data(ip: &Family, length: usize) -> Frame {
    request(ip.client_a, ip.api, ACK_ONLY)
        .numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
        .payload(&vec![7; length - ip.header - 20])
}

fn back(ip: &Family, length: usize) -> Frame {
    ip.reply(1024, ACK_ONLY)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .payload(&vec![7; length - ip.header - 20])
}

/// A query whose packet has this length.
fn query(ip: &Family, length: usize) -> Frame {
    ip.query(ip.client_a)
        .payload(&vec![7; length - ip.header - 8])
}

/// RELIABILITY 16: over IPv4, an end that forbids fragments.
#[privileged_test(families)]
fn the_sender_learns_the_mtu_of_the_other_side(ip: &Family) {
    let mut lb = ip.established();
    set_mtu(&mut lb, "mgmt", 1280);
    set_mtu(&mut lb, "tenant-a", 1400);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    for length in [1281, 1400, 1500] {
        assert_told(
            ip,
            &mut lb,
            Port::Tenant,
            &data(ip, length),
            ip.too_big,
            1280,
        );
    }
    for length in [1401, 1500] {
        assert_told(ip, &mut lb, Port::Mgmt, &back(ip, length), ip.too_big, 1400);
    }
    // They did nothing to their flow, not even one that would have closed it.
    let fin = ip
        .reply(1024, FIN_ACK)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .payload(&[7; 1400]);
    assert_told(ip, &mut lb, Port::Mgmt, &fin, ip.too_big, 1400);
    let fin = request(ip.client_a, ip.api, FIN_ACK)
        .numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
        .payload(&[7; 1300]);
    assert_told(ip, &mut lb, Port::Tenant, &fin, ip.too_big, 1280);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
    forwarded(&mut lb, Port::Tenant, &data(ip, 1280));
    forwarded(&mut lb, Port::Mgmt, &back(ip, 1400));
}

#[privileged_test(families)]
fn without_a_known_mtu_everything_goes_on(ip: &Family) {
    let mut lb = ip.established();
    set_mtu(&mut lb, "mgmt", 0);
    forwarded(&mut lb, Port::Tenant, &data(ip, 3000));
    forwarded(&mut lb, Port::Mgmt, &back(ip, 1500));
}

#[privileged_test(families)]
fn what_is_too_big_makes_no_flow(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    set_mtu(&mut lb, "mgmt", 1280);
    assert_told(
        ip,
        &mut lb,
        Port::Tenant,
        &query(ip, 1281),
        ip.too_big,
        1280,
    );
    assert_eq!(lb.maps.flow_lines.ids().count(), 0);
    forwarded(&mut lb, Port::Tenant, &query(ip, 1280));
    assert_eq!(lb.drain_free_ids().len(), IDS - 1);
}

#[privileged_test(families)]
fn the_error_goes_back_with_its_tag(ip: &Family) {
    let config = ip
        .config
        .replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let mut lb = DataPlane::new(&config);
    set_mtu(&mut lb, "mgmt", 1280);
    let big = query(ip, 1281);
    let outcome = lb.receive(Port::Tenant, &tag(&big.bytes(), 2003));
    assert_eq!(
        (outcome.action, outcome.counted.2),
        (Action::Transmit, "refused: too_big")
    );
    let (tci, answer) = untagged(&outcome.frame);
    assert_eq!(tci, Some(2003));
    assert_error(ip, Port::Tenant, &answer, &big, ip.too_big, 1280);
}

/// A reset, a station that is a group and a packet without a service get no answer.
#[privileged_test(families)]
fn what_must_not_be_answered_is_not(ip: &Family) {
    let mut lb = ip.established();
    set_mtu(&mut lb, "mgmt", 1280);
    let reset = request(ip.client_a, ip.api, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    let big = reset.clone().payload(&[7; 1300]).bytes();
    assert_dropped(&mut lb, Port::Tenant, &big, "too_big");
    assert_dropped(&mut lb, Port::Tenant, &reset.ttl(1).bytes(), "ttl_expired");
    for group in [[3, 0, 0, 0, 0xc, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        let bytes = data(ip, 1300).between(Mac::new(group), TENANT_NIC).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "group_source");
    }
    let closed = request(ip.client_a, &ip.end(ip.vip, 22), SYN_ONLY).ttl(1);
    assert_dropped(&mut lb, Port::Tenant, &closed.bytes(), "no_service");
    let elsewhere = ip.pick("192.168.204.1:40000", "[fd00:204::1]:40000");
    let spoofed = request(elsewhere, ip.api, SYN_ONLY).ttl(1);
    assert_dropped(&mut lb, Port::Tenant, &spoofed.bytes(), "spoofed");
}

/// RELIABILITY 17: a traceroute to a service ends at its VIP, whichever host would come next.
#[privileged_test(families)]
fn the_last_hop_to_a_service_is_its_vip(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let expired = ip.time_exceeded;
    for ttl in [0, 1] {
        let syn = request(ip.client_a, ip.api, SYN_ONLY).ttl(ttl);
        assert_told(ip, &mut lb, Port::Tenant, &syn, expired, 0);
        let query = ip.query(ip.client_a).payload(b"who?").ttl(ttl);
        assert_told(ip, &mut lb, Port::Tenant, &query, expired, 0);
    }
    assert_eq!(lb.maps.flow_lines.ids().count(), 0);
    ip.establish(&mut lb, ip.client_a, 1024);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    assert_told(ip, &mut lb, Port::Tenant, &data(ip, 100).ttl(1), expired, 0);
    assert_told(ip, &mut lb, Port::Mgmt, &back(ip, 100).ttl(1), expired, 0);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
    let stray = ip.reply(1025, SYN_ACK).numbers(5000, 1).ttl(1).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &stray, "reply_mismatch");
    // Nothing is spent on the way: two hops are one more.
    let sent = forwarded(&mut lb, Port::Tenant, &data(ip, 100).ttl(2));
    assert_eq!(sent[ip.pick(22, 21)], 1);
    // An error about an error would never end.
    let quote = &data(ip, 100).packet()[..ip.header + 8];
    let error = icmp(ip.host, ip.vip, expired, 0).between(CLIENT, TENANT_NIC);
    let error = error.payload(quote).ttl(1).bytes();
    assert_dropped(&mut lb, Port::Tenant, &error, "icmp_unrelated");
}
