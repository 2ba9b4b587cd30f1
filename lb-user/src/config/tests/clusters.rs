//! What they are written out as, and their rules.

use super::*;

/// A valid file with a cluster, whose lines the tests replace by their number.
const LINES: [&str; 16] = [
    "version: 1",
    "networks:",
    "  mgmt: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }",
    "  a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24], snat: [192.168.203.9] }",
    "nodes:",
    "  hub: { network: mgmt, addresses: [10.32.96.105, { name: hub-2, address: 10.32.96.106 }] }",
    "  workers: { addresses: [192.168.203.101] }",
    "clusters:",
    "  a:",
    "    { network: a, nodes: hub,",
    "    api: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30918 },",
    "    oauth: { publish: Route, vip: 192.168.203.111 },",
    "    konnectivity: { publish: NodePort, vip: 192.168.203.110, node_port: 30191 },",
    "    ignition: { publish: Route, vip: 192.168.203.113 },",
    "    routes: { https: 32488, http: 32460 },",
    "    apps: { vip: 192.168.203.112, nodes: workers, https: 30190, http: 30282 } }",
];

pub(super) fn file(changes: &[(usize, &str)]) -> String {
    let mut lines = LINES.map(str::to_owned);
    for (line, text) in changes {
        // The cluster is one mapping in braces; its lines are all indented.
        let indent = if *line > 9 { "    " } else { "" };
        lines[line - 1] = format!("{indent}{text}");
    }
    lines.join("\n")
}

pub(super) fn accepted(changes: &[(usize, &str)]) -> Config {
    match parse("lb.yaml", &file(changes)) {
        Ok(config) => config,
        Err(problems) => panic!("{changes:?}:\n{problems}"),
    }
}

/// Asserts that the changed file has one problem, at the first changed line.
pub(super) fn refused(changes: &[(usize, &str)], key: &str, piece: &str) {
    refused_at(changes, changes[0].0, key, piece);
}

pub(super) fn refused_at(changes: &[(usize, &str)], line: usize, key: &str, piece: &str) {
    let problems = problems(&file(changes));
    let [(found_line, found_key, words)] = problems.as_slice() else {
        panic!("{changes:?}: not one problem: {problems:#?}");
    };
    assert_eq!((*found_line, found_key.as_str()), (line, key), "{words}");
    assert!(words.contains(piece), "{words:?} does not say {piece:?}");
}

/// Services as `NAME LISTEN > NETWORK NODE:PORT`.
pub(super) fn services(config: &Config) -> Vec<String> {
    let service = |service: &Service| {
        let pool = config.pool(service.target.pool().unwrap()).unwrap();
        let last = pool.backends.last().unwrap();
        let Service { name, listen, .. } = service;
        format!(
            "{name} {} > {} {}:{}",
            listen[0], pool.network, last.name, last.port
        )
    };
    config.services.iter().map(service).collect()
}

#[test]
fn a_cluster_is_published_part_by_part() {
    assert_eq!(
        services(&accepted(&[])),
        [
            "a-api 192.168.203.110:6443/tcp > mgmt hub-2:30918",
            "a-konnectivity 192.168.203.110:30191/tcp > mgmt hub-2:30191",
            "a-routes-https 192.168.203.111:443/tcp > mgmt hub-2:32488",
            "a-routes-http 192.168.203.111:80/tcp > mgmt hub-2:32460",
            "a-routes-https-2 192.168.203.113:443/tcp > mgmt hub-2:32488",
            "a-routes-http-2 192.168.203.113:80/tcp > mgmt hub-2:32460",
            "a-apps-https 192.168.203.112:443/tcp > a 192.168.203.101:30190",
            "a-apps-http 192.168.203.112:80/tcp > a 192.168.203.101:30282",
        ]
    );
    let load_balancers = accepted(&[
        (
            12,
            "oauth: { publish: LoadBalancer, vip: 192.168.203.111, node_port: 1 },",
        ),
        (
            13,
            "konnectivity: { publish: LoadBalancer, vip: 192.168.203.111, node_port: 2 },",
        ),
        (
            14,
            "ignition: { publish: LoadBalancer, vip: 192.168.203.113, node_port: 3 },",
        ),
        (15, ""),
        (16, "}"),
    ]);
    assert_eq!(
        services(&load_balancers)[1..],
        [
            "a-oauth 192.168.203.111:443/tcp > mgmt hub-2:1",
            "a-konnectivity 192.168.203.111:8091/tcp > mgmt hub-2:2",
            "a-ignition 192.168.203.113:443/tcp > mgmt hub-2:3",
        ]
    );
    let https = accepted(&[
        (14, ""),
        (15, "routes: { https: 1 },"),
        (
            16,
            "apps: { vip: 192.168.203.112, nodes: workers, https: 2 } }",
        ),
    ]);
    assert_eq!(https.services.len(), 4);
    let nothing: Vec<(usize, &str)> = (11..=15).map(|line| (line, "")).collect();
    let nothing = [&nothing[..], &[(16, "}")]].concat();
    assert!(accepted(&nothing).services.is_empty());
}

