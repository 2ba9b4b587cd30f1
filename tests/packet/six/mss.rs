//! What a SYN asks for is held to what both networks carry: 60 bytes less than their MTU.

use lb_tests::frames::six::tcp;

use super::given::*;

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
    assert_frame(&sent, &to_backend.hops(63).between(MGMT_NIC, KAS_MAC));
    let answer = reply(port, SYN_ACK)
        .numbers(BACKEND_ISN, CLIENT_ISN + 1)
        .tcp_options(options);
    let sent = forwarded(lb, Port::Mgmt, &answer);
    let to_client = tcp(API, client, SYN_ACK)
        .numbers(BACKEND_ISN, CLIENT_ISN + 1)
        .tcp_options(wanted);
    assert_frame(&sent, &to_client.hops(63).between(TENANT_NIC, CLIENT));
}

#[privileged_test]
fn the_smaller_network_says_how_large_segments_may_be() {
    // MTU 1500 on both sides.
    let mut lb = DataPlane::new(CONFIG);
    seen(&mut lb, CLIENT_A, 1024, &mss(8940), &mss(1440));
    seen(&mut lb, CLIENT_B, 1025, &mss(1441), &mss(1440));
    // What the key says is for the segments of IPv4: an MTU of 40 more.
    let small = CONFIG.replace("interface: eth1,", "interface: eth1, mss: 1360,");
    let mut lb = DataPlane::new(&small);
    seen(&mut lb, CLIENT_A, 1024, &mss(1440), &mss(1340));
    let small = CONFIG.replace("interface: eth0,", "interface: eth0, mss: 1300,");
    let mut lb = DataPlane::new(&small);
    seen(&mut lb, CLIENT_A, 1024, &mss(1440), &mss(1280));
}

#[privileged_test]
fn what_asks_for_less_or_for_nothing_stays() {
    let mut lb = DataPlane::new(CONFIG);
    for (port, options) in (1024..).zip([
        &mss(1440)[..],
        &mss(536),
        &[],
        &[1, 1, 1, 1],
        &[2, 3, 0xff, 0xff],
        &[0, 2, 4, 0xff, 0xff, 0, 0, 0],
    ]) {
        let client = format!("[fd00:203::50]:{port}");
        seen(&mut lb, &client, port, options, options);
    }
}

/// Wherever the option stands, and also behind extension headers.
#[privileged_test]
fn the_option_is_found_at_every_place() {
    let mut lb = DataPlane::new(CONFIG);
    for before in 0..=36 {
        let port = 1024 + u16::try_from(before).expect("a small number");
        let list = |size: u16| {
            let mut list = vec![1; before];
            list.extend(mss(size));
            list.resize(list.len().next_multiple_of(4), 0);
            list
        };
        let client = format!("[fd00:203::50]:{port}");
        seen(&mut lb, &client, port, &list(1460), &list(1440));
    }
    let padding = lb_tests::frames::six::Extension::Destination(vec![]);
    let syn = request(CLIENT_B, API, SYN_ONLY)
        .extension(padding.clone())
        .tcp_options(&mss(1460));
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let wanted = tcp(&snat(1061), KAS, SYN_ONLY)
        .extension(padding)
        .tcp_options(&mss(1440));
    assert_frame(&sent, &wanted.hops(63).between(MGMT_NIC, KAS_MAC));
}
