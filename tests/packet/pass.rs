//! What is not ours passes untouched.

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

#[privileged_test]
fn frames_to_another_station_pass() {
    let mut lb = DataPlane::new(CONFIG);
    let other = Mac::new([2, 9, 9, 9, 9, 9]);
    let frame = request(CLIENT_A, API, SYN_ONLY).between(CLIENT, other);
    assert_passed(&mut lb, Port::Tenant, &frame.bytes());
}

#[privileged_test]
fn link_control_passes_on_every_network() {
    let mut lb = DataPlane::new(CONFIG);
    // LLDP, slow protocols (LACP), EAPOL, pause, the length of a spanning tree frame.
    for ethertype in [0x88cc_u16, 0x8809, 0x888e, 0x8808, 0x0027] {
        for (port, nic) in [(Port::Tenant, TENANT_NIC), (Port::Mgmt, MGMT_NIC)] {
            for destination in [nic, Mac::new([1, 0x80, 0xc2, 0, 0, 0x0e])] {
                let mut bytes = request(CLIENT_A, API, SYN_ONLY)
                    .between(CLIENT, destination)
                    .bytes();
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                assert_passed(&mut lb, port, &bytes);
            }
        }
    }
}

/// SSH to the host, its broadcasts, IPv6: the host keeps its own traffic on mgmt.
#[privileged_test]
fn the_hosts_own_traffic_on_mgmt_passes() {
    let mut lb = DataPlane::new(CONFIG);
    let ssh = tcp("10.32.96.7:50000", "10.32.96.10:22", SYN_ONLY).between(KAS_MAC, MGMT_NIC);
    assert_passed(&mut lb, Port::Mgmt, &ssh.bytes());
    let dhcp = udp("10.32.96.7:68", "255.255.255.255:67").between(KAS_MAC, Mac::BROADCAST);
    assert_passed(&mut lb, Port::Mgmt, &dhcp.bytes());
    let mut ipv6 = ssh.bytes();
    ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert_passed(&mut lb, Port::Mgmt, &ipv6);
}

#[privileged_test]
fn an_interface_without_network_is_left_alone() {
    let mut lb = DataPlane::new(CONFIG);
    assert_passed(
        &mut lb,
        Port::Foreign,
        &request(CLIENT_A, API, SYN_ONLY).bytes(),
    );
}

/// A broadcast is no client's request, also where broadcasts pass.
#[privileged_test]
fn a_request_in_a_group_frame_opens_no_flow() {
    let mut lb = DataPlane::new(&CONFIG.replace("role: tenant", "role: uplink"));
    for group in [Mac::BROADCAST, Mac::new([1, 0, 0x5e, 0, 0, 1])] {
        let frame = request(CLIENT_A, API, SYN_ONLY).between(CLIENT, group);
        assert_passed(&mut lb, Port::Tenant, &frame.bytes());
    }
}
