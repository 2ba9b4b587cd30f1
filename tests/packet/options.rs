//! IP options: carried, but for source routes and broken lists, and for what would show a client the way.

use lb_tests::{
    frames::packet::{flags::*, tcp},
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// Record route, time stamp, router alert, and padding to the largest header; and what a client sees of
/// them.
const CARRIED: [(&[u8], &[u8]); 5] = [
    (&[1, 1, 1, 1], &[1, 1, 1, 1]),
    (&[7, 7, 8, 10, 32, 96, 105, 0], &[1, 1, 1, 1, 1, 1, 1, 0]),
    (&[68, 8, 13, 1, 10, 32, 96, 105], &[1; 8]),
    (&[148, 4, 0, 0], &[148, 4, 0, 0]),
    (&[1; 40], &[1; 40]),
];

const SOURCE_ROUTES: [&[u8]; 4] = [
    &[131, 7, 4, 10, 32, 96, 105, 0],
    &[137, 7, 4, 10, 32, 96, 105, 0],
    &[148, 4, 0, 0, 1, 131, 7, 4, 10, 32, 96, 105],
    &[
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 137, 7, 4, 10, 32, 96, 105,
    ],
];

const BROKEN: [&[u8]; 4] = [&[7, 0, 0, 0], &[7, 1, 0, 0], &[7, 5, 4, 0], &[1, 1, 1, 7]];

#[privileged_test]
fn options_are_carried_in_both_directions() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for (options, shown) in CARRIED {
        let data = request(CLIENT_A, API, ACK_ONLY).numbers(1001, 5001);
        let data = data.options(options).payload(b"GET");
        let sent = forwarded(&mut lb, Port::Tenant, &data);
        let wanted = tcp(&snat(1024), KAS, ACK_ONLY).numbers(1001, 5001);
        let wanted = wanted.options(options).payload(b"GET").ttl(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));

        let answer = reply(1024, ACK_ONLY).numbers(5001, 1001).options(options);
        let sent = forwarded(&mut lb, Port::Mgmt, &answer);
        let wanted = tcp(API, CLIENT_A, ACK_ONLY).numbers(5001, 1001);
        let wanted = wanted.options(shown).ttl(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    }
}

/// Neither opens a flow nor goes on in one, from either side.
#[privileged_test]
fn source_routes_and_broken_lists_are_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let cases = SOURCE_ROUTES
        .into_iter()
        .map(|options| (options, "source_route"))
        .chain(BROKEN.into_iter().map(|options| (options, "malformed")));
    for (options, reason) in cases.clone() {
        let syn = request(CLIENT_A, API, SYN_ONLY).options(options).bytes();
        assert_dropped(&mut lb, Port::Tenant, &syn, reason);
    }
    assert_eq!(lb.drain_free_ids().len(), IDS, "no state was made");

    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for (options, reason) in cases {
        let data = request(CLIENT_A, API, ACK_ONLY).numbers(1001, 5001);
        assert_dropped(
            &mut lb,
            Port::Tenant,
            &data.options(options).bytes(),
            reason,
        );
        let answer = reply(1024, ACK_ONLY).numbers(5001, 1001).options(options);
        assert_dropped(&mut lb, Port::Mgmt, &answer.bytes(), reason);
        // Also in a fragment without ports.
        let later = query(CLIENT_A)
            .options(options)
            .fragment(1)
            .payload(&[7; 8]);
        assert_dropped(&mut lb, Port::Tenant, &later.bytes(), reason);
    }
}
