//! Networks of both families: each goes its own way, in one table of flows.

use lb_common::{
    conntrack::{FlowState, State},
    maps::{addr6, snat::base},
};
use lb_tests::frames::packet;
use lb_user::model::snat::SnatSlot;

use super::{
    super::{
        given as four,
        ring::{PLACES, assert_untouched, small},
    },
    given::*,
};

const BOTH: &str = r#"
version: 1
networks:
  mgmt:
    role: mgmt
    interface: eth1
    prefixes: [10.32.96.0/20, "fd00:32::/64"]
    snat: [10.32.96.50, "fd00:32::50"]
  tenant-a: { role: tenant, interface: eth0, prefixes: ["fd00:203::/64", 192.168.203.0/24] }
pools:
  kas-6: { network: mgmt, backends: ["[fd00:32::105]:30918"] }
  kas-4: { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api-6: { network: tenant-a, listen: ["[fd00:203::110]:6443/tcp"], pool: kas-6 }
  api-4: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-4 }
"#;

#[privileged_test]
fn each_family_has_snat_ports_of_its_own() {
    let mut lb = DataPlane::new(BOTH);
    for number in 0..3 {
        let client = format!("[fd00:203::50]:{}", 40_000 + number);
        let sent = forwarded(&mut lb, Port::Tenant, &request(&client, API, SYN_ONLY));
        let wanted = tcp(&snat(1024 + number), KAS, SYN_ONLY).ttl(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));

        let client = format!("192.168.203.50:{}", 40_000 + number);
        let syn = request(&client, four::API, SYN_ONLY);
        let sent = forwarded(&mut lb, Port::Tenant, &syn);
        let wanted = tcp(&four::snat(1024 + number), four::KAS, SYN_ONLY).ttl(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, four::KAS_MAC));

        let back = reply(1024 + number, SYN_ACK).numbers(5000, 1);
        let sent = forwarded(&mut lb, Port::Mgmt, &back);
        let client = format!("[fd00:203::50]:{}", 40_000 + number);
        let wanted = tcp(API, &client, SYN_ACK).numbers(5000, 1).ttl(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
        let back = four::reply(1024 + number, SYN_ACK).numbers(5000, 1);
        forwarded(&mut lb, Port::Mgmt, &back);
    }
}

/// A station that speaks the other family is no part of a flow.
#[privileged_test]
fn no_family_answers_for_the_other() {
    let mut lb = DataPlane::new(BOTH);
    establish(&mut lb, CLIENT_A, 1024);
    let bytes = four::reply(1024, ACK_ONLY)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .bytes();
    assert_refused(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
    // What stands for the VIP in our records is no address that a host reaches, or has.
    let label = std::net::Ipv4Addr::from(lb.label(VIP)).to_string();
    let syn = request(four::CLIENT_A, &format!("{label}:6443"), SYN_ONLY).bytes();
    let outcome = lb.receive(Port::Tenant, &syn);
    assert_eq!(outcome.action, Action::Drop, "{outcome:?}");
    let asks = packet::arp(1, CLIENT, "192.168.203.50", CLIENT, &label);
    assert_dropped(&mut lb, Port::Tenant, &asks, "arp_not_ours");
    let syn = request(&format!("{label}:40000"), four::API, SYN_ONLY).bytes();
    let outcome = lb.receive(Port::Tenant, &syn);
    assert_eq!((outcome.action, outcome.counted.2), (Action::Drop, "bogon"));
    let label = std::net::Ipv4Addr::from(lb.label(NODE)).to_string();
    let id = base(1);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    let reply = tcp(&format!("{label}:30918"), &four::snat(1024), ACK_ONLY);
    let bytes = reply.between(four::KAS_MAC, MGMT_NIC).bytes();
    let outcome = lb.receive(Port::Mgmt, &bytes);
    assert!(
        matches!(outcome.action, Action::Drop | Action::Transmit),
        "{outcome:?}"
    );
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
}

/// A client of IPv4 has nothing to do with it: what it sends to the same host is no reply.
#[privileged_test]
fn ipv4_from_the_backend_is_no_reply() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let frame = tcp("10.32.96.105:30918", "10.32.96.50:1024", ACK_ONLY);
    let bytes = frame.between(KAS_MAC, MGMT_NIC).bytes();
    assert_passed(&mut lb, Port::Mgmt, &bytes);
}

#[privileged_test]
fn no_family_takes_an_id_of_the_other() {
    let mut lb = DataPlane::new(&small(BOTH));
    let slot = |is_6| {
        let of_family = |snat: &&SnatSlot| addr6::index(snat.record).is_some() == is_6;
        lb.desired
            .snat
            .iter()
            .find(of_family)
            .expect("one of each")
            .slot
    };
    let (four, six) = (slot(false), slot(true));
    for number in 0..PLACES {
        let client = format!("[{HOST}]:{}", 20_000 + number);
        let sent = forwarded(&mut lb, Port::Tenant, &request(&client, API, SYN_ONLY));
        assert_eq!(sent[54..56], (1024 + number).to_be_bytes());
    }
    for number in 0..1000_u16 {
        let client = format!("192.168.203.50:{}", 20_000 + number);
        let syn = request(&client, four::API, SYN_ONLY);
        let sent = forwarded(&mut lb, Port::Tenant, &syn);
        assert_eq!(sent[34..36], (1024 + number % PLACES).to_be_bytes());
    }
    let ports = 1024..1024 + PLACES;
    let left: Vec<u32> = ports.map(|port| DataPlane::flow_id_of(six, port)).collect();
    assert_untouched(&lb, four, PLACES, &[]);
    assert_untouched(&lb, six, PLACES, &left);
    for id in left {
        let word = lb.maps.flows.get(&id, 0).expect("an entry").word;
        assert_eq!(FlowState::from_raw(word).state(), State::Closed);
    }
}
