//! The rules of services, and the limits of all.

use std::fmt::Write as _;

use super::*;

#[test]
fn a_service_needs_its_network_and_pool() {
    refused(
        &[(
            10,
            "  api-a: { network: tenant-b, listen: [\"192.168.203.110:6443/tcp\"], pool: kas-a }",
        )],
        "services.api-a.network",
        "no network is called \"tenant-b\"; did you mean \"tenant-a\"?",
    );
    refused(
        &[(
            10,
            "  api-a: { network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], pool: kas }",
        )],
        "services.api-a.pool",
        "no pool is called \"kas\"",
    );
    let problems = problems(
        "version: 1\n\
         networks: { a: { role: mgmt, interface: e, prefixes: [10.0.0.0/8] } }\n\
         services: { s: { network: a, listen: [\"10.0.0.1:1/udp\"], pool: p } }",
    );
    assert_eq!(problems[0].2, "no pool is called \"p\"; there is none");
}

#[test]
fn listen_entries_are_vips_of_their_network() {
    let key = "services.api-a.listen[0]";
    refused(
        &[(10, &api(""))],
        "services.api-a.listen",
        "found an empty list",
    );
    refused(
        &[(10, &api("\"192.168.203.110:6443\""))],
        key,
        "has no protocol",
    );
    refused(
        &[(10, &api("\"192.168.203.110:6443/sctp\""))],
        key,
        "\"sctp\" is not a protocol",
    );
    refused(
        &[(10, &api("\"192.168.203.110:0/tcp\""))],
        key,
        "\"0\" is not a port",
    );
    refused(
        &[(10, &api("\"192.168.204.1:1/tcp\""))],
        key,
        "is a VIP outside its network's prefixes",
    );
    refused(
        &[(10, &api("\"192.168.203.0:1/tcp\""))],
        key,
        "is the network address",
    );
    refused(
        &[(10, &api("\"192.168.203.255:1/tcp\""))],
        key,
        "is the broadcast address",
    );
    refused(
        &[(10, &api("\"224.0.0.1:1/tcp\""))],
        key,
        "is a multicast address",
    );
    let snat = tenant("prefixes: [192.168.203.0/24], snat: [192.168.203.110]");
    let both = problems(&file(&[(4, &snat)]));
    assert_eq!((both[0].0, both[0].1.as_str()), (10, key));
    assert!(
        both[0]
            .2
            .contains("is a SNAT address of network tenant-a in line 4")
    );
}

#[test]
fn a_listen_entry_belongs_to_one_service() {
    let first = "192.168.203.110:53/udp is already used by service dns-a in line 10";
    refused_at(
        &[
            (10, LINES[10]),
            (
                11,
                "  dns-b: { network: tenant-a, listen: [\"192.168.203.110:53/udp\"], pool: kas-a }",
            ),
        ],
        11,
        "services.dns-b.listen[0]",
        first,
    );
    refused(
        &[(
            10,
            &api("\"192.168.203.110:1/tcp\", \"192.168.203.110:1/tcp\""),
        )],
        "services.api-a.listen[1]",
        "already used by service api-a in line 10",
    );
    accepted(&[(
        10,
        &api("\"192.168.203.110:53/tcp\", \"192.168.203.111:53/udp\""),
    )]);
}

#[test]
fn limits_have_a_range() {
    for (key, most) in [
        ("snat_addresses", 128),
        ("services", 65_535),
        ("backends", 65_535),
        ("pools", 4096),
    ] {
        let path = format!("limits.{key}");
        for value in [0, most + 1, 5_000_000_000_u64] {
            let text = format!("limits: {{ {key}: {value} }}");
            refused(
                &[(12, &text)],
                &path,
                &format!("found {value}, expected 1 to {most}"),
            );
        }
        accepted(&[(12, &format!("limits: {{ {key}: {most} }}"))]);
    }
}

#[test]
fn what_is_written_fits_within_the_limits() {
    let snat = mgmt("prefixes: [10.32.96.0/20], snat: [10.32.96.50, 10.32.96.51]");
    refused(
        &[(3, &snat), (12, "limits: { snat_addresses: 1 }")],
        "networks.mgmt.snat[1]",
        "2 SNAT addresses in all, but limits.snat_addresses is 1",
    );
    refused_at(
        &[(12, "limits: { services: 1 }")],
        11,
        "services.dns-a.listen[0]",
        "2 listen entries in all, but limits.services is 1",
    );
    refused_at(
        &[(12, "limits: { backends: 1 }")],
        8,
        "pools.kas-a.backends[1]",
        "2 backends in all, but limits.backends is 1",
    );
    refused_at(
        &[
            (
                8,
                "    backends: []\n  more: { network: mgmt, backends: [] }",
            ),
            (12, "limits: { pools: 1 }"),
        ],
        9,
        "pools.more",
        "2 pools in all, but limits.pools is 1",
    );
}

#[test]
fn what_is_written_fits_into_the_maps() {
    let mut networks = String::new();
    for index in 0..256 {
        let text = "role: tenant, interface: e";
        writeln!(
            networks,
            "  n{index}: {{ {text}{index}, prefixes: [10.0.0.0/8] }}"
        )
        .unwrap();
    }
    let text = format!("version: 1\nnetworks:\n{networks}");
    let full = "256 networks in all, but there is room for 255".to_owned();
    assert_eq!(problems(&text), [(258, "networks.n255".to_owned(), full)]);

    // With one SNAT address and the VIP of the other service, there is room for 4094 more.
    let vip = |index: u32| format!("\"192.168.{}.{}:1/tcp\"", 220 + index / 256, index % 256);
    let vips: Vec<_> = (1..=4095).map(vip).collect();
    let with = |count: usize| {
        file(&[
            (4, &tenant("prefixes: [192.168.192.0/18]")),
            (10, &api(&vips[..count].join(", "))),
            (12, "limits: { services: 5000 }"),
        ])
    };
    assert!(parse("f", &with(4094)).is_ok());
    let full = problems(&with(4095));
    assert_eq!((full.len(), full[0].0), (1, 11));
    assert_eq!(full[0].2, "more than 4096 VIPs and SNAT addresses in all");
}
