//! Datagrams of IPv4 that have no checksum, where others have an open one.

use lb_tests::{
    frames::packet::udp,
    product::program::{DataPlane, MGMT_NIC, Port},
};
use lb_user::dataplane::attach::Mode;

use super::super::{
    given::*,
    partial::{data, sent},
};

#[privileged_test]
fn datagrams_without_a_checksum_stay_without() {
    let mut lb = DataPlane::with_partial_checksums(CONFIG, Mode::Native);
    for length in 0..=1472 {
        let query = query(CLIENT_A).payload(&data(length)).without_checksum();
        let after = udp(&snat(1024), RESOLVER)
            .payload(&data(length))
            .without_checksum();
        let after = after.ttl(63).between(MGMT_NIC, RESOLVER_MAC);
        assert_frame(&sent(&mut lb, Port::Tenant, &query.bytes()), &after);
    }
}
