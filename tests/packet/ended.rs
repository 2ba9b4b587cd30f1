//! A client whose flow was cut, and that goes on: it gets a reset by its own numbers, whatever the
//! change has left of its service. No other host learns anything.

use std::net::Ipv4Addr;

use lb_common::{
    addr::Be16,
    maps::{network::AddressKey, rule::DENY, service::ServiceKey},
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp},
    product::program::{CLIENT, DataPlane, Port, TENANT_NIC},
};

use super::given::*;

/// The API is for a whole prefix; there are more clients in the network.
const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas-a: { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api-a: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a, allow: [192.168.203.0/24] }
"#;

const PORT: u16 = 1024;
const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 110);
/// Numbers of a client that is far ahead of those in its entry.
const AHEAD: [u32; 2] = [90_000, 70_000];

/// A change, and the reason that a client's segments are refused for afterwards.
type Change = (fn(&mut DataPlane), &'static str);

const CHANGES: [Change; 4] = [
    (remove_listener, "no_service"),
    (remove_vip, "not_declared"),
    (deny_client, "denied"),
    (disown_client, "spoofed"),
];

fn network(lb: &DataPlane) -> u16 {
    lb.desired.networks[1].0
}

fn listener(lb: &DataPlane) -> ServiceKey {
    ServiceKey {
        vip: VIP.into(),
        port: Be16::new(6443),
        network: network(lb),
        protocol: 6,
    }
}

fn remove_listener(lb: &mut DataPlane) {
    let key = listener(lb);
    lb.maps.services.remove(&key).expect("the listener");
}

fn remove_vip(lb: &mut DataPlane) {
    let key = AddressKey::new(VIP.into(), network(lb));
    lb.maps
        .doors
        .close(|door, _| door.destination == key.address);
    lb.maps.addresses.remove(&key).expect("the VIP");
    remove_listener(lb);
}

/// The rules of the service deny the client, and let others in.
fn deny_client(lb: &mut DataPlane) {
    let service = lb.maps.services.get(&listener(lb), 0).expect("the service");
    deny(lb, service.rules);
}

/// The network does not have the client's address any more.
fn disown_client(lb: &mut DataPlane) {
    let record = lb.maps.networks.get(&u32::from(network(lb)), 0);
    deny(lb, record.expect("the network").sources);
}

fn deny(lb: &mut DataPlane, set: u32) {
    let client = "192.168.203.50/32".parse().expect("a prefix");
    let rules = [(client, DENY)].into();
    lb.maps.write_rules(set, &rules).expect("room for a rule");
}

/// As a cut does it.
fn end(lb: &DataPlane) {
    let table = lb.flow_table();
    let id = DataPlane::flow_id(PORT);
    let word = table.word(id).expect("an entry");
    assert!(table.swap(id, word, word.end()));
}

fn ended(change: fn(&mut DataPlane)) -> DataPlane {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, PORT);
    change(&mut lb);
    end(&lb);
    lb
}

fn segment(flags: u8) -> Frame {
    request(CLIENT_A, API, flags).numbers(AHEAD[0], AHEAD[1])
}

fn assert_reset(lb: &mut DataPlane, sent: &Frame, reason: &str, flags: u8, numbers: [u32; 2]) {
    let answer = assert_refused(lb, Port::Tenant, &sent.bytes(), reason);
    let wanted = tcp(API, CLIENT_A, flags).numbers(numbers[0], numbers[1]);
    let wanted = wanted.between(TENANT_NIC, CLIENT).bytes();
    // But for identification, checksum of that header and window, which the builder fills in otherwise;
    // both checksums were verified.
    for field in [0..18, 20..24, 26..48] {
        assert_eq!(answer[field.clone()], wanted[field], "{answer:02x?}");
    }
    assert_eq!(answer[48..50], [0, 0], "window");
}

#[privileged_test]
fn a_client_of_an_ended_flow_is_told_whatever_its_policy_is_now() {
    for (change, reason) in CHANGES {
        let mut lb = ended(change);
        let acknowledges = [AHEAD[1], 0];
        for flags in [ACK_ONLY, FIN_ACK] {
            assert_reset(&mut lb, &segment(flags), reason, RST_ONLY, acknowledges);
        }
        let data = segment(ACK_ONLY).payload(&[7; 1000]);
        assert_reset(&mut lb, &data, reason, RST_ONLY, acknowledges);
        let without_ack = segment(0).payload(&[7; 100]);
        let numbers = [0, AHEAD[0] + 100];
        assert_reset(&mut lb, &without_ack, reason, RST_ACK, numbers);
    }
}

#[privileged_test]
fn who_opens_or_resets_learns_nothing_nor_who_has_no_flow() {
    for (change, reason) in CHANGES {
        let mut lb = ended(change);
        let mut silent = |frame: &Frame| {
            let bytes = frame.bytes();
            assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
        };
        for flags in [SYN_ONLY, SYN_ACK, RST_ONLY, RST_ACK] {
            silent(&segment(flags));
        }
        // Another port of it, and what only looks like the flow.
        silent(&request("192.168.203.50:40001", API, ACK_ONLY));
        let other = segment(ACK_ONLY).bytes();
        let group = [&other[..6], &[0xff; 6], &other[12..]].concat();
        assert_dropped(&mut lb, Port::Tenant, &group, "group_source");
        // A flow that is forgotten, as a sweep does.
        let table = lb.flow_table();
        let id = DataPlane::flow_id(PORT);
        let word = table.word(id).expect("an entry");
        assert!(table.swap(id, word, word.forget()));
        assert_dropped(&mut lb, Port::Tenant, &other, reason);
    }
}

/// Of a protocol that is not IPv4, on a network where nothing else is declared.
#[privileged_test]
fn what_is_not_ipv4_has_no_flow() {
    let mut lb = ended(remove_vip);
    let mut bytes = segment(ACK_ONLY).bytes();
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert_dropped(&mut lb, Port::Tenant, &bytes, "not_declared");
}

/// A change of policy alone ends nothing: the cut does. And an id that is another client's says nothing
/// of this one.
#[privileged_test]
fn a_live_flow_goes_on_and_another_ones_entry_says_nothing() {
    let (remove_vip, live) = (CHANGES[1].0, [CHANGES[0], CHANGES[2], CHANGES[3]]);
    for (change, reason) in live {
        let mut lb = DataPlane::new(CONFIG);
        establish(&mut lb, CLIENT_A, PORT);
        change(&mut lb);
        forwarded(&mut lb, Port::Tenant, &segment(ACK_ONLY));
        end(&lb);
        let id = DataPlane::flow_id(PORT);
        let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
        flow.client_port = Be16::new(40_001);
        lb.maps.flows.set(id, &flow, 0).expect("a write");
        let bytes = segment(ACK_ONLY).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
    }
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, PORT);
    remove_vip(&mut lb);
    let bytes = segment(ACK_ONLY).bytes();
    assert_dropped(&mut lb, Port::Tenant, &bytes, "not_declared");
}

/// They share the rate of all refusals, so that a flood of a client's own segments is met with silence
/// in the end.
#[privileged_test]
fn these_answers_have_the_rate_of_the_others() {
    let mut lb = ended(remove_listener);
    let bytes = segment(ACK_ONLY).bytes();
    for _ in 0..20_000 {
        lb.run(Port::Tenant, &bytes, 1);
    }
    let counters = lb.counters();
    let count = |verdict| counters[&("nic", "tenant-a".to_owned(), verdict)];
    let answered = count("refused: no_service");
    assert!((1000..20_000).contains(&answered), "{answered} of 20000");
    assert_eq!(answered + count("no_service"), 20_000);
}
