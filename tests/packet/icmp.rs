//! ICMP: pings of a VIP, and errors about packets of a flow, to the end that had sent them.

use lb_common::{addr::Mac, conntrack::FlowState};
use lb_tests::{
    frames::packet::{Frame, check, flags::*, icmp, tag, tcp, udp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// The first `bytes` bytes of what a frame carries.
pub(crate) fn quote(frame: &Frame, bytes: usize) -> Vec<u8> {
    let mut packet = frame.packet();
    packet.truncate(bytes);
    packet
}

/// An error that a router on the backends' side sends.
pub(crate) fn from_hub(ip: &Family, kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let router = ip.pick("10.32.100.1", "fd00:40::1");
    let error = icmp(router, ip.snat, kind, rest).payload(body);
    error.between(ip.kas_mac, MGMT_NIC)
}

/// The same as the client must see it.
pub(crate) fn to_client(ip: &Family, kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(ip.vip, ip.host, kind, rest).payload(body).ttl(63);
    error.between(TENANT_NIC, CLIENT)
}

/// An error that a router on the clients' side sends.
pub(crate) fn from_tenant(ip: &Family, kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let router = ip.pick("10.99.9.9", "fd00:99::9");
    let error = icmp(router, ip.vip, kind, rest).payload(body);
    error.between(CLIENT, TENANT_NIC)
}

/// The same as the backend must see it.
pub(crate) fn to_backend(ip: &Family, kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(ip.snat, ip.node, kind, rest).payload(body).ttl(63);
    error.between(MGMT_NIC, ip.kas_mac)
}

/// What the resolver must see of an error about its datagram.
pub(crate) fn to_resolver(ip: &Family, kind: (u8, u8), rest: u32, body: &[u8]) -> Frame {
    let error = icmp(ip.snat, ip.resolver_node, kind, rest).payload(body);
    error.ttl(63).between(MGMT_NIC, ip.resolver_mac)
}

pub(crate) fn assert_becomes(lb: &mut DataPlane, port: Port, sent: &Frame, wanted: &Frame) {
    assert_frame(&forwarded(lb, port, sent), wanted);
}

/// Data of the client of [`Family::establish`] as it sent it, and as we sent it on.
pub(crate) fn request_pair(ip: &Family, sequence: u32) -> [Frame; 2] {
    [
        tcp(ip.client_a, ip.api, ACK_ONLY),
        tcp(&ip.snat(1024), ip.kas, ACK_ONLY),
    ]
    .map(|frame| {
        let data = frame.numbers(sequence, BACKEND_ISN + 1);
        data.payload(b"GET /version and so on").ttl(63)
    })
}

/// Data of the backend of [`Family::establish`] as it sent it, and as we sent it on.
pub(crate) fn reply_pair(ip: &Family, sequence: u32) -> [Frame; 2] {
    segment_pair(ip, sequence, 1420 + ip.header)
}

/// The same of packets of this length.
pub(crate) fn segment_pair(ip: &Family, sequence: u32, bytes: usize) -> [Frame; 2] {
    [
        tcp(ip.kas, &ip.snat(1024), ACK_ONLY),
        tcp(ip.api, ip.client_a, ACK_ONLY),
    ]
    .map(|frame| {
        let data = frame.numbers(sequence, CLIENT_ISN + 1);
        data.payload(&vec![0x5a; bytes - ip.header - 20]).ttl(63)
    })
}

/// A datagram of the backend as it sent it to this SNAT port, and as we sent it on to this client.
pub(crate) fn datagram_pair(ip: &Family, port: u16, client: &str, bytes: usize) -> [Frame; 2] {
    [udp(ip.resolver, &ip.snat(port)), udp(ip.dns, client)]
        .map(|frame| frame.payload(&vec![7; bytes - ip.header - 8]).ttl(63))
}

fn ping(ip: &Family) -> Frame {
    icmp(ip.host, ip.vip, ip.ping, 0x1234_0007).between(CLIENT, TENANT_NIC)
}

fn pong(ip: &Family) -> Frame {
    icmp(ip.vip, ip.host, ip.pong, 0x1234_0007).between(TENANT_NIC, CLIENT)
}

#[privileged_test(families)]
fn a_ping_of_a_vip_is_answered_by_the_vip(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    for length in [0, 1, 2, 56, 1400, 1492 - ip.header] {
        let body: Vec<u8> = (0..=250).cycle().take(length).collect();
        for ttl in [1, 64, 255] {
            let ping = ping(ip).ttl(ttl).payload(&body);
            let outcome = lb.receive(Port::Tenant, &ping.bytes());
            let transmitted = ("nic", "tenant-a".to_owned(), "transmitted");
            assert_eq!(
                (outcome.action, outcome.counted),
                (Action::Transmit, transmitted)
            );
            assert_frame(&outcome.frame, &pong(ip).payload(&body));
        }
    }
}

#[privileged_test(families)]
fn a_pings_wrong_checksum_stays_wrong(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let mut broken = ping(ip).payload(b"abc").bytes();
    *broken.last_mut().expect("a byte") ^= 0x10;
    let outcome = lb.receive(Port::Tenant, &broken);
    assert_eq!(outcome.action, Action::Transmit);
    assert!(check(&outcome.frame).is_err());
}

#[privileged_test(families)]
fn a_ping_from_a_tagged_network_is_answered_with_its_tag(ip: &Family) {
    let config = ip
        .config
        .replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let mut lb = DataPlane::new(&config);
    let outcome = lb.receive(Port::Tenant, &tag(&ping(ip).bytes(), 2003));
    assert_eq!(outcome.action, Action::Transmit);
    let (tci, answer) = untagged(&outcome.frame);
    assert_eq!((tci, answer), (Some(2003), pong(ip).bytes()));
}

/// The clients that may open flows may ping, and no others; a service's own rules say nothing about the
/// address.
#[privileged_test(families)]
fn a_ping_from_nowhere_is_not_answered(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let bogons = ip.pick(
        &["127.0.0.1", "224.0.0.5"][..],
        &["::1", "::", "ff02::5", "::ffff:192.0.2.9"],
    );
    let [stranger, undeclared] = ip.pick(
        ["192.168.204.1", "192.168.203.111"],
        ["fd00:204::1", "fd00:203::111"],
    );
    let bogons = bogons.iter().map(|source| (*source, ip.vip, "bogon"));
    let cases = bogons.chain([
        (stranger, ip.vip, "spoofed"),
        (ip.vip, ip.vip, "spoofed"),
        (ip.host, undeclared, "not_declared"),
    ]);
    for (source, destination, reason) in cases {
        let ping = icmp(source, destination, ip.ping, 7).between(CLIENT, TENANT_NIC);
        assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), reason);
    }
    for group in [[3, 0, 0, 0, 0xc, 1], [0x33, 0x33, 0, 0, 0, 1]] {
        let ping = ping(ip).between(Mac::new(group), TENANT_NIC);
        assert_dropped(&mut lb, Port::Tenant, &ping.bytes(), "group_source");
    }
    let ping = icmp(ip.node, ip.snat, ip.ping, 7).between(ip.kas_mac, MGMT_NIC);
    assert_dropped(&mut lb, Port::Mgmt, &ping.bytes(), "unsupported_protocol");
}

