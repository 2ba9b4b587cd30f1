//! What differs, in the words of the file.

use crate::config::{Config, difference, parse};

const BEFORE: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas-a:
    network: mgmt
    backends: ["10.32.96.105:30918", { address: "10.32.96.106:30918", name: n2 }]
    health: { tcp: {}, interval: 2s }
  web-a: { network: mgmt, backends: ["10.32.96.105:30080"] }
services:
  api-a: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a, allow: [192.168.203.0/25] }
  web-a: { network: tenant-a, listen: ["192.168.203.110:80/tcp"], pool: web-a }
"#;

fn config(text: &str) -> Config {
    parse("lb.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// What differs once these parts of the file are others.
fn lines(changes: &[(&str, &str)]) -> Vec<String> {
    let after = changes.iter().fold(BEFORE.to_owned(), |text, (old, new)| {
        assert!(text.contains(old), "{old}");
        text.replace(old, new)
    });
    difference(&config(BEFORE), &config(&after)).unwrap()
}

#[test]
fn a_key_has_its_value_of_before_and_after() {
    assert_eq!(
        lines(&[("203.0/25]", "203.128/25, 192.168.203.7/32]")]),
        ["service api-a: allow: 192.168.203.0/25 -> 192.168.203.7/32, 192.168.203.128/25"]
    );
    assert_eq!(
        lines(&[("interval: 2s", "interval: 5s")]),
        [
            "pool kas-a: health.interval: 2s -> 5s",
            "pool kas-a: health.timeout: 2s -> 3s",
        ]
    );
    assert_eq!(
        lines(&[("interface: eth0", "interface: eth2")]),
        ["network tenant-a: interface: eth0 -> eth2"]
    );
}

#[test]
fn what_is_absent_is_what_that_means() {
    assert_eq!(
        lines(&[(", allow: [192.168.203.0/25]", "")]),
        ["service api-a: allow: 192.168.203.0/25 -> (the network's `sources`)"]
    );
    assert_eq!(
        lines(&[("pool: web-a }", "pool: web-a, max_flows: 7 }")]),
        ["service web-a: max_flows: (no limit) -> 7"]
    );
}

#[test]
fn an_object_that_comes_has_the_keys_of_the_file() {
    let checks = "pool web-a: health: (none) -> ";
    let lines = lines(&[(
        "[\"10.32.96.105:30080\"]",
        "[\"10.32.96.105:30080\"], health: { tcp: {}, interval: 2s }",
    )]);
    assert_eq!(lines.len(), 1);
    let health = lines[0].strip_prefix(checks).unwrap_or(&lines[0]);
    assert!(
        health.contains("interval: 2s") && health.contains("tcp: {"),
        "{health}"
    );
    assert!(!health.contains("check:"), "{health}");
}

/// Defaults are left out, and a backend is named once.
#[test]
fn an_object_that_is_added_has_its_keys_in_its_line() {
    let last = "listen: [\"192.168.203.110:80/tcp\"], pool: web-a }";
    let added = "\n  new-a: { network: tenant-a, listen: [\"192.168.203.111:80/tcp\"], pool: new-a, \
         allow: [192.168.203.7/32] }";
    let pool = "  web-a: { network: mgmt, backends: [\"10.32.96.105:30080\"] }";
    let new_pool = "\n  new-a: { network: mgmt, backends: [\"10.32.96.105:30081\", \
         { address: \"10.32.96.106:30081\", name: n2, weight: 3 }], health: { tcp: {}, interval: 5s } }";
    assert_eq!(
        lines(&[
            (last, &format!("{last}{added}")),
            (pool, &format!("{pool}{new_pool}")),
        ]),
        [
            "pool new-a: added: { network: mgmt, health: { tcp: {}, interval: 5s, timeout: 3s, rise: 2, \
             fall: 3, fast_interval: 1s, flap_hold: 30s, on_dead: reselect } }",
            "pool new-a: backend 10.32.96.105:30081: added",
            "pool new-a: backend n2: added: { address: 10.32.96.106:30081, weight: 3 }",
            "service new-a: added: { network: tenant-a, pool: new-a, allow: 192.168.203.7/32, \
             listen: 192.168.203.111:80/tcp }",
        ]
    );
}

#[test]
fn objects_come_and_go_by_their_names() {
    assert_eq!(
        lines(&[
            ("name: n2", "name: n2, weight: 3"),
            ("\"10.32.96.105:30918\"", "\"10.32.96.107:30918\""),
            (
                "  web-a: { network: tenant-a, listen: [\"192.168.203.110:80/tcp\"], pool: web-a }",
                ""
            ),
            (
                "  web-a: { network: mgmt, backends: [\"10.32.96.105:30080\"] }",
                ""
            ),
        ]),
        [
            "pool web-a: removed",
            "pool kas-a: backend 10.32.96.105:30918: removed",
            "pool kas-a: backend 10.32.96.107:30918: added",
            "pool kas-a: backend n2: weight: 1 -> 3",
            "service web-a: removed",
        ]
    );
}

#[test]
fn the_same_configuration_has_no_difference() {
    assert_eq!(lines(&[]), [""; 0]);
}