#[test]
fn parts_need_what_they_are_published_by() {
    let api = |rest: &str| format!("api: {{ vip: 192.168.203.110, {rest} }},");
    let key = "clusters.a.api";
    let words = "\"Ingress\" is unknown; expected LoadBalancer or NodePort";
    refused(
        &[(11, &api("publish: Ingress, node_port: 1"))],
        &format!("{key}.publish"),
        words,
    );
    let words = "the API cannot be a Route";
    refused(
        &[(11, &api("publish: Route"))],
        &format!("{key}.publish"),
        words,
    );
    refused(
        &[(11, &api("node_port: 1"))],
        &format!("{key}.publish"),
        "missing",
    );
    for (publish, port) in [("LoadBalancer", "0"), ("NodePort", "65536")] {
        let text = api(&format!("publish: {publish}, node_port: {port}"));
        let words = format!("{port} is not a port");
        refused(&[(11, &text)], &format!("{key}.node_port"), &words);
        // The pool that it would have been is no other problem.
        let end = "apps: { vip: 192.168.203.112, nodes: workers, https: 30190 } }\n\
            services: { s: { network: a, listen: [\"192.168.203.120:1/tcp\"], pool: a-api } }";
        refused(
            &[(11, &text), (16, end)],
            &format!("{key}.node_port"),
            &words,
        );
    }
    refused(
        &[(11, &api("publish: NodePort"))],
        &format!("{key}.node_port"),
        "missing",
    );
    let oauth = "oauth: { publish: Router, vip: 192.168.203.111 },";
    let words = "expected LoadBalancer, NodePort or Route";
    refused(&[(12, oauth)], "clusters.a.oauth.publish", words);
    let oauth = "oauth: { publish: Route, vip: 192.168.203.111, node_port: 1 },";
    let words = "has the ports of routes";
    refused(&[(12, oauth)], "clusters.a.oauth.node_port", words);
    refused_at(
        &[(14, ""), (15, "")],
        9,
        "clusters.a.routes",
        "missing; oauth has publish: Route, which needs them",
    );
    refused(
        &[(15, "routes: { http: 1 },")],
        "clusters.a.routes.https",
        "missing",
    );
    refused(
        &[(15, "routes: { https: 0 },")],
        "clusters.a.routes.https",
        "0 is not a port",
    );
    refused_at(
        &[(10, "{ network: a,"), (12, ""), (13, ""), (14, "")],
        9,
        "clusters.a.nodes",
        "missing; the backends of api are the nodes of a group",
    );
    refused(
        &[(10, "{ network: b, nodes: hub,")],
        "clusters.a.network",
        "no network is called",
    );
    refused_at(&[(10, "{ nodes: hub,")], 9, "clusters.a.network", "missing");
    let words = "no node group is called \"hubb\"; did you mean \"hub\"?";
    refused(
        &[(10, "{ network: a, nodes: hubb,")],
        "clusters.a.nodes",
        words,
    );
    let words = "node group workers in line 7 has no network, which a cluster needs";
    refused(
        &[(10, "{ network: a, nodes: workers,")],
        "clusters.a.nodes",
        words,
    );
}