/// About a thousand at once for each CPU, and none of the refusals that others wait for.
#[privileged_test(families)]
fn pings_have_a_rate_of_their_own(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let bytes = ping(ip).bytes();
    let mut answered = 0;
    for _ in 0..20_000 {
        let ((action, _), _) = lb.run(Port::Tenant, &bytes, 1);
        answered += u32::from(action == Action::Transmit);
    }
    assert!((1000..20_000).contains(&answered), "{answered} of 20000");
    let counters = lb.counters();
    let count = |verdict| counters[&("nic", "tenant-a".to_owned(), verdict)];
    assert_eq!(count("transmitted"), u64::from(answered));
    assert_eq!(count("rate_limited") + count("transmitted"), 20_000);
    let stray = request(ip.client_a, ip.api, ACK_ONLY)
        .numbers(1000, 5000)
        .bytes();
    for _ in 0..100 {
        lb.run(Port::Tenant, &bytes, 1);
        lb.run(Port::Tenant, &bytes, 1);
        let ((action, _), _) = lb.run(Port::Tenant, &stray, 1);
        assert_eq!(action, Action::Transmit);
    }
}

/// RELIABILITY 17: the client of a flow gets the error from the VIP, wherever on the backends' side it arose; it sees
/// the packet that it had sent, as far as it is quoted.
#[privileged_test(families)]
fn an_error_about_a_request_reaches_its_client(ip: &Family) {
    let mut lb = ip.established();
    let [as_sent, as_forwarded] = request_pair(ip, CLIENT_ISN + 1);
    // Eight bytes of TCP; up to the byte before its checksum; with it; all of it.
    for l4 in [8, 17, 18, 20, 42] {
        let bytes = ip.header + l4;
        for (kind, rest) in [
            (ip.too_big, 1280),
            (ip.time_exceeded, 0),
            (ip.no_route, 0),
            (ip.parameter, ip.pick(0x0900_0000, 6)),
        ] {
            let sent = from_hub(ip, kind, rest, &quote(&as_forwarded, bytes));
            let mut body = quote(&as_sent, bytes);
            if l4 == 17 {
                // Half of the checksum is there: it stays as it was quoted.
                body[bytes - 1] = as_forwarded.packet()[bytes - 1];
            }
            assert_becomes(
                &mut lb,
                Port::Mgmt,
                &sent,
                &to_client(ip, kind, rest, &body),
            );
        }
    }
}

