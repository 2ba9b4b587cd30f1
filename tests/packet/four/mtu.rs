//! Errors about packets of IPv4 that may be fragmented or have options.

use lb_tests::{
    frames::packet::flags::*,
    product::program::{DataPlane, Port},
};

use super::super::{given::*, mtu::assert_told};

#[privileged_test]
fn who_may_be_fragmented_is_counted_and_told_nothing() {
    let mut lb = Family::V4.established();
    set_mtu(&mut lb, "mgmt", 1280);
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let bytes = data.payload(&[7; 1241]).fragment(0).bytes();
    assert_dropped(&mut lb, Port::Tenant, &bytes, "too_big");
    let query = query(CLIENT_A).payload(&[7; 1300]).fragment(0);
    assert_dropped(&mut lb, Port::Tenant, &query.bytes(), "too_big");
}

/// Options would move what is quoted.
#[privileged_test]
fn what_has_options_is_counted_and_told_nothing() {
    let mut lb = Family::V4.established();
    set_mtu(&mut lb, "mgmt", 1280);
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let bytes = data.payload(&[7; 1260]).options(&[1; 4]).bytes();
    assert_dropped(&mut lb, Port::Tenant, &bytes, "too_big");
}

#[privileged_test]
fn the_last_hop_of_what_may_be_fragmented_is_its_vip() {
    let mut lb = DataPlane::new(CONFIG);
    for ttl in [0, 1] {
        let query = query(CLIENT_A).fragment(0).ttl(ttl);
        let expired = Family::V4.time_exceeded;
        assert_told(&Family::V4, &mut lb, Port::Tenant, &query, expired, 0);
    }
    assert_eq!(lb.maps.flow_lines.ids().count(), 0);
}
