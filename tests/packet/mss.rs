//! What a SYN asks for is held to what both networks carry.

use lb_tests::{
    frames::packet::{flags::*, tcp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// The mgmt network carries less than the MTU of 1500 that both interfaces have.
fn small_mgmt() -> String {
    CONFIG.replace("interface: eth1,", "interface: eth1, mss: 1360,")
}

/// The option: kind, length, bytes of data.
const fn mss(bytes: u16) -> [u8; 4] {
    let [high, low] = bytes.to_be_bytes();
    [2, 4, high, low]
}

/// What the backend sees of a SYN with these TCP options, and the client of the SYN-ACK.
fn seen(lb: &mut DataPlane, client: &str, port: u16, options: &[u8], wanted: &[u8]) {
    let syn = request(client, API, SYN_ONLY)
        .numbers(CLIENT_ISN, 0)
        .tcp_options(options);
    let sent = forwarded(lb, Port::Tenant, &syn);
    let to_backend = tcp(&snat(port), KAS, SYN_ONLY)
        .numbers(CLIENT_ISN, 0)
        .tcp_options(wanted);
    assert_frame(&sent, &to_backend.ttl(63).between(MGMT_NIC, KAS_MAC));
    let answer = reply(port, SYN_ACK)
        .numbers(BACKEND_ISN, CLIENT_ISN + 1)
        .tcp_options(options);
    let sent = forwarded(lb, Port::Mgmt, &answer);
    let to_client = tcp(API, client, SYN_ACK)
        .numbers(BACKEND_ISN, CLIENT_ISN + 1)
        .tcp_options(wanted);
    assert_frame(&sent, &to_client.ttl(63).between(TENANT_NIC, CLIENT));
}

#[privileged_test]
fn the_smaller_network_says_how_large_segments_may_be() {
    let mut lb = DataPlane::new(&small_mgmt());
    seen(&mut lb, CLIENT_A, 1024, &mss(1460), &mss(1360));
    seen(&mut lb, CLIENT_B, 1025, &mss(8960), &mss(1360));
    let mut lb = DataPlane::new(&CONFIG.replace("eth0,", "eth0, mss: 1300,"));
    seen(&mut lb, CLIENT_A, 1024, &mss(1460), &mss(1300));
    let mut lb = DataPlane::new(CONFIG);
    seen(&mut lb, CLIENT_A, 1024, &mss(8960), &mss(1460));
}

#[privileged_test]
fn what_asks_for_less_or_for_nothing_stays() {
    let mut lb = DataPlane::new(&small_mgmt());
    for (port, options) in (1024..).zip([
        &mss(1360)[..],
        &mss(536),
        &[],
        &[1, 1, 1, 1],
        &[2, 3, 0xff, 0xff],
        &[0, 2, 4, 0xff, 0xff, 0, 0, 0],
    ]) {
        let client = format!("192.168.203.50:{port}");
        seen(&mut lb, &client, port, options, options);
    }
}

/// Wherever the option stands, also at an odd place, behind IP options, and as the last one.
#[privileged_test]
fn the_option_is_found_at_every_place() {
    let mut lb = DataPlane::new(&small_mgmt());
    for before in 0..=36 {
        let port = 1024 + u16::try_from(before).unwrap();
        let list = |size: u16| {
            let mut list = vec![1; before];
            list.extend(mss(size));
            list.resize(list.len().next_multiple_of(4), 0);
            list
        };
        let client = format!("192.168.203.50:{port}");
        seen(&mut lb, &client, port, &list(1460), &list(1360));
    }
    let syn = request("192.168.203.51:1", API, SYN_ONLY)
        .options(&[1; 40])
        .tcp_options(&mss(1460));
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&snat(1061), KAS, SYN_ONLY)
        .options(&[1; 40])
        .tcp_options(&mss(1360));
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));
}

#[privileged_test]
fn only_a_syn_is_changed() {
    let mut lb = DataPlane::new(&small_mgmt());
    establish(&mut lb, CLIENT_A, 1024);
    let data = request(CLIENT_A, API, ACK_ONLY)
        .numbers(1001, 5001)
        .tcp_options(&mss(1460));
    let sent = forwarded(&mut lb, Port::Tenant, &data);
    let wanted = tcp(&snat(1024), KAS, ACK_ONLY)
        .numbers(1001, 5001)
        .tcp_options(&mss(1460));
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));
}