#[privileged_test(families)]
fn an_error_about_a_reply_reaches_its_backend(ip: &Family) {
    let mut lb = ip.established();
    let [as_sent, as_forwarded] = reply_pair(ip, BACKEND_ISN + 1);
    for l4 in [8, 18, 20, 42] {
        let bytes = ip.header + l4;
        for (kind, rest) in [(ip.too_big, 1280), (ip.time_exceeded, 0), (ip.no_route, 0)] {
            let sent = from_tenant(ip, kind, rest, &quote(&as_forwarded, bytes));
            let wanted = to_backend(ip, kind, rest, &quote(&as_sent, bytes));
            assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
        }
    }
}

/// Asserts that errors about datagrams are translated whose frames are as `altered` makes them.
pub(crate) fn assert_datagrams(ip: &Family, altered: fn(Frame) -> Frame) {
    let mut lb = DataPlane::new(ip.config);
    let query = ip.query(ip.client_a).payload(b"who?");
    forwarded(&mut lb, Port::Tenant, &query);
    let datagram = |from: &str, to: &str| altered(udp(from, to).ttl(63).payload(b"who?"));
    let snat = ip.snat(1024);
    let kind = ip.port_unreachable;
    for bytes in [ip.header + 8, ip.header + 12] {
        let as_sent = quote(&datagram(ip.client_a, ip.dns), bytes);
        let as_forwarded = quote(&datagram(&snat, ip.resolver), bytes);
        let sent = from_hub(ip, kind, 0, &as_forwarded);
        let wanted = to_client(ip, kind, 0, &as_sent);
        assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);

        let as_sent = quote(&datagram(ip.resolver, &snat), bytes);
        let as_forwarded = quote(&datagram(ip.dns, ip.client_a), bytes);
        let sent = from_tenant(ip, kind, 0, &as_forwarded);
        let wanted = to_resolver(ip, kind, 0, &as_sent);
        assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    }
}

#[privileged_test(families)]
fn an_error_about_a_datagram_is_translated(ip: &Family) {
    assert_datagrams(ip, |datagram| datagram);
}

