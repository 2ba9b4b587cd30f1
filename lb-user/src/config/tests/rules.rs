//! The rules of which clients may use a service.

use super::*;

fn with(rest: &str) -> String {
    let entry = "network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], pool: kas-a";
    format!("  api-a: {{ {entry}, {rest} }}")
}

fn rules(rest: &str) -> Vec<(String, bool)> {
    let config = accepted(&[(10, &with(rest))]);
    let rules = config.services[0].rules.iter();
    rules
        .map(|rule| (rule.prefix.to_string(), rule.allow))
        .collect()
}

#[test]
fn allow_and_deny_become_rules_in_order() {
    let rule = |prefix: &str, allow: bool| (prefix.to_owned(), allow);
    assert_eq!(rules("allow: any"), []);
    assert_eq!(rules("allow: [0.0.0.0/0]"), []);
    assert_eq!(
        rules("allow: [10.2.0.0/16, 10.1.0.0/16], deny: [10.1.1.1/32]"),
        [
            rule("10.1.0.0/16", true),
            rule("10.1.1.1/32", false),
            rule("10.2.0.0/16", true)
        ]
    );
    let denied = [rule("0.0.0.0/0", true), rule("10.1.0.0/16", false)];
    assert_eq!(rules("deny: [10.1.0.0/16]"), denied);
    assert_eq!(rules("allow: any, deny: [10.1.0.0/16]"), denied);
    let allowed = [rule("0.0.0.0/0", false), rule("10.1.0.0/16", true)];
    assert_eq!(rules("allow: [10.1.0.0/16], deny: any"), allowed);
}

#[test]
fn a_prefix_has_one_rule() {
    let key = "services.api-a";
    let twice = with("allow: [10.0.0.0/8, 10.0.0.0/8]");
    let words = "10.0.0.0/8 is already listed in line 10";
    refused(&[(10, &twice)], &format!("{key}.allow[1]"), words);
    let both = with("allow: [10.0.0.0/8], deny: [10.0.0.0/8]");
    refused(&[(10, &both)], &format!("{key}.deny[0]"), words);
    let both = with("allow: any, deny: any");
    let words = "0.0.0.0/0 is already listed in line 10";
    refused(&[(10, &both)], &format!("{key}.deny"), words);
    let words = "0.0.0.0/0 denies every client";
    refused(&[(10, &with("deny: any"))], &format!("{key}.deny"), words);
    refused(
        &[(10, &with("allow: []"))],
        &format!("{key}.allow"),
        "found an empty list",
    );
    let bits = with("allow: [10.0.0.1/8]");
    refused(&[(10, &bits)], &format!("{key}.allow[0]"), "host bits set");
    let bogon = with("deny: [127.0.0.0/8]");
    refused(
        &[(10, &bogon)],
        &format!("{key}.deny[0]"),
        "is a loopback address",
    );
}

#[test]
fn nobody_opens_a_flow_from_mgmt_to_a_tenant() {
    let tenant = tenant("prefixes: [192.168.203.0/24], snat: [192.168.203.9]");
    let changes = |service: &str| {
        file(&[
            (4, &tenant),
            (7, "    network: tenant-a"),
            (8, &backends("\"192.168.203.101:80\"")),
            (11, service),
        ])
    };
    let mgmt = "  x: { network: mgmt, listen: [\"10.32.96.60:80/tcp\"], pool: kas-a }";
    let found = problems(&changes(mgmt));
    assert_eq!(
        (found.len(), found[0].0, found[0].1.as_str()),
        (1, 11, "services.x.pool")
    );
    assert!(
        found[0]
            .2
            .contains("from network mgmt, which is mgmt, no flow to a tenant")
    );
    assert!(parse("f", &changes("")).is_ok());
    let uplink = changes(mgmt).replace("role: mgmt", "role: uplink");
    assert!(parse("f", &uplink).is_ok());
}

/// Each list has an end, and so have all of them together.
#[test]
fn all_prefixes_together_have_an_end() {
    let prefixes = |service: usize| {
        let one = |index: usize| format!("10.{service}.{}.{}/32", index / 256, index % 256);
        (0..1024).map(one).collect::<Vec<_>>().join(", ")
    };
    let services = |count: usize| {
        let one = |service: usize| {
            format!(
                "  s{service}: {{ network: tenant-a, listen: [\"192.168.203.110:{}/tcp\"], pool: \
                 kas-a, allow: [{}] }}\n",
                1000 + service,
                prefixes(service)
            )
        };
        file(&[(10, &(0..count).map(one).collect::<String>())])
    };
    assert!(parse("f", &services(63)).is_ok());
    let found = problems(&services(64));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].1, "services");
    assert!(found[0].2.contains("there is room for 65536"), "{found:?}");
}

/// The warnings of the file with some lines replaced, as (line, key, name, words).
fn warned(changes: &[(usize, &str)]) -> Vec<(usize, String, &'static str, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lb.yaml");
    std::fs::write(&path, file(changes)).unwrap();
    let warnings = load_text(&path).unwrap().warnings.into_iter();
    let warnings =
        warnings.map(|Warning { name, problem }| (problem.line, problem.key, name, problem.words));
    warnings.collect()
}

#[test]
fn an_allow_that_no_client_can_match_is_warned_of() {
    let with = |rest: &str| {
        format!(
            "  api-a: {{ network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], pool: kas-a, {rest} }}"
        )
    };
    let found = warned(&[(10, &with("allow: [192.168.203.0/25, 172.16.0.0/12]"))]);
    let words = "no client of network tenant-a has an address in 172.16.0.0/12, so service api-a lets none in by it; its \
                 sources are 192.168.203.0/24";
    let key = "services.api-a.allow[1]".to_owned();
    assert_eq!(found, [(10, key, "idle-allow", words.to_owned())]);
    for fine in [
        "allow: any",
        "allow: [192.168.0.0/16]",
        "allow: [192.168.203.7/32]",
        "deny: [172.16.0.0/12]",
    ] {
        assert_eq!(warned(&[(10, &with(fine))]), [], "{fine}");
    }
    let open = tenant("prefixes: [192.168.203.0/24], sources: any");
    let far = with("allow: [172.16.0.0/12]");
    assert_eq!(warned(&[(4, &open), (10, &far)]), []);
}

#[test]
fn a_prefix_of_mgmt_that_contains_a_tenants_is_warned_of() {
    let wide = mgmt("prefixes: [10.32.96.0/20, 192.168.0.0/16], snat: [10.32.96.50]");
    let words = "192.168.0.0/16 of network mgmt contains 192.168.203.0/24 of the tenant's network tenant-a; expected \
                 prefixes of its own";
    let key = "networks.mgmt.prefixes[1]".to_owned();
    assert_eq!(
        warned(&[(3, &wide)]),
        [(3, key, "tenant-in-mgmt", words.to_owned())]
    );
    let inside = tenant("prefixes: [10.32.0.0/16]");
    let api = api("\"10.32.0.10:6443/tcp\"");
    let other = "  dns-a: { network: tenant-a, listen: [\"10.32.0.10:53/udp\"], pool: kas-a }";
    assert_eq!(warned(&[(4, &inside), (10, &api), (11, other)]), []);
}
