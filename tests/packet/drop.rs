//! Every reason to drop, with the frame untouched and the one counter.

use std::fs;

use aya::{
    maps::{MapData, PerCpuArray, PerCpuValues},
    util::nr_cpus,
};
use lb_common::{
    maps::drop_sample::{REASONS, Sample},
    verdict::{DropReason, Hook, SLOTS},
};
use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::dataplane::{maps::Maps, object::Object};

use super::given::*;

#[privileged_test]
fn a_tenant_reaches_nothing_but_declared_services() {
    let mut lb = DataPlane::new(CONFIG);
    let cases = [
        (
            "no_service",
            request(CLIENT_A, "192.168.203.110:22", SYN_ONLY),
        ),
        (
            "no_service",
            request(CLIENT_A, "192.168.203.110:53", SYN_ONLY),
        ),
        ("no_service", udp(CLIENT_A, API).between(CLIENT, TENANT_NIC)),
        (
            "not_declared",
            request(CLIENT_A, "192.168.203.111:6443", SYN_ONLY),
        ),
        ("not_declared", request(CLIENT_A, KAS, SYN_ONLY)),
        ("not_declared", request(CLIENT_A, &snat(1024), SYN_ONLY)),
    ];
    for (reason, frame) in cases {
        assert_dropped(&mut lb, Port::Tenant, &frame.bytes(), reason);
    }
    assert_eq!(
        lb.drain_free_ids().len(),
        lb_tests::product::program::IDS,
        "no state was made"
    );
}

#[privileged_test]
fn only_a_syn_opens_a_tcp_flow() {
    let mut lb = DataPlane::new(CONFIG);
    for flags in [0, ACK_ONLY, SYN_ACK, FIN_ACK, SYN_ONLY | 1] {
        let bytes = request(CLIENT_A, API, flags).bytes();
        assert_refused(&mut lb, Port::Tenant, &bytes, "no_flow");
    }
    // A reset gets no answer.
    for flags in [RST_ONLY, RST_ACK, SYN_ONLY | 4] {
        let bytes = request(CLIENT_A, API, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "no_flow");
    }
}

#[privileged_test]
fn a_backend_without_next_hop_gets_no_flow() {
    let mut lb = DataPlane::unresolved(CONFIG);
    let bytes = request(CLIENT_A, API, SYN_ONLY).bytes();
    assert_refused(&mut lb, Port::Tenant, &bytes, "no_next_hop");
}

#[privileged_test]
fn without_a_free_id_new_flows_are_refused_and_old_ones_live() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    lb.drain_free_ids();
    let bytes = request(CLIENT_B, API, SYN_ONLY).bytes();
    assert_refused(&mut lb, Port::Tenant, &bytes, "snat_exhausted");
    forwarded(
        &mut lb,
        Port::Tenant,
        &request(CLIENT_A, API, ACK_ONLY).numbers(1001, 5001),
    );
}

#[privileged_test]
fn other_protocols_to_our_addresses_are_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    for (port, frame) in [
        (Port::Tenant, request(CLIENT_A, API, SYN_ONLY)),
        (
            Port::Mgmt,
            tcp(KAS, &snat(1024), ACK_ONLY).between(KAS_MAC, MGMT_NIC),
        ),
    ] {
        let mut bytes = frame.bytes();
        bytes[23] = 1;
        assert_dropped(&mut lb, port, &bytes, "unsupported_protocol");
    }
}

#[privileged_test]
fn ip_to_group_addresses_and_other_protocols_stay_in_the_tenants_network() {
    let mut lb = DataPlane::new(CONFIG);
    let broadcast =
        udp(CLIENT_A, "255.255.255.255:67").between(CLIENT, lb_common::addr::Mac::BROADCAST);
    assert_dropped(&mut lb, Port::Tenant, &broadcast.bytes(), "group_address");
    // IPv6, and whatever else a host might have a stack for: MPLS, PPPoE, MACsec, 0x9100 tags.
    for ethertype in [0x86dd_u16, 0x8847, 0x8864, 0x88e5, 0x9100] {
        let mut other = request(CLIENT_A, API, SYN_ONLY).bytes();
        other[12..14].copy_from_slice(&ethertype.to_be_bytes());
        assert_dropped(&mut lb, Port::Tenant, &other, "not_declared");
    }
}

/// A data plane from before these counters had others; they begin at zero, and no flow ends for that.
#[privileged_test]
fn an_older_data_plane_says_that_it_counts_elsewhere_until_a_start_makes_its_counters() {
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let folder = lb.maps_folder();
    fs::remove_file(folder.join("VERDICTS")).expect("the pin");
    let older = Maps::open(&folder).expect("all other maps");
    let error = older.counters(Hook::Nic, 1).expect_err("there are none");
    assert!(error.to_string().contains("older"), "{error}");

    Object::load(lb.pins(), &lb.maps.limits(), 0).expect("it adopts the others");
    let maps = Maps::open(&folder).expect("all maps");
    let counters = maps.counters(Hook::Nic, 1).expect("new ones");
    assert_eq!(counters, [0; SLOTS as usize]);
    assert_eq!(maps.flow_lines.ids().count(), 1);
}

/// An older data plane keeps the latest packet of a reason for all networks, and one that is older still keeps none.
#[privileged_test]
fn samples_of_an_older_data_plane_are_read_where_it_keeps_them() {
    let lb = DataPlane::alone(CONFIG);
    let folder = lb.maps_folder();
    fs::remove_file(folder.join("DROP_SAMPLES")).expect("the pin");
    let reason = DropReason::Denied as u32;
    let oldest = Maps::open(&folder).expect("all other maps");
    assert_eq!(oldest.sample(2, reason).expect("none"), None);

    let mut samples =
        PerCpuArray::<MapData, Sample>::create(REASONS, 0).expect("the map of before");
    let sample = |seen| Sample {
        seen,
        network: 2,
        length: seen,
        ..Sample::default()
    };
    // Of two CPUs that have one the later counts; others have none.
    let cpus = usize::try_from(nr_cpus().expect("CPUs").get()).expect("a count");
    let each = (0..).take(cpus).map(|cpu| match cpu {
        0 => sample(7),
        1 => sample(9),
        _ => Sample::default(),
    });
    let last = if cpus > 1 { 9 } else { 7 };
    let each = PerCpuValues::try_from(each.collect::<Vec<_>>()).expect("one of each");
    samples.set(reason, each, 0).expect("written");
    samples.pin(folder.join("SAMPLES")).expect("pinned");
    let older = Maps::open(&folder).expect("all other maps");
    assert_eq!(older.sample(2, reason).expect("read"), Some(sample(last)));
    for (network, reason) in [(1, reason), (2, reason + 1)] {
        assert_eq!(older.sample(network, reason).expect("read"), None);
    }
    // A start makes the new ones, empty.
    Object::load(lb.pins(), &lb.maps.limits(), 0).expect("it adopts the others");
    let maps = Maps::open(&folder).expect("all maps");
    assert_eq!(maps.sample(2, reason).expect("read"), None);
}
