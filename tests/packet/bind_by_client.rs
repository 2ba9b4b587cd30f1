//! Names that lead by the address of the client: XDP opens the connections of those that it knows a pool for.

use lb_tests::{
    frames::{packet::flags::SYN_ONLY, segment::Segment},
    product::program::{Action, Port},
};

use super::{
    bind::{hello, receive},
    cookies::{Answer, OPTIONS, start_with},
    given::passed_on,
};

const ONE: &str = "10.32.96.105:30918";
const OTHER: &str = "10.32.96.106:30918";

/// With these routes of `a.lab`, and what is under it.
fn config(routes: &[(&str, &str)]) -> String {
    let routes = routes.iter().map(|(keys, pool)| {
        format!("        - {{ names: [a.lab, \"*.a.lab\"], {keys}pool: {pool} }}\n")
    });
    let routes: String = routes.collect();
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

/// Each client goes where the first route for it leads; one that the process has, or that gets nothing, to the process.
#[privileged_test]
fn a_name_leads_by_the_client() {
    // The client is 192.168.203.50.
    type Routes = &'static [(&'static str, &'static str)];
    let cases: [(Routes, Option<&str>); 9] = [
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
        (
            &[
                ("alpn: [h2], from: [192.168.203.50/32], ", "one"),
                ("from: [192.168.203.0/24], ", "one"),
            ],
            None,
        ),
    ];
    for (routes, backend) in cases {
        for name in ["a.lab", "x.a.lab"] {
            let mut lb = start_with(&config(routes));
            let answer = Answer::to(&mut lb, &OPTIONS);
            let first = hello(&answer, name).bytes();
            let Some(backend) = backend else {
                let left = receive(&mut lb, Port::Tenant, &first);
                let counted = &["consumed", "unrouted"][..];
                assert_eq!(
                    (left.action, &left.counted[..]),
                    (Action::Drop, counted),
                    "{name} {routes:?}"
                );
                assert_eq!(lb.hellos().len(), 1);
                continue;
            };
            let syn = passed_on(&mut lb, Port::Tenant, &first);
            let syn = Segment::read(&syn).expect("a SYN");
            assert_eq!(syn.flags, SYN_ONLY);
            assert_eq!(syn.to.to_string(), backend, "{name} {routes:?}");
        }
    }
}