#[test]
fn what_a_part_means_is_blamed_on_it() {
    let api = |vip: &str| format!("api: {{ publish: LoadBalancer, vip: {vip}, node_port: 1 }},");
    let key = "clusters.a.api.vip";
    refused(
        &[(11, &api("10.0.0.1"))],
        key,
        "is a VIP outside its network's prefixes",
    );
    refused(&[(11, &api("x"))], key, "\"x\" is not an IP address");
    refused(
        &[(11, &api("192.168.203.9"))],
        key,
        "is a SNAT address of network a in line 4",
    );
    let taken = "apps: { vip: 192.168.203.111, nodes: workers, https: 30190 } }";
    let words = "192.168.203.111:443/tcp is already used by service a-routes-https in line 12";
    refused(&[(16, taken)], "clusters.a.apps.vip", words);
    let outside = "  hub: { network: mgmt, addresses: [10.33.0.1, 10.32.96.105] }";
    let words = "10.33.0.1 is a backend outside its network's prefixes";
    refused(&[(6, outside)], "nodes.hub.addresses[0]", words);
    // The group has no network: reported at the part of the cluster that puts its nodes there, once.
    let words = "10.1.1.1 is a backend outside its network's prefixes; network a has backends in";
    let group = "  workers: { addresses: [10.1.1.1, 10.1.1.2] }";
    refused_at(&[(7, group)], 16, "clusters.a.apps", words);
    let poor = LINES[2].replace(", snat: [10.32.96.50]", "");
    let found = problems(&file(&[(3, &poor), (13, ""), (12, ""), (14, "")]));
    assert_eq!((found.len(), found[0].1.as_str()), (1, "clusters.a.api"));
    let domain = "base_domain: -a.example.com }";
    let apps = LINES[15]
        .replace('}', "},")
        .replace("}, },", &format!("}}, {domain}"));
    refused(
        &[(16, &apps)],
        "clusters.a.base_domain",
        "is not a DNS name",
    );
}

#[test]
fn base_domains_are_dns_names() {
    let check = |name: &str| {
        let text = format!("    {{ network: a, nodes: hub, base_domain: \"{name}\",");
        parse("f", &file(&[(10, &text)]))
    };
    let long = format!("{}.com", ["a".repeat(63).as_str(); 4].join("."));
    for name in [
        "a.example.com",
        "a",
        "a-1.0b.x",
        &long[7..],
        &"a".repeat(63),
    ] {
        assert!(check(name).is_ok(), "{name}");
    }
    let too_long = "a".repeat(64);
    for name in [
        "", "a..b", "a.", ".a", "A.b", "a_b.c", "a-.b", "10.0.0.1", &too_long, &long,
    ] {
        assert!(check(name).is_err(), "{name}");
    }
}

#[test]
fn names_of_clusters_leave_room_for_the_parts() {
    let named = |name: &str| format!("  {name}:");
    accepted(&[(9, &named(&"a".repeat(48)))]);
    let long = "a".repeat(49);
    let words = "a name of 49 characters, expected at most 48";
    refused(&[(9, &named(&long))], &format!("clusters.{long}"), words);
    refused(&[(9, "  Aa:")], "clusters.Aa", "is not a name");
    let literal =
        "  a: { backends: [], network: mgmt }\npools:\n  a-api: { backends: [], network: mgmt }";
    let literal = literal.split_once('\n').unwrap().1;
    let text = file(&[(5, &format!("{literal}\nnodes:"))]);
    let found = problems(&text);
    assert_eq!((found.len(), found[0].1.as_str()), (1, "clusters.a.api"));
    assert!(
        found[0]
            .2
            .contains("the pool \"a-api\" is already defined in line 6")
    );
}

#[test]
fn who_may_use_a_cluster_holds_for_every_part_or_its_own() {
    let config = accepted(&[
        (
            10,
            "{ network: a, nodes: hub, deny: [192.168.203.1/32], allow: [192.168.203.0/24],",
        ),
        (
            11,
            "api: { publish: NodePort, vip: 192.168.203.110, node_port: 1, allow: any },",
        ),
    ]);
    let rules = |index: usize| {
        let rules = config.services[index].rules.iter();
        rules
            .map(|rule| rule.prefix.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(rules(0), ["0.0.0.0/0", "192.168.203.1/32"]);
    assert_eq!(rules(1), ["192.168.203.0/24", "192.168.203.1/32"]);
    assert_eq!(rules(2), rules(1));
    assert_eq!(rules(6), rules(1));
    let same = "ignition: { publish: Route, vip: 192.168.203.111, allow: [10.0.0.0/8] },";
    let words = "allow or deny is not that of clusters.a.oauth in line 12, which has the same VIP; \
                 expected the same clients";
    refused(&[(14, same)], "clusters.a.ignition", words);
    let bits = "oauth: { publish: Route, vip: 192.168.203.111, allow: [10.0.0.1/8] },";
    refused(&[(12, bits)], "clusters.a.oauth.allow[0]", "host bits");
}
