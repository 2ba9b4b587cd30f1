//! Sources that an IPv4 network cannot have, and what a packet of IPv4 may hide behind.

use lb_tests::{
    frames::packet::flags::*,
    product::program::{DataPlane, IDS, Port},
};

use super::super::{
    given::*,
    policy::{RULES_V4, refused},
};

#[privileged_test]
fn a_source_that_its_network_cannot_have_is_spoofed() {
    let mut lb = DataPlane::new(RULES_V4);
    let spoofed = [
        "192.168.204.50",  // another tenant's
        "10.32.96.105",    // a node's
        "10.32.96.50",     // our SNAT address
        "192.168.203.110", // our VIP
        "192.168.203.0",   // the network
        "192.168.203.255", // its broadcast address
        "172.21.0.1",
        "8.8.8.8",
    ];
    for client in spoofed {
        refused(&Family::V4, &mut lb, client, "spoofed");
    }
    for client in [
        "0.0.0.0",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        refused(&Family::V4, &mut lb, client, "bogon");
    }
    assert_eq!(lb.drain_free_ids().len(), IDS, "no state was made");
}

/// The first fragment is judged as a packet, and the others have no record to follow.
#[privileged_test]
fn options_and_fragments_do_not_bypass_the_rules() {
    let mut lb = DataPlane::new(RULES_V4);
    let denied = request("192.168.203.64:40000", API, SYN_ONLY);
    for options in [[1, 1, 1, 0], [7, 4, 4, 0], [148, 4, 0, 0]] {
        let bytes = denied.clone().options(&options).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, "denied");
    }
    for (field, reason) in [
        (0x2000, "denied"),
        (0x2001, "fragment_early"),
        (0x0001, "fragment_early"),
    ] {
        let bytes = denied.clone().payload(&[7; 4]).fragment(field).bytes();
        assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
    }
}
