//! A network whose control plane was stopped to drop: what is ours is dropped, and nothing else changes.

use lb_common::{addr::Mac, maps::network::NETWORK_STOPPED};
use lb_tests::{
    frames::packet::{arp, flags::*, icmp, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::{control::apply::Live, model::registry::Kind};

use super::given::*;

const STOPPED: &str = "stopped";

/// Stops both networks as the control plane does.
fn stop(lb: &DataPlane) {
    let maps = lb_user::dataplane::maps::Maps::open(&lb.maps_folder()).unwrap();
    let mut live = Live::new(maps);
    for network in ["mgmt", "tenant-a"] {
        live.close(lb.ids.get(Kind::Network, network).unwrap())
            .unwrap();
    }
}

/// Opens them as a start does, whose records are without the flag.
fn open(lb: &mut DataPlane) {
    for (id, record) in &lb.desired.networks {
        assert_eq!(record.flags & NETWORK_STOPPED, 0);
        let mut record = lb.maps.networks.get(&u32::from(*id), 0).unwrap();
        record.flags &= !NETWORK_STOPPED;
        lb.maps.networks.set(u32::from(*id), &record, 0).unwrap();
    }
}

/// Flows, new and old, questions and pings, either way; and afterwards they go on.
#[privileged_test]
fn what_is_ours_is_dropped_until_the_next_start() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let request_of =
        |client: &str, flags| request(client, API, flags).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let answer = reply(1024, ACK_ONLY).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    stop(&lb);
    let ours = [
        request_of(CLIENT_A, ACK_ONLY).bytes(),
        // It would end the flow.
        request_of(CLIENT_A, RST_ONLY).bytes(),
        request(CLIENT_B, API, SYN_ONLY).bytes(),
        request(CLIENT_B, "192.168.203.110:1", SYN_ONLY).bytes(),
        query(CLIENT_A).bytes(),
        query(CLIENT_A).fragment(0x2000).bytes(),
        query(CLIENT_A).fragment(1).bytes(),
        icmp("192.168.203.50", "192.168.203.110", (8, 0), 1)
            .between(CLIENT, TENANT_NIC)
            .bytes(),
        arp(
            1,
            CLIENT,
            "192.168.203.50",
            Mac::default(),
            "192.168.203.110",
        ),
        // A standby that has taken it.
        arp(
            1,
            CLIENT,
            "192.168.203.110",
            Mac::default(),
            "192.168.203.110",
        ),
    ];
    for frame in &ours {
        assert_dropped(&mut lb, Port::Tenant, frame, STOPPED);
    }
    for frame in [
        answer.bytes(),
        reply(60_000, ACK_ONLY).bytes(),
        arp(1, KAS_MAC, "10.32.96.105", Mac::default(), "10.32.96.50"),
    ] {
        assert_dropped(&mut lb, Port::Mgmt, &frame, STOPPED);
    }
    for (cell, address) in [("mgmt", "10.32.96.50"), ("tenant-a", "192.168.203.110")] {
        let asks = arp(1, MGMT_NIC, address, Mac::default(), "10.32.96.105");
        assert_dropped(&mut lb, Port::Cell(cell), &asks, STOPPED);
    }

    open(&mut lb);
    forwarded(&mut lb, Port::Tenant, &request_of(CLIENT_A, ACK_ONLY));
    forwarded(&mut lb, Port::Mgmt, &answer);
    // None of the others has left anything.
    let opened = forwarded(&mut lb, Port::Tenant, &request(CLIENT_B, API, SYN_ONLY));
    let wanted = tcp(&snat(1025), KAS, SYN_ONLY).ttl(63);
    assert_frame(&opened, &wanted.between(MGMT_NIC, KAS_MAC));
}

/// On mgmt the host lives on; a tenant gets to it no more than before.
#[privileged_test]
fn what_is_not_ours_goes_as_before() {
    let mut lb = DataPlane::new(CONFIG);
    stop(&lb);
    let ssh = tcp("10.32.96.105:40000", "10.32.96.1:22", SYN_ONLY).between(KAS_MAC, MGMT_NIC);
    assert_passed(&mut lb, Port::Mgmt, &ssh.bytes());
    let asks = arp(1, KAS_MAC, "10.32.96.105", Mac::default(), "10.32.96.1");
    assert_passed(&mut lb, Port::Mgmt, &asks);
    let asks = arp(1, CLIENT, "192.168.203.50", Mac::default(), "192.168.203.1");
    assert_dropped(&mut lb, Port::Tenant, &asks, "arp_not_ours");
    let ssh = request(CLIENT_A, "10.32.96.1:22", SYN_ONLY);
    let outcome = lb.receive(Port::Tenant, &ssh.bytes());
    assert_eq!(outcome.counted.2, "not_declared");
}

/// Where the addresses are the host's, that is what is declared.
#[privileged_test]
fn the_host_keeps_what_is_its_own() {
    let mut lb = DataPlane::new(super::host::CONFIG);
    stop(&lb);
    let at_tenant =
        |frame: lb_tests::frames::packet::Frame| frame.between(CLIENT, TENANT_NIC).bytes();
    let client = "198.51.100.7:40000";
    for flags in [SYN_ONLY, ACK_ONLY] {
        let declared = at_tenant(tcp(client, "203.0.113.10:6443", flags));
        assert_dropped(&mut lb, Port::Tenant, &declared, STOPPED);
        let ssh = at_tenant(tcp(client, "203.0.113.10:22", flags));
        assert_passed(&mut lb, Port::Tenant, &ssh);
    }
    let datagram = at_tenant(udp(client, "203.0.113.10:6443"));
    assert_passed(&mut lb, Port::Tenant, &datagram);
    let ping = icmp("198.51.100.7", "203.0.113.10", (8, 0), 1).between(CLIENT, TENANT_NIC);
    assert_passed(&mut lb, Port::Tenant, &ping.bytes());
    let asks = arp(1, CLIENT, "203.0.113.1", Mac::default(), "203.0.113.10");
    assert_passed(&mut lb, Port::Tenant, &asks);
    for (port, is_ours) in [
        (19_999, false),
        (20_000, true),
        (20_099, true),
        (20_100, false),
    ] {
        let snat = format!("192.168.126.1:{port}");
        let reply = tcp("192.168.126.11:6443", &snat, SYN_ACK).between(KAS_MAC, MGMT_NIC);
        match is_ours {
            true => assert_dropped(&mut lb, Port::Mgmt, &reply.bytes(), STOPPED),
            false => assert_passed(&mut lb, Port::Mgmt, &reply.bytes()),
        }
    }
}