/// RFC 5508: an error changes no flow. It goes where the flow's packets go.
#[privileged_test(families)]
fn an_error_leaves_the_flow_as_it_is(ip: &Family) {
    let mut lb = ip.established();
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.last_seen = 5;
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    let [as_sent, as_forwarded] = request_pair(ip, CLIENT_ISN + 1);
    let sent = from_hub(ip, ip.too_big, 1280, &quote(&as_forwarded, ip.header + 8));
    let wanted = to_client(ip, ip.too_big, 1280, &quote(&as_sent, ip.header + 8));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let [as_sent, as_forwarded] = reply_pair(ip, BACKEND_ISN + 1);
    let router = Mac::new([2, 0, 0, 0, 0xc, 9]);
    let sent = from_tenant(ip, ip.too_big, 1280, &quote(&as_forwarded, ip.header + 8))
        .between(router, TENANT_NIC);
    let wanted = to_backend(ip, ip.too_big, 1280, &quote(&as_sent, ip.header + 8));
    assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
}

/// Sequence numbers of either direction: from one before what the other end has acknowledged on.
#[privileged_test(families)]
fn only_a_number_that_may_be_in_flight_is_believed(ip: &Family) {
    let mut lb = ip.established();
    let window = 1 << 24;
    for (offset, believed) in [(-2, false), (-1, true), (0, true), (1_000_000, true)]
        .into_iter()
        .chain([(window - 2, true), (window - 1, false), (1 << 30, false)])
    {
        let [as_sent, as_forwarded] =
            request_pair(ip, (CLIENT_ISN + 1).wrapping_add_signed(offset));
        let sent = from_hub(ip, ip.too_big, 1280, &quote(&as_forwarded, ip.header + 8));
        let wanted = to_client(ip, ip.too_big, 1280, &quote(&as_sent, ip.header + 8));
        judge(&mut lb, Port::Mgmt, &sent, &wanted, believed);
        let [as_sent, as_forwarded] = reply_pair(ip, (BACKEND_ISN + 1).wrapping_add_signed(offset));
        let sent = from_tenant(ip, ip.too_big, 1280, &quote(&as_forwarded, ip.header + 8));
        let wanted = to_backend(ip, ip.too_big, 1280, &quote(&as_sent, ip.header + 8));
        judge(&mut lb, Port::Tenant, &sent, &wanted, believed);
    }
}

fn judge(lb: &mut DataPlane, port: Port, sent: &Frame, wanted: &Frame, believed: bool) {
    if believed {
        assert_becomes(lb, port, sent, wanted);
    } else {
        assert_dropped(lb, port, &sent.bytes(), "icmp_unrelated");
    }
}

/// A SYN, before a backend answered it, and the SYN-ACK: a client that cannot be served learns why.
#[privileged_test(families)]
fn the_first_segments_of_a_flow_may_be_quoted(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let [as_sent, as_forwarded] = [
        tcp(ip.client_a, ip.api, SYN_ONLY),
        tcp(&ip.snat(1024), ip.kas, SYN_ONLY),
    ]
    .map(|frame| frame.numbers(CLIENT_ISN, 0).ttl(63));
    let unreachable = ip.pick((3, 1), (1, 3));
    let sent = from_hub(ip, unreachable, 0, &quote(&as_forwarded, ip.header + 8));
    let wanted = to_client(ip, unreachable, 0, &quote(&as_sent, ip.header + 8));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let numbers = (BACKEND_ISN, CLIENT_ISN + 1);
    let syn_ack = ip.reply(1024, SYN_ACK).numbers(numbers.0, numbers.1);
    forwarded(&mut lb, Port::Mgmt, &syn_ack);
    let [as_sent, as_forwarded] = [
        tcp(ip.kas, &ip.snat(1024), SYN_ACK),
        tcp(ip.api, ip.client_a, SYN_ACK),
    ]
    .map(|frame| frame.numbers(numbers.0, numbers.1).ttl(63));
    let sent = from_tenant(
        ip,
        ip.time_exceeded,
        0,
        &quote(&as_forwarded, ip.header + 8),
    );
    let wanted = to_backend(ip, ip.time_exceeded, 0, &quote(&as_sent, ip.header + 8));
    assert_becomes(&mut lb, Port::Tenant, &sent, &wanted);
}

