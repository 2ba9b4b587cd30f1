//! Flows whose maps become larger.

use std::collections::BTreeSet;

use lb_tests::{
    frames::packet::flags::*,
    product::program::{DataPlane, Port},
};
use lb_user::config::Limits;

use super::{family::Family, given::*};

/// Two connections, one of which is half-open.
fn connected(ip: &Family) -> DataPlane {
    let mut lb = DataPlane::alone(ip.config);
    ip.establish(&mut lb, ip.client_a, 1024);
    let syn = request(ip.client_b, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    lb
}

/// The first connection is closed by its client, and a query comes.
fn go_on(lb: &mut DataPlane, ip: &Family) {
    let fin = request(ip.client_a, ip.api, FIN_ACK).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(lb, Port::Tenant, &fin);
    forwarded(lb, Port::Tenant, &ip.query(ip.client_b));
}

/// What becomes of frames that all of these flows get then.
fn later(lb: &mut DataPlane, ip: &Family) -> Vec<Vec<u8>> {
    let (client, backend) = (CLIENT_ISN + 1, BACKEND_ISN + 1);
    let frames = [
        (
            Port::Mgmt,
            ip.reply(1025, SYN_ACK).numbers(BACKEND_ISN, client),
        ),
        (
            Port::Tenant,
            request(ip.client_b, ip.api, ACK_ONLY).numbers(client, backend),
        ),
        (
            Port::Mgmt,
            ip.reply(1024, FIN_ACK).numbers(backend, client + 1),
        ),
        (
            Port::Tenant,
            request(ip.client_a, ip.api, ACK_ONLY).numbers(client + 1, backend + 1),
        ),
        (Port::Mgmt, ip.answer(1026)),
        (Port::Tenant, ip.query(ip.client_b)),
        // The next flow.
        (Port::Tenant, ip.query(ip.client_a)),
    ];
    let frames = frames.iter();
    frames
        .map(|(port, frame)| forwarded(lb, *port, frame))
        .collect()
}

#[privileged_test(families)]
fn flows_go_on_in_larger_maps(ip: &Family) {
    let mut as_ever = connected(ip);
    go_on(&mut as_ever, ip);
    let expected = later(&mut as_ever, ip);

    let mut lb = connected(ip);
    let before = lb.maps.limits();
    let limits = Limits {
        snat_addresses: before.snat_addresses + 3,
        handed_over: before.handed_over + 1000,
        ..before
    };
    let copied = lb.grow(&limits, |lb| go_on(lb, ip)).expect("larger maps");
    // The connection that was closed, and the query.
    assert_eq!(copied[1], 2, "{copied:?}");
    let after = lb.maps.limits();
    assert_eq!(
        [after.snat_addresses.into(), after.handed_over],
        [u32::from(limits.snat_addresses), limits.handed_over]
    );
    let found: BTreeSet<u32> = lb.maps.flow_lines.ids().collect();
    assert_eq!(
        found,
        BTreeSet::from([1024, 1025, 1026].map(DataPlane::flow_id))
    );
    assert_eq!(later(&mut lb, ip), expected);
}
