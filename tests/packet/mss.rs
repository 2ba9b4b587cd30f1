//! What a SYN asks for is held to what both networks carry; over IPv6 that is 20 bytes less.

use lb_tests::{
    frames::{
        packet::{Frame, flags::*, tcp},
        six::Extension,
    },
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// What the key `mss`, which is for segments of IPv4, lets a segment of this family have: the header of IPv6 is longer.
fn fits(ip: &Family, key: u16) -> u16 {
    ip.pick(key, key - 20)
}

/// The mgmt network carries less than the MTU of 1500 that both interfaces have.
fn small_mgmt(ip: &Family) -> String {
    ip.config
        .replace("interface: eth1,", "interface: eth1, mss: 1360,")
}

/// The option: kind, length, bytes of data.
const fn mss(bytes: u16) -> [u8; 4] {
    let [high, low] = bytes.to_be_bytes();
    [2, 4, high, low]
}

/// What the backend sees of a SYN with these TCP options, and the client of the SYN-ACK.
fn seen(ip: &Family, lb: &mut DataPlane, client: &str, port: u16, options: &[u8], wanted: &[u8]) {
    let syn = request(client, ip.api, SYN_ONLY)
        .numbers(CLIENT_ISN, 0)
        .tcp_options(options);
    let sent = forwarded(lb, Port::Tenant, &syn);
    let to_backend = tcp(&ip.snat(port), ip.kas, SYN_ONLY)
        .numbers(CLIENT_ISN, 0)
        .tcp_options(wanted);
    assert_frame(&sent, &to_backend.ttl(63).between(MGMT_NIC, ip.kas_mac));
    let answer = ip
        .reply(port, SYN_ACK)
        .numbers(BACKEND_ISN, CLIENT_ISN + 1)
        .tcp_options(options);
    let sent = forwarded(lb, Port::Mgmt, &answer);
    let to_client = tcp(ip.api, client, SYN_ACK)
        .numbers(BACKEND_ISN, CLIENT_ISN + 1)
        .tcp_options(wanted);
    assert_frame(&sent, &to_client.ttl(63).between(TENANT_NIC, CLIENT));
}

#[privileged_test(families)]
fn the_smaller_network_says_how_large_segments_may_be(ip: &Family) {
    // The MTU of both interfaces.
    let mut lb = DataPlane::new(ip.config);
    let whole = mss(fits(ip, 1460));
    seen(ip, &mut lb, ip.client_a, 1024, &mss(8960), &whole);
    let one_more = mss(fits(ip, 1461));
    seen(ip, &mut lb, ip.client_b, 1025, &one_more, &whole);
    let mut lb = DataPlane::new(&small_mgmt(ip));
    let fitting = mss(fits(ip, 1360));
    seen(ip, &mut lb, ip.client_a, 1024, &mss(1460), &fitting);
    seen(ip, &mut lb, ip.client_b, 1025, &mss(8960), &fitting);
    let mut lb = DataPlane::new(&ip.config.replace("eth0,", "eth0, mss: 1300,"));
    seen(
        ip,
        &mut lb,
        ip.client_a,
        1024,
        &mss(1460),
        &mss(fits(ip, 1300)),
    );
}

#[privileged_test(families)]
fn what_asks_for_less_or_for_nothing_stays(ip: &Family) {
    let mut lb = DataPlane::new(&small_mgmt(ip));
    for (port, options) in (1024..).zip([
        &mss(fits(ip, 1360))[..],
        &mss(536),
        &[],
        &[1, 1, 1, 1],
        &[2, 3, 0xff, 0xff],
        &[0, 2, 4, 0xff, 0xff, 0, 0, 0],
    ]) {
        let client = ip.end(ip.host, port);
        seen(ip, &mut lb, &client, port, options, options);
    }
}

/// Wherever the option stands, also at an odd place, behind options or an extension header, and as the last one.
#[privileged_test(families)]
fn the_option_is_found_at_every_place(ip: &Family) {
    let mut lb = DataPlane::new(&small_mgmt(ip));
    for before in 0..=36 {
        let port = 1024 + u16::try_from(before).unwrap();
        let list = |size: u16| {
            let mut list = vec![1; before];
            list.extend(mss(size));
            list.resize(list.len().next_multiple_of(4), 0);
            list
        };
        let client = ip.end(ip.host, port);
        seen(
            ip,
            &mut lb,
            &client,
            port,
            &list(1460),
            &list(fits(ip, 1360)),
        );
    }
    let behind = |frame: Frame| match ip.header {
        20 => frame.options(&[1; 40]),
        _ => frame.extension(Extension::Destination(vec![])),
    };
    let syn = behind(request(ip.client_b, ip.api, SYN_ONLY)).tcp_options(&mss(1460));
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = behind(tcp(&ip.snat(1061), ip.kas, SYN_ONLY));
    let wanted = wanted.tcp_options(&mss(fits(ip, 1360)));
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, ip.kas_mac));
}

#[privileged_test(families)]
fn only_a_syn_is_changed(ip: &Family) {
    let mut lb = DataPlane::new(&small_mgmt(ip));
    ip.establish(&mut lb, ip.client_a, 1024);
    let data = request(ip.client_a, ip.api, ACK_ONLY)
        .numbers(1001, 5001)
        .tcp_options(&mss(1460));
    let sent = forwarded(&mut lb, Port::Tenant, &data);
    let wanted = tcp(&ip.snat(1024), ip.kas, ACK_ONLY)
        .numbers(1001, 5001)
        .tcp_options(&mss(1460));
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, ip.kas_mac));
}
