//! FEATURES B16: nothing holds a key or a certificate of a service, so there is no place for one. What stands in a PEM
//! file are the authorities of a check, and what two boxes know each other by.

use super::*;

/// A key that no mapping has and that is like no other one, in every kind of mapping that there is; the problem
/// of each lists the keys that are known there.
const UNKNOWN_EVERYWHERE: &str = "\
version: 1
zzz: 0
defaults: { zzz: 0 }
limits: { zzz: 0 }
timeouts: { zzz: 0 }
log: { zzz: 0 }
ha: { zzz: 0, boxes: { lb1: { zzz: 0 } } }
admin: { zzz: 0, http: { zzz: 0, listen: \"127.0.0.1:1\" } }
networks:
  mgmt: { zzz: 0, role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], \
          routes: [{ zzz: 0, to: 10.40.0.0/16, via: 10.32.96.1 }], snat: [{ zzz: 0, address: 10.32.96.50 }] }
nodes:
  hub: { zzz: 0, network: mgmt, addresses: [{ zzz: 0, name: one, address: 10.32.96.105 }] }
pools:
  a: { zzz: 0, network: mgmt, health: { zzz: 0, tcp: { zzz: 0 } }, backends: { zzz: 0, nodes: hub, port: 1 } }
  b: { network: mgmt, health: { tls: { zzz: 0 } }, backends: [{ zzz: 0, address: \"10.32.96.105:1\" }] }
  c: { network: mgmt, health: { http: { zzz: 0, path: / } }, backends: [\"10.32.96.105:1\"] }
  d: { network: mgmt, health: { https: { zzz: 0, path: / } }, backends: [\"10.32.96.105:1\"] }
services:
  of-sni:
    zzz: 0
    network: mgmt
    listen: [\"10.32.96.60:443/tcp\"]
    sni: { zzz: 0, routes: [{ zzz: 0, names: [a.lab], pool: a }], no_match: { zzz: 0, pool: a } }
  of-http:
    network: mgmt
    listen: [\"10.32.96.60:80/tcp\"]
    http: { zzz: 0, routes: [{ zzz: 0, names: [a.lab], pool: a }] }
clusters:
  hub: { zzz: 0, network: mgmt, nodes: hub, api: { zzz: 0, publish: NodePort, vip: 10.32.96.61, node_port: 1 }, \
         routes: { zzz: 0, https: 2, http: 3 }, apps: { zzz: 0, vip: 10.32.96.62, https: 2, http: 3 } }
";

/// Words that keys for something secret, or for an identity, have in them.
const WORDS: [&str; 9] = [
    "cert", "pem", "key", "tls", "ssl", "secret", "private", "crt", "trust",
];

#[test]
fn no_key_leads_to_a_certificate_but_that_of_whom_a_check_trusts() {
    let mut asked = 0;
    let mut found = Vec::new();
    for (_, key, words) in problems(UNKNOWN_EVERYWHERE) {
        let Some(place) = key.strip_suffix("zzz") else {
            continue;
        };
        let known = words.strip_prefix("unknown key; expected one of ");
        let known = known.unwrap_or_else(|| panic!("{key}: {words}"));
        asked += 1;
        for known in known.split(", ") {
            // What numbers of SYN-ACKs are made with is no key of TLS.
            let is_one = known != "syn_cookie_key" && WORDS.iter().any(|word| known.contains(word));
            if known == "ca" || is_one {
                found.push(format!("{place}{known}"));
            }
        }
    }
    assert_eq!(asked, UNKNOWN_EVERYWHERE.matches("zzz").count());
    // Of the session between two boxes; a check by TLS, and its authorities.
    let checks = [
        "ha.ca",
        "ha.certificate",
        "ha.key",
        "pools.a.health.tls",
        "pools.b.health.tls.ca",
        "pools.d.health.https.ca",
    ];
    assert_eq!(found, checks);
}

#[test]
fn a_service_has_no_place_for_a_key() {
    let service = |more: &str| {
        format!("  api-a: {{ network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], {more} }}")
    };
    for key in ["certificate", "cert", "key", "tls", "ca", "pem"] {
        let secret = format!("{key}: /etc/lb/server.pem");
        let route = "routes: [{ names: [a.lab], pool: kas-a }]";
        for (text, place) in [
            (format!("pool: kas-a, {secret}"), ""),
            (format!("sni: {{ {route}, {secret} }}"), "sni."),
            (format!("http: {{ {route}, {secret} }}"), "http."),
            (
                format!("sni: {{ routes: [{{ names: [a.lab], pool: kas-a, {secret} }}] }}"),
                "sni.routes[0].",
            ),
        ] {
            let place = format!("services.api-a.{place}{key}");
            refused(&[(10, &service(&text))], &place, "unknown key; ");
        }
    }
}
