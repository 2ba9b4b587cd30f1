//! Packets that are too big for the way on or have spent their hops: their sender is told.

use lb_tests::{
    frames::{
        icmp::icmp,
        packet::{Frame, flags::*, tag, tcp, udp, untagged},
    },
    product::program::{Action, CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

const HOST: &str = "192.168.203.50";
const VIP: &str = "192.168.203.110";
const TOO_BIG: (u8, u8) = (3, 4);
const TIME_EXCEEDED: (u8, u8) = (11, 0);

/// IPv4 and TCP headers.
const HEADERS: usize = 40;

/// Says that the network with this name carries packets of `mtu` bytes; 0 says that nobody knows.
fn set_mtu(lb: &mut DataPlane, name: &str, mtu: u16) {
    let id = lb.ids.get(lb_user::model::registry::Kind::Network, name);
    let id = id.expect("a network of the configuration");
    let mut network = lb.maps.networks.get(&id, 0).expect("the network");
    network.mtu = mtu;
    lb.maps.networks.set(id, &network, 0).expect("a write");
}

/// Asserts that `frame` comes back in an ICMP error of this kind and nothing else.
fn assert_told(lb: &mut DataPlane, port: Port, frame: &Frame, error: (u8, u8), rest: u32) {
    let bytes = frame.bytes();
    let reason = if error == TOO_BIG {
        "too_big"
    } else {
        "ttl_expired"
    };
    let answer = assert_refused(lb, port, &bytes, reason);
    let address = |at: usize| {
        let octets: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
        std::net::Ipv4Addr::from(octets).to_string()
    };
    let (us, sender) = match port {
        Port::Mgmt => (MGMT_NIC, KAS_MAC),
        _ => (TENANT_NIC, CLIENT),
    };
    let wanted = icmp(&address(30), &address(26), error, rest)
        .between(us, sender)
        .fragment(0x4000)
        .body(&bytes[14..42]);
    let mut wanted = wanted.bytes();
    // Our own have no identification: they cannot be fragmented.
    wanted[18..20].fill(0);
    let checksum = lb_common::wire::checksum::full(&[&wanted[14..24], &wanted[26..34]].concat(), 0);
    wanted[24..26].copy_from_slice(&checksum.get().to_be_bytes());
    assert_eq!(answer, wanted);
}

fn data(length: usize) -> Frame {
    request(CLIENT_A, API, ACK_ONLY)
        .numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
        .payload(&vec![7; length - HEADERS])
}

fn answer(length: usize) -> Frame {
    reply(1024, ACK_ONLY)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .payload(&vec![7; length - HEADERS])
}

#[privileged_test]
fn who_may_not_be_fragmented_learns_the_mtu_of_the_other_side() {
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
        assert_told(&mut lb, Port::Mgmt, &answer(length), TOO_BIG, 1400);
    }
    // They did nothing to their flow, not even one that would have closed it.
    let fin = reply(1024, FIN_ACK)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .payload(&[7; 1400]);
    assert_told(&mut lb, Port::Mgmt, &fin, TOO_BIG, 1400);
    let fin = request(CLIENT_A, API, FIN_ACK)
        .numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
        .payload(&[7; 1300]);
    assert_told(&mut lb, Port::Tenant, &fin, TOO_BIG, 1280);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
    forwarded(&mut lb, Port::Tenant, &data(1280));
    forwarded(&mut lb, Port::Mgmt, &answer(1400));
}

#[privileged_test]
fn without_a_known_mtu_everything_goes_on() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    set_mtu(&mut lb, "mgmt", 0);
    forwarded(&mut lb, Port::Tenant, &data(3000));
    forwarded(&mut lb, Port::Mgmt, &answer(1500));
}

#[privileged_test]
fn who_may_be_fragmented_is_counted_and_told_nothing() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    set_mtu(&mut lb, "mgmt", 1280);
    let bytes = data(1281).fragment(0).bytes();
    assert_dropped(&mut lb, Port::Tenant, &bytes, "too_big");
    let query = query(CLIENT_A).payload(&[7; 1300]).fragment(0);
    assert_dropped(&mut lb, Port::Tenant, &query.bytes(), "too_big");
}

