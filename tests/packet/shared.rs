//! Shared VIPs: their connections end in the cell, after the policy, and what the cell answers gets out.

use std::net::Ipv4Addr;

use lb_tests::{
    frames::packet::{flags::*, icmp, tcp},
    product::program::{Action, DataPlane, Outcome, Port, TENANT_NIC, node_mac},
};

use super::given::{API, CLIENT_A, CLIENT_B, assert_dropped, assert_passed, request};

/// The tenant's API is shared; next to it there is one that is not.
const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas:  { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api:    { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], deny: [192.168.203.51/32], sni: { syn_cookies: never, routes: [{ names: [a.lab], pool: kas }] } }
  direct: { network: tenant-a, listen: ["192.168.203.110:6444/tcp"], pool: kas }
"#;

/// Flag in the field of a fragment: more follow.
const MORE: u16 = 0x2000;
/// What a connection consists of.
const FLAGS: [u8; 6] = [SYN_ONLY, SYN_ACK, ACK_ONLY, FIN_ACK, RST_ONLY, RST_ACK];

fn delivered(lb: &mut DataPlane, bytes: &[u8]) {
    let wanted = Outcome {
        action: Action::Redirect,
        frame: bytes.to_vec(),
        counted: ("nic", "tenant-a".to_owned(), "delivered"),
    };
    assert_eq!(lb.receive(Port::Tenant, bytes), wanted);
}

/// From the cell to a client.
fn from_cell(from: &str, to: &str, flags: u8) -> Vec<u8> {
    let client = node_mac(Ipv4Addr::new(192, 168, 203, 50));
    tcp(from, to, flags).between(TENANT_NIC, client).bytes()
}

#[privileged_test]
fn a_segment_to_a_shared_vip_goes_into_the_cell_as_it_is() {
    let mut lb = DataPlane::new(CONFIG);
    for flags in FLAGS {
        delivered(&mut lb, &request(CLIENT_A, API, flags).bytes());
        delivered(
            &mut lb,
            &request(CLIENT_A, API, flags).payload(b"a hello").bytes(),
        );
        delivered(&mut lb, &request(CLIENT_A, API, flags).ttl(1).bytes());
    }
}

/// Policy is asked of every segment: no connection outlives it.
#[privileged_test]
fn who_is_not_let_in_does_not_get_to_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    for flags in FLAGS {
        let denied = request(CLIENT_B, API, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &denied, "denied");
        let spoofed = request("10.9.9.9:40000", API, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &spoofed, "spoofed");
        let own = request("192.168.203.110:40000", API, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &own, "spoofed");
    }
    let elsewhere = request(CLIENT_A, "192.168.203.110:6445", SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Tenant, &elsewhere, "no_service");
}

/// The cell's kernel would answer with the same options, which may not leave.
#[privileged_test]
fn a_segment_with_ip_options_or_in_fragments_does_not_get_to_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    for flags in FLAGS {
        // Router alert, RFC 2113.
        let options = request(CLIENT_A, API, flags).options(&[148, 4, 0, 0]);
        let first = request(CLIENT_A, API, flags)
            .payload(&[7; 68])
            .fragment(MORE);
        for bytes in [options.bytes(), first.bytes()] {
            assert_dropped(&mut lb, Port::Tenant, &bytes, "unsupported_protocol");
        }
    }
}

#[privileged_test]
fn what_the_cell_says_as_a_shared_vip_leaves_and_nothing_else_does() {
    let mut lb = DataPlane::new(CONFIG);
    let cell = Port::Cell("tenant-a");
    for flags in FLAGS {
        let bytes = from_cell(API, CLIENT_A, flags);
        let wanted = Outcome {
            action: Action::Redirect,
            frame: bytes.clone(),
            counted: ("cell", "tenant-a".to_owned(), "forwarded"),
        };
        assert_eq!(lb.receive(cell, &bytes), wanted);
        for other in [
            "192.168.203.110:6444",
            "192.168.203.110:6445",
            "192.168.203.50:6443",
        ] {
            let bytes = from_cell(other, CLIENT_A, flags);
            let outcome = lb.receive(cell, &bytes);
            assert_eq!(outcome.counted.2, "cell_forbidden", "{other}");
        }
    }
    let to_us = from_cell(API, "192.168.203.110:6444", SYN_ACK);
    assert_eq!(lb.receive(cell, &to_us).counted.2, "cell_forbidden");
}

/// The way to a client may be narrower than its network: the cell's kernel must know.
#[privileged_test]
fn an_error_about_a_segment_of_a_shared_vip_goes_into_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let router = node_mac(Ipv4Addr::new(192, 168, 203, 1));
    let about = |from: &str| {
        let quoted = tcp(from, CLIENT_A, ACK_ONLY).bytes()[14..42].to_vec();
        let sent = icmp("192.168.203.1", "192.168.203.110", (3, 4), 1280);
        sent.between(router, TENANT_NIC).payload(&quoted)
    };
    delivered(&mut lb, &about(API).bytes());
    let bytes = about("192.168.203.110:6444").bytes();
    assert_dropped(&mut lb, Port::Tenant, &bytes, "icmp_unrelated");
}

/// Where the VIP is the host's own address, so is the socket behind it.
#[privileged_test]
fn on_a_host_network_the_host_gets_it() {
    let config = CONFIG.replace(
        "role: tenant, interface: eth0,",
        "role: uplink, interface: eth0, address: host,",
    );
    let mut lb = DataPlane::new(&config);
    for flags in FLAGS {
        let bytes = request(CLIENT_A, API, flags).bytes();
        assert_passed(&mut lb, Port::Tenant, &bytes);
        let denied = request(CLIENT_B, API, flags).bytes();
        assert_dropped(&mut lb, Port::Tenant, &denied, "denied");
    }
}
