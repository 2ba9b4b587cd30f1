//! What fragments of IPv4 have of their own: flags, and a protocol in each.

use std::collections::BTreeSet;

use lb_tests::{
    frames::{
        cut::{pieces, seal},
        packet::{check, flags::*, udp},
    },
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::dataplane::object::Object;

use super::super::{fragment::*, given::*};

const IP: Family = Family::V4;

/// A datagram that may not be fragmented, and is nevertheless, as a sender may do it: its flags stay.
#[privileged_test]
fn fragments_with_the_flag_dont_fragment_are_fragments() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = query(CLIENT_A).payload(&payload(100));
    let wanted = to_resolver(&IP).fragment(0x4000);
    assert_translated(&mut lb, Port::Tenant, (&sent, &[48]), &[0, 1], &wanted);
}

/// Of IPv6 only the first fragment says what its packet carries.
#[privileged_test]
fn a_fragment_of_another_protocol_is_of_another_datagram() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram(&IP).bytes());
    passed(&mut lb, Port::Tenant, &sent[0]);
    for (protocol, reason) in [(6, "fragment_early"), (1, "fragment")] {
        let mut other = sent[1].clone();
        other[23] = protocol;
        seal(&mut other);
        assert_dropped(&mut lb, Port::Tenant, &other, reason);
    }
    let mut ping = request(CLIENT_A, API, SYN_ONLY)
        .fragment(0x2000)
        .payload(&[7; 4])
        .bytes();
    ping[23] = 1;
    seal(&mut ping);
    assert_dropped(&mut lb, Port::Tenant, &ping, "fragment");
    passed(&mut lb, Port::Tenant, &sent[1]);
}

#[privileged_test]
fn hops_and_size_are_judged_before_anything_is_noted() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram(&IP).bytes());
    passed(&mut lb, Port::Tenant, &sent[0]);
    let mut spent = sent[1].clone();
    spent[22] = 1;
    seal(&mut spent);
    assert_dropped(&mut lb, Port::Tenant, &spent, "ttl_expired");
    // The mgmt network's id is that of its record.
    let (id, network) = lb.desired.networks[0];
    for (mtu, fits) in [(43, false), (44, true)] {
        let small = lb_common::maps::network::Network { mtu, ..network };
        lb.maps.networks.set(id.into(), &small, 0).expect("a write");
        if fits {
            passed(&mut lb, Port::Tenant, &sent[1]);
        } else {
            assert_dropped(&mut lb, Port::Tenant, &sent[1], "too_big");
        }
    }
}

/// RFC 6864: clients that share a SNAT address count each for itself.
#[privileged_test]
fn what_may_be_in_pieces_gets_an_identification_of_ours() {
    let mut lb = DataPlane::new(CONFIG);
    let mut ours = BTreeSet::new();
    for round in 0..500 {
        for client in [CLIENT_A, CLIENT_B] {
            let bytes = query(client).fragment(0).bytes();
            let ((_, sent), _) = lb.run(Port::Tenant, &bytes, 1);
            assert_eq!(check(&sent), Ok(()));
            assert!(
                ours.insert(identification(&sent)),
                "twice after {round} rounds"
            );
        }
    }
    let answers = [
        answer(&IP),
        udp(RESOLVER, &snat(1025))
            .fragment(0)
            .between(RESOLVER_MAC, MGMT_NIC),
    ];
    for answer in answers {
        let sent = lb.receive(Port::Mgmt, &answer.bytes()).frame;
        assert_eq!(check(&sent), Ok(()));
        assert!(
            ours.insert(identification(&sent)),
            "replies count with requests"
        );
    }
    // A sender that forbids fragments keeps its bit; an evil bit does not matter.
    for field in [0x4000, 0xc000] {
        let kept = forwarded(&mut lb, Port::Tenant, &query(CLIENT_A).fragment(field));
        assert_eq!(identification(&kept), ID);
    }
}

/// A data plane of before has other records, which nothing reads any more: only a datagram that is on its way is
/// lost.
#[privileged_test]
fn a_start_over_pins_without_the_records_makes_them() {
    let lb = DataPlane::alone(CONFIG);
    let pin = lb.maps_folder().join("DATAGRAMS");
    std::fs::remove_file(&pin).expect("the pin");
    Object::load(lb.pins(), &lb.maps.limits(), 0).expect("it adopts the others");
    assert!(pin.exists());
    assert_eq!(lb.fragmented(), []);
}

/// More datagrams than there is room for: the newest are followed.
#[privileged_test]
fn the_memory_of_datagrams_is_bounded() {
    let mut lb = DataPlane::alone(CONFIG);
    let whole = datagram(&IP).bytes();
    let halves = |number| pieces(&whole, number, &[16]);
    for number in 0..20_000 {
        let ((action, _), _) = lb.run(Port::Tenant, &halves(number)[0], 1);
        assert_eq!(action, Action::Redirect, "datagram {number}");
    }
    let kept = lb.fragmented().len();
    assert!((8192..=16_384).contains(&kept), "{kept} records");
    for number in 19_980..20_000 {
        passed(&mut lb, Port::Tenant, &halves(number)[1]);
    }
    let followed = |number: u32| {
        let ((action, _), _) = lb.run(Port::Tenant, &halves(number)[1], 1);
        action == Action::Redirect
    };
    let oldest = (0..1000).map(followed).filter(|is| *is).count();
    assert!(oldest < 500, "{oldest} of the first 1000");
}

/// Where the address is the host's own, so are the fragments of which we had no first one.
#[privileged_test]
fn fragments_to_the_host_pass_and_those_of_a_service_do_not() {
    let mut lb = DataPlane::new(
        r#"
version: 1
networks:
  tenant-a: { role: uplink, interface: eth0, address: host, prefixes: [203.0.113.0/24], sources: any }
  mgmt:     { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
pools:
  dns: { network: mgmt, backends: ["10.32.96.106:30053"] }
services:
  dns: { network: tenant-a, listen: ["203.0.113.10:53/udp"], pool: dns }
"#,
    );
    let whole = |port: u16| {
        let frame = udp("198.51.100.7:40000", &format!("203.0.113.10:{port}"));
        let frame = frame.between(CLIENT, TENANT_NIC);
        frame.payload(&payload(100)).fragment(0)
    };
    let to = |port| fragments(&whole(port).bytes());
    for fragment in to(5353) {
        assert_passed(&mut lb, Port::Tenant, &fragment);
    }
    let sent = (&whole(53), &CUTS[..]);
    assert_translated(
        &mut lb,
        Port::Tenant,
        sent,
        &[0, 1, 2, 3, 4],
        &to_resolver(&IP),
    );
    passed(&mut lb, Port::Tenant, &to(53)[0]);
    passed(&mut lb, Port::Tenant, &to(53)[1]);
    let again = &to(53)[1];
    let outcome = lb.receive(Port::Tenant, again);
    assert_eq!(
        (outcome.action, outcome.counted.2),
        (Action::Drop, "fragment_overlap")
    );
}