/// An error that quotes anything but a packet of ours of a flow that translates.
#[privileged_test(families)]
fn an_error_about_no_flow_is_dropped(ip: &Family) {
    let mut lb = ip.established();
    let number = CLIENT_ISN + 1;
    let unknown = ip.pick("10.32.96.107:30918", "[fd00:32::107]:30918");
    let other_snat = ip.pick("10.32.96.51:1024", "[fd00:32::51]:1024");
    let hub = [
        // Another backend, another port of it, another protocol, no flow, no port of flows.
        tcp(&ip.snat(1024), &ip.end(ip.resolver_node, 30918), ACK_ONLY),
        tcp(&ip.snat(1024), unknown, ACK_ONLY),
        tcp(&ip.snat(1024), &ip.end(ip.node, 30919), ACK_ONLY),
        udp(&ip.snat(1024), ip.kas),
        tcp(&ip.snat(1025), ip.kas, ACK_ONLY),
        tcp(&ip.snat(1023), ip.kas, ACK_ONLY),
        // Not sent by the host that the error is for.
        tcp(other_snat, ip.kas, ACK_ONLY),
    ];
    for frame in hub {
        let sent = from_hub(
            ip,
            ip.too_big,
            1280,
            &quote(&frame.numbers(number, 0), ip.header + 20),
        );
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
    }
    let other_vip = ip.pick("192.168.203.111:6443", "[fd00:203::111]:6443");
    let tenant = [
        tcp(ip.api, ip.client_b, ACK_ONLY),
        tcp(ip.api, &ip.end(ip.host, 40_001), ACK_ONLY),
        tcp(&ip.end(ip.vip, 6444), ip.client_a, ACK_ONLY),
        tcp(other_vip, ip.client_a, ACK_ONLY),
        udp(ip.api, ip.client_a),
    ];
    for frame in tenant {
        let body = quote(&frame.numbers(BACKEND_ISN + 1, 0), ip.header + 20);
        let sent = from_tenant(ip, ip.too_big, 1280, &body);
        assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "icmp_unrelated");
    }
    for protocol in [1, 58, 59] {
        let mut other = quote(&request_pair(ip, number)[1], ip.header + 20);
        other[ip.pick(9, 6)] = protocol;
        let sent = from_hub(ip, ip.too_big, 1280, &other);
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
    }
    // The flow is there all the same, until userspace ends it.
    let [as_sent, as_forwarded] = request_pair(ip, number);
    let sent = from_hub(ip, ip.too_big, 1280, &quote(&as_forwarded, ip.header + 20));
    let wanted = to_client(ip, ip.too_big, 1280, &quote(&as_sent, ip.header + 20));
    assert_becomes(&mut lb, Port::Mgmt, &sent, &wanted);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = FlowState::from_raw(flow.word).end().raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
}

/// Every length below the least that an error must quote, and header lengths that lie.
#[privileged_test(families)]
fn an_error_that_quotes_too_little_is_malformed(ip: &Family) {
    let mut lb = ip.established();
    let [_, as_forwarded] = request_pair(ip, CLIENT_ISN + 1);
    for bytes in 0..ip.header + 8 {
        let sent = from_hub(ip, ip.too_big, 1280, &quote(&as_forwarded, bytes));
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "malformed");
        // Padding is no quote.
        let padded = [sent.bytes(), vec![0; 40]].concat();
        assert_dropped(&mut lb, Port::Mgmt, &padded, "malformed");
    }
    for version in ip.pick(&[0x44, 0x46, 0x65][..], &[0x40, 0x50]) {
        let mut body = quote(&as_forwarded, ip.header + 8);
        body[0] = *version;
        let sent = from_hub(ip, ip.too_big, 1280, &body);
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "malformed");
    }
    let whole = from_hub(ip, ip.too_big, 1280, &quote(&as_forwarded, ip.header + 8)).bytes();
    for length in 14..whole.len() {
        assert_dropped(&mut lb, Port::Mgmt, &whole[..length], "malformed");
    }
    let ping = ping(ip).bytes();
    for length in 14..ping.len() {
        assert_dropped(&mut lb, Port::Tenant, &ping[..length], "malformed");
    }
}