#[privileged_test]
fn what_is_too_big_makes_no_flow() {
    let mut lb = DataPlane::new(CONFIG);
    set_mtu(&mut lb, "mgmt", 1280);
    let big = query(CLIENT_A).payload(&[7; 1253]);
    assert_told(&mut lb, Port::Tenant, &big, TOO_BIG, 1280);
    assert_eq!(lb.drain_free_ids().len(), IDS);
}

#[privileged_test]
fn the_error_goes_back_with_its_tag() {
    let config = CONFIG.replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let mut lb = DataPlane::new(&config);
    set_mtu(&mut lb, "mgmt", 1280);
    let big = query(CLIENT_A).payload(&[7; 1253]).bytes();
    let outcome = lb.receive(Port::Tenant, &tag(&big, 2003));
    assert_eq!(
        (outcome.action, outcome.counted.2),
        (Action::Transmit, "refused: too_big")
    );
    let (tci, frame) = untagged(&outcome.frame);
    assert_eq!((tci, frame.len()), (Some(2003), 70));
    assert_eq!(frame[34..36], [3, 4]);
    assert_eq!(frame[38..42], [0, 0, 5, 0]);
}

/// Options would move what is quoted; a reset, a station that is a group and a packet without a
/// service get no answer either.
#[privileged_test]
fn what_must_not_be_answered_is_not() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    set_mtu(&mut lb, "mgmt", 1280);
    let options = data(1300).options(&[1; 4]).bytes();
    assert_dropped(&mut lb, Port::Tenant, &options, "too_big");
    let reset = request(CLIENT_A, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    let big = reset.clone().payload(&[7; 1300]).bytes();
    assert_dropped(&mut lb, Port::Tenant, &big, "too_big");
    assert_dropped(&mut lb, Port::Tenant, &reset.ttl(1).bytes(), "ttl_expired");
    let group = lb_common::addr::Mac::new([3, 0, 0, 0, 0xc, 1]);
    let bytes = data(1300).between(group, TENANT_NIC).bytes();
    assert_dropped(&mut lb, Port::Tenant, &bytes, "group_source");
    let closed = tcp(CLIENT_A, "192.168.203.110:22", SYN_ONLY).between(CLIENT, TENANT_NIC);
    assert_dropped(&mut lb, Port::Tenant, &closed.ttl(1).bytes(), "no_service");
    let spoofed = request("192.168.204.1:40000", API, SYN_ONLY).ttl(1);
    assert_dropped(&mut lb, Port::Tenant, &spoofed.bytes(), "spoofed");
}

/// A traceroute to a service ends at its VIP, whoever would come next.
#[privileged_test]
fn the_last_hop_to_a_service_is_its_vip() {
    let mut lb = DataPlane::new(CONFIG);
    for ttl in [0, 1] {
        let syn = request(CLIENT_A, API, SYN_ONLY).ttl(ttl);
        assert_told(&mut lb, Port::Tenant, &syn, TIME_EXCEEDED, 0);
        let query = query(CLIENT_A).payload(b"who?").ttl(ttl);
        assert_told(&mut lb, Port::Tenant, &query, TIME_EXCEEDED, 0);
        let fragmentable = udp(CLIENT_A, DNS).between(CLIENT, TENANT_NIC).fragment(0);
        assert_told(
            &mut lb,
            Port::Tenant,
            &fragmentable.ttl(ttl),
            TIME_EXCEEDED,
            0,
        );
    }
    assert_eq!(lb.maps.flow_index.keys().count(), 0);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    assert_told(&mut lb, Port::Tenant, &data(100).ttl(1), TIME_EXCEEDED, 0);
    assert_told(&mut lb, Port::Mgmt, &answer(100).ttl(1), TIME_EXCEEDED, 0);
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
    let stray = reply(1025, SYN_ACK).numbers(5000, 1).ttl(1).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &stray, "reply_mismatch");
    // Nothing is spent on the way: two hops are one more.
    let sent = forwarded(&mut lb, Port::Tenant, &data(100).ttl(2));
    assert_eq!(sent[22], 1);
    // An error about an error would never end.
    let error = icmp(HOST, VIP, TIME_EXCEEDED, 0).between(CLIENT, TENANT_NIC);
    let error = error.body(&data(100).bytes()[14..42]).ttl(1).bytes();
    assert_dropped(&mut lb, Port::Tenant, &error, "icmp_unrelated");
}
