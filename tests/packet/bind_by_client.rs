//! Names that lead by the address of the client, and by the protocols that it offers: XDP opens the connections of those that it knows a pool for.

use lb_tests::{
    frames::{
        packet::{
            Frame,
            flags::{ACK_ONLY, SYN_ONLY},
        },
        segment::Segment,
    },
    product::program::{Action, DataPlane, Port},
    traffic::hello::offering,
};

use super::{
    bind::{hello, receive},
    cookies::{Answer, OPTIONS, start_with},
    given::passed_on,
};

const ONE: &str = "10.32.96.105:30918";
const OTHER: &str = "10.32.96.106:30918";

fn config(routes: &str) -> String {
    format!(
        "
version: 1
networks:
  mgmt:     {{ role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }}
  tenant-a: {{ role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }}
pools:
  one:   {{ network: mgmt, backends: [\"{ONE}\"] }}
  other: {{ network: mgmt, backends: [\"{OTHER}\"] }}
  kept:  {{ network: mgmt, backends: [\"{OTHER}\"], balance: source, source_timeout: 1m }}
services:
  api:
    network: tenant-a
    listen: [\"192.168.203.110:6443/tcp\"]
    sni:
      routes:
{routes}"
    )
}

/// With these routes of `a.lab`, and what is under it.
fn config_of_a(routes: &[(&str, &str)]) -> String {
    let routes = routes.iter().map(|(keys, pool)| {
        format!("        - {{ names: [a.lab, \"*.a.lab\"], {keys}pool: {pool} }}\n")
    });
    config(&routes.collect::<String>())
}

/// Ensures that the client of this hello goes to this backend as a SYN; without one, to the process.
fn ensure_goes(lb: &mut DataPlane, hello: &Frame, backend: Option<&str>, case: &str) {
    let Some(backend) = backend else {
        let before = lb.hellos().len();
        let left = receive(lb, Port::Tenant, &hello.bytes());
        let counted = &["consumed", "unrouted"][..];
        assert_eq!(
            (left.action, &left.counted[..]),
            (Action::Drop, counted),
            "{case}"
        );
        assert_eq!(lb.hellos().len(), before + 1, "{case}");
        return;
    };
    let syn = passed_on(lb, Port::Tenant, &hello.bytes());
    let syn = Segment::read(&syn).expect("a SYN");
    assert_eq!(syn.flags, SYN_ONLY, "{case}");
    assert_eq!(syn.to.to_string(), backend, "{case}");
}

/// Each client goes where the first route for it leads; one that the process has, or that gets nothing, to the process.
#[privileged_test]
fn a_name_leads_by_the_client() {
    // The client is 192.168.203.50.
    type Routes = &'static [(&'static str, &'static str)];
    let cases: [(Routes, Option<&str>); 8] = [
        (&[("from: [192.168.203.50/32], ", "one")], Some(ONE)),
        (&[("from: [192.168.203.51/32], ", "one")], None),
        (
            &[
                ("from: [192.168.203.51/32], ", "one"),
                ("from: [192.168.203.48/30], ", "other"),
            ],
            Some(OTHER),
        ),
        // The first one for it, whichever is longer.
        (
            &[
                ("from: [192.168.203.0/24], ", "one"),
                ("from: [192.168.203.50/32], ", "other"),
            ],
            Some(ONE),
        ),
        (
            &[
                ("from: [192.168.203.50/32], ", "other"),
                ("from: [192.168.203.0/24], ", "one"),
            ],
            Some(OTHER),
        ),
        // In a longer prefix there is nothing of its own.
        (
            &[
                ("from: [192.168.203.0/24], ", "one"),
                ("from: [192.168.203.48/30, 10.0.0.0/8], ", "other"),
            ],
            Some(ONE),
        ),
        // Of other clients.
        (
            &[("from: [192.168.203.51/32], ", "one"), ("", "other")],
            Some(OTHER),
        ),
        (
            &[
                ("from: [192.168.203.50/32], ", "kept"),
                ("from: [192.168.203.0/24], ", "one"),
            ],
            None,
        ),
    ];
    for (routes, backend) in cases {
        for name in ["a.lab", "x.a.lab"] {
            let mut lb = start_with(&config_of_a(routes));
            let answer = Answer::to(&mut lb, &OPTIONS);
            let case = format!("{name} {routes:?}");
            ensure_goes(&mut lb, &hello(&answer, name), backend, &case);
        }
    }
}

const BY_PROTOCOL: &str = r#"
        - { names: [a.lab, "*.a.lab"], alpn: [acme-tls/1], pool: one }
        - { names: [a.lab, "*.a.lab"], alpn: [http/1.1], pool: kept }
        - { names: [b.lab], alpn: [h2], from: [192.168.203.50/32], pool: one }
        - { names: [b.lab], alpn: [acme-tls/1], pool: one }
        - { names: [c.lab], alpn: [h2], from: [192.168.203.51/32], pool: one }
        - { names: [d.lab], alpn: [h2], from: [192.168.203.51/32], pool: one }
        - { names: [d.lab], alpn: [h2], pool: other }
        - { regex: ["e.*[.]lab"], pool: one }
        - { names: [e.f.lab], pool: kept }
        - { names: ["*.lab"], alpn: [H3], pool: one }
        - { names: ["*.lab"], pool: other }
"#;

/// Each client goes where the first route leads that is for it and for a protocol that it offers; of a name that has none for its
/// protocols, where a less exact one leads.
#[privileged_test]
fn a_name_leads_by_what_the_client_offers() {
    type Offers = &'static [&'static [u8]];
    const EIGHT: Offers = &[
        b"1",
        b"2",
        b"3",
        b"4",
        b"5",
        b"6",
        &[b'x'; 200],
        b"acme-tls/1",
    ];
    let cases: [(&str, Offers, Option<&str>); 21] = [
        ("a.lab", &[], Some(OTHER)),
        ("a.lab", &[b"acme-tls/1"], Some(ONE)),
        ("a.lab", &[b"h2", b"acme-tls/1"], Some(ONE)),
        (
            "a.lab",
            &[b"http/1.1", b"acme-tls/1", b"http/1.1"],
            Some(ONE),
        ),
        ("a.lab", &[b"http/1.1"], None),
        ("a.lab", &[b"h2"], Some(OTHER)),
        ("a.lab", EIGHT, Some(ONE)),
        ("x.y.a.lab", &[b"acme-tls/1"], Some(ONE)),
        ("x.y.a.lab", &[b"acme-tls/1", b"acme-tls/1"], Some(ONE)),
        ("x.y.a.lab", &[b"ACME-TLS/1"], Some(OTHER)),
        ("b.lab", &[b"h2"], Some(ONE)),
        ("b.lab", &[], Some(OTHER)),
        ("b.lab", &[b"H3"], Some(ONE)),
        ("b.lab", &[b"h3"], Some(OTHER)),
        // It is for other clients, whatever they offer.
        ("c.lab", &[b"h2"], None),
        ("c.lab", &[], None),
        // In no class of its own.
        ("d.lab", &[b"h2"], Some(OTHER)),
        ("d.lab", &[&[0x1a, 0x1a], b"h2"], Some(OTHER)),
        // What an expression matches has a wildcard that is more exact.
        ("e.lab", &[], Some(OTHER)),
        ("e.f.lab", &[], None),
        // No name is one of a protocol.
        ("h2", &[b"h2"], None),
    ];
    for (name, offers, backend) in cases {
        let mut lb = start_with(&config(BY_PROTOCOL));
        let answer = Answer::to(&mut lb, &OPTIONS);
        let data = offering(name.as_bytes(), offers);
        let hello = answer.segment(0, ACK_ONLY).payload(&data).window(501);
        ensure_goes(&mut lb, &hello, backend, &format!("{name} {offers:?}"));
    }
    // More than a glance takes.
    let mut lb = start_with(&config(BY_PROTOCOL));
    let answer = Answer::to(&mut lb, &OPTIONS);
    let data = offering(b"a.lab", &[&b"h2"[..]; 9]);
    let hello = answer.segment(0, ACK_ONLY).payload(&data);
    let left = receive(&mut lb, Port::Tenant, &hello.bytes());
    assert_eq!(left.counted, ["consumed", "unread"]);
}
