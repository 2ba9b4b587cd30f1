//! Keys, types and names: the rules of single values.

use super::*;

#[test]
fn the_version_is_1() {
    refused(&[(1, "version: 2")], "version", "found 2, expected 1");
    refused(
        &[(1, "version: \"1\"")],
        "version",
        "found the text \"1\", expected a whole number",
    );
    refused(&[(1, "version:")], "version", "found no value");
    refused(&[(1, "")], "version", "missing");
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    let key = "networks.tenant-a.interfcae";
    let text = "  tenant-a: { role: tenant, interface: eth0, prefixes: [10.0.0.0/8], ";
    let with = |rest: &str| format!("{text}{rest} }}");
    refused(
        &[(4, &with("interfcae: eth0")), (10, ""), (11, "")],
        key,
        "did you mean \"interface\"?",
    );
    refused(
        &[(4, &with("mtu: 2003")), (10, ""), (11, "")],
        "networks.tenant-a.mtu",
        "unknown key; expected one of role, interface, vlan, address, sources",
    );
    refused(
        &[(12, "limits: { pools:8 }")],
        "limits.pools:8",
        "is the space behind \"pools:\" missing?",
    );
    refused(
        &[(12, "egress: []")],
        "egress",
        "unknown key; expected one of version, include",
    );
    refused(&[(12, "<<: { a: 1 }")], "<<", "merge keys");
}

#[test]
fn missing_keys_are_reported_where_they_belong() {
    refused(
        &[(
            3,
            "  mgmt: { interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }",
        )],
        "networks.mgmt.role",
        "missing",
    );
    refused_at(&[(7, "")], 6, "pools.kas-a.network", "missing");
    refused_at(&[(8, "")], 6, "pools.kas-a.backends", "missing");
    refused(
        &[(10, "  api-a: { network: tenant-a, pool: kas-a }")],
        "services.api-a.listen",
        "missing",
    );
    refused(
        &[(8, &backends("{ weight: 1 }"))],
        "pools.kas-a.backends[0].address",
        "missing",
    );
}

#[test]
fn wrong_types_name_what_was_found() {
    let list = "found \"eth1\", expected a list such as [a, b]";
    refused(
        &[(3, &mgmt("prefixes: [10.32.96.0/20], snat: eth1"))],
        "networks.mgmt.snat",
        list,
    );
    refused(
        &[(7, "    network: [mgmt]")],
        "pools.kas-a.network",
        "found a list, expected a text",
    );
    refused(
        &[(8, "    backends:")],
        "pools.kas-a.backends",
        "found no value, expected a list",
    );
    refused(
        &[(8, &backends("[]"))],
        "pools.kas-a.backends[0]",
        "found a list, expected a text",
    );
    refused(
        &[(10, "  api-a: kas-a")],
        "services.api-a",
        "found \"kas-a\", expected a mapping",
    );
    for number in [
        "-1",
        "08",
        "1_000",
        "0x10",
        "1.0",
        "yes",
        "99999999999999999999",
    ] {
        let words = format!("found \"{number}\", expected a whole number");
        let text = format!("limits: {{ pools: {number} }}");
        refused(&[(12, &text)], "limits.pools", &words);
    }
}

#[test]
fn sections_may_be_empty_except_networks() {
    let config = accepted(&[(9, "services:"), (10, ""), (11, ""), (12, "limits:")]);
    assert!(config.services.is_empty());
    assert_eq!(config.limits, Limits::default());
    let empty: Vec<(usize, &str)> = (3..=12).map(|line| (line, "")).collect();
    refused_at(
        &empty,
        2,
        "networks",
        "found no network, expected at least one",
    );
}

#[test]
fn a_duplicate_key_names_the_first_line() {
    refused(
        &[(
            11,
            "  api-a: { network: tenant-a, listen: [\"192.168.203.111:1/tcp\"], pool: kas-a }",
        )],
        "services.api-a",
        "duplicate key, first used in line 10",
    );
    let network = "duplicate key, first used in line 2";
    refused(&[(12, "networks: {}")], "networks", network);
}

#[test]
fn names_are_short_and_plain() {
    let named = |name: &str| format!("  {name}: {{ network: mgmt, backends: [] }}");
    for name in ["Kas", "-a", "a_b", "a.b", "ä", "\"\""] {
        let problems = problems(&file(&[(9, &named(name)), (10, ""), (11, "")]));
        assert!(
            problems[0].2.contains("is not a name"),
            "{name}: {problems:?}"
        );
        assert_eq!((problems.len(), problems[0].0), (1, 9));
    }
    let key = format!("pools.{}", "a".repeat(64));
    let changes = |name: &str| file(&[(9, &named(name)), (10, ""), (11, "")]);
    let long = problems(&changes(&"a".repeat(64)));
    assert_eq!((long[0].0, long[0].1.as_str()), (9, key.as_str()));
    assert!(long[0].2.contains("64 characters, expected at most 63"));
    for name in ["a", "0", "2003-b", &"a".repeat(63)] {
        assert!(parse("f", &changes(name)).is_ok(), "{name}");
    }
    refused(
        &[(8, &backends("{ address: \"10.32.96.106:1\", name: Node }"))],
        "pools.kas-a.backends[0].name",
        "is not a name",
    );
}
