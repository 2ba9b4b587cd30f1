//! Groups of nodes and defaults, in files with a cluster.

use super::{
    Role,
    clusters::{accepted, file, refused, refused_at, services},
    parse, problems,
};

#[test]
fn a_group_of_nodes_is_a_part_of_pools() {
    let pool = |backends: &str| {
        let text = format!("pools:\n  p: {{ network: mgmt, backends: {backends} }}\nnodes:");
        file(&[(5, &text)])
    };
    let names = |text: &str| {
        let config = parse("f", text).unwrap_or_else(|problems| panic!("{problems}"));
        let backends = config.pools[0].backends.iter();
        let names = backends.map(|backend| format!("{} {}", backend.name, backend.weight));
        names.collect::<Vec<_>>()
    };
    let alone = names(&pool("{ nodes: hub, port: 80, weight: 3 }"));
    assert_eq!(alone, ["10.32.96.105 3", "hub-2 3"]);
    // A second port of a node needs another name, and the first one keeps its own.
    let list = "[{ nodes: hub, port: 80 }, \"10.32.96.107:80\", { nodes: hub, port: 81 }]";
    assert_eq!(
        names(&pool(list)),
        [
            "10.32.96.105 1",
            "hub-2 1",
            "10.32.96.107:80 1",
            "10.32.96.105:81 1",
            "hub-2:81 1"
        ]
    );
    let named = "[{ nodes: hub, port: 80 }, { address: \"10.32.96.107:80\", name: hub-2 }]";
    assert_eq!(names(&pool(named))[1], "hub-2:80 1");

    let one = |text: &str, key: &str, piece: &str| {
        let found = problems(text);
        assert_eq!((found.len(), found[0].1.as_str()), (1, key), "{found:#?}");
        assert!(found[0].2.contains(piece), "{found:?}");
    };
    let key = "pools.p.backends";
    one(
        &pool("{ nodes: hub, port: 0 }"),
        &format!("{key}.port"),
        "0 is not a port",
    );
    one(&pool("{ nodes: hub }"), &format!("{key}.port"), "missing");
    one(
        &pool("[{ nodes: x, port: 1 }]"),
        &format!("{key}[0].nodes"),
        "no node group is called",
    );
    one(
        &pool("{ nodes: hub, port: 1, weight: 0 }"),
        &format!("{key}.weight"),
        "expected 1 to 256",
    );
    let elsewhere =
        pool("{ nodes: hub, port: 1 }").replace("p: { network: mgmt", "p: { network: a");
    let words = "node group hub is on network mgmt, but this pool is on network \"a\"";
    one(&elsewhere, &format!("{key}.nodes"), words);
    let twice = pool("[\"10.32.96.105:80\", { nodes: hub, port: 80 }]");
    one(
        &twice,
        "nodes.hub.addresses[0]",
        "10.32.96.105:80 is already listed in line 6",
    );
}

#[test]
fn nodes_are_listed_once() {
    let hub = |rest: &str| format!("  hub: {{ network: mgmt, addresses: [10.32.96.105, {rest}] }}");
    let key = "nodes.hub.addresses[1]";
    let words = "\"10.32.96.105\" is already listed in line 6";
    refused(&[(6, &hub("10.32.96.105"))], key, words);
    let twice = hub("{ name: n, address: 10.32.96.106 }, { name: n, address: 10.32.96.107 }");
    let words = "\"n\" is already listed in line 6";
    refused(&[(6, &twice)], "nodes.hub.addresses[2].name", words);
    let bad = hub("{ name: N, address: 10.32.96.106 }");
    refused(&[(6, &bad)], &format!("{key}.name"), "is not a name");
    accepted(&[(
        6,
        &hub("{ name: node-1.example.com, address: 10.32.96.106 }"),
    )]);
    refused(&[(6, &hub("10.32.96.256"))], key, "is not an IP address");
    let words = "found an empty list";
    refused(
        &[(6, "  hub: { network: mgmt, addresses: [] }")],
        "nodes.hub.addresses",
        words,
    );
    let unknown = "  hub: { network: mgnt, addresses: [10.32.96.105] }";
    refused(
        &[(6, unknown)],
        "nodes.hub.network",
        "did you mean \"mgmt\"?",
    );
}

#[test]
fn defaults_stand_in_for_what_is_not_written() {
    let all = "version: 1\n\
        defaults:\n\
        \x20 network: { role: tenant, interface: eth0, sources: any }\n\
        \x20 pool: { network: m, balance: maglev }\n\
        \x20 service: { network: a, pool: p, allow: [10.0.0.0/8] }\n\
        \x20 cluster: { network: a, nodes: hub, routes: { https: 1 }, api: { publish: NodePort }, oauth: { publish: Route }, deny: [10.0.0.1/32] }\n\
        networks:\n\
        \x20 m: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }\n\
        \x20 a: { vlan: 1, prefixes: [10.0.0.0/24] }\n\
        \x20 b: { vlan: 2, prefixes: [10.0.0.0/24], sources: [10.0.0.0/24] }\n\
        nodes: { hub: { network: m, addresses: [10.32.96.105] } }\n\
        pools: { p: { backends: [\"10.32.96.105:80\"] } }\n\
        services: { s: { listen: [\"10.0.0.9:80/tcp\"] } }\n\
        clusters:\n\
        \x20 c: { api: { vip: 10.0.0.7, node_port: 6 }, oauth: { vip: 10.0.0.8 } }\n\
        \x20 d: { network: b, api: { publish: LoadBalancer, vip: 10.0.0.7, node_port: 6 }, allow: any }\n";
    let config = parse("f", all).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(config.networks[1].role, Role::Tenant);
    assert_eq!(config.networks[1].sources[0].prefix_len(), 0);
    assert_eq!(config.networks[2].sources[0].prefix_len(), 24);
    assert_eq!(config.pools[0].network, "m");
    assert_eq!(config.services[0].rules.len(), 1);
    assert_eq!(
        services(&config),
        [
            "s 10.0.0.9:80/tcp > m 10.32.96.105:80:80",
            "c-api 10.0.0.7:6/tcp > m 10.32.96.105:6",
            "c-routes-https 10.0.0.8:443/tcp > m 10.32.96.105:1",
            "d-api 10.0.0.7:6443/tcp > m 10.32.96.105:6",
        ]
    );
    assert_eq!(config.services[1].rules.len(), 2);

    // A wrong default is one problem, however many use it, and none that it is missing.
    let one = |from: &str, to: &str, key: &str| {
        let found = problems(&all.replace(from, to));
        assert_eq!((found.len(), found[0].1.as_str()), (1, key), "{found:#?}");
    };
    one("role: tenant", "role: guest", "defaults.network.role");
    one("role: tenant", "rloe: tenant", "defaults.network.rloe");
    one(
        "interface: eth0",
        "interface: []",
        "defaults.network.interface",
    );
    one(
        "{ publish: NodePort }",
        "{ publish: Nodeport }",
        "defaults.cluster.api.publish",
    );
    one(
        "{ publish: Route }",
        "{ publish: {} }",
        "defaults.cluster.oauth.publish",
    );
    one(
        "{ https: 1 }",
        "{ https: 0 }",
        "defaults.cluster.routes.https",
    );
    one("nodes: hub,", "nodes: hubb,", "defaults.cluster.nodes");
    one("[10.0.0.1/32]", "[10.0.0.1/31]", "defaults.cluster.deny[0]");
    one(
        "sources: any",
        "prefixes: [10.0.0.0/8]",
        "defaults.network.prefixes",
    );
    one(
        "network: m, balance: maglev",
        "network: mm",
        "defaults.pool.network",
    );
    // So is one that no entry uses.
    let unused = all.replace("services: { s: { listen: [\"10.0.0.9:80/tcp\"] } }\n", "");
    let unused = unused.replace("service: { ", "service: { max_flows: 0, ");
    let found = problems(&unused);
    let key = "defaults.service.max_flows";
    assert_eq!((found.len(), found[0].1.as_str()), (1, key), "{found:#?}");
    // What belongs to one entry is no default.
    for (kind, key, value) in [
        ("network", "prefixes", "[10.0.0.0/8]"),
        ("pool", "backends", "[]"),
        ("service", "listen", "[\"10.0.0.9:1/udp\"]"),
        ("cluster", "base_domain", "a.example.com"),
    ] {
        let text = format!("{kind}: {{ {key}: {value}, ");
        one(
            &format!("{kind}: {{ "),
            &text,
            &format!("defaults.{kind}.{key}"),
        );
    }
    for part in ["api", "apps"] {
        let to = format!("cluster: {{ {part}: {{ vip: 10.0.0.7 }}, ");
        let found = problems(
            &all.replace("api: { publish: NodePort }, ", "")
                .replace("cluster: { ", &to),
        );
        assert_eq!(found[0].1, format!("defaults.cluster.{part}.vip"));
    }
    // What only the entry is to blame for is reported there.
    one(
        "a: { vlan: 1, prefixes",
        "a: { vlan: 2, prefixes",
        "networks.b.vlan",
    );
    one(
        "vlan: 1, prefixes: [10.0.0.0/24] }\n  b: { vlan: 2, ",
        "prefixes: [10.0.0.0/24] }\n  b: { ",
        "networks.b",
    );
    let found = problems(&all.replace("snat: [10.32.96.50]", "snat: []"));
    assert_eq!((found[0].0, found[0].1.as_str()), (12, "pools.p"));
}

#[test]
fn nobody_is_blamed_for_a_cluster_that_could_not_be_written_out() {
    let service =
        "services: { s: { network: a, listen: [\"192.168.203.120:1/udp\"], pool: a-api } }";
    accepted(&[(8, &format!("{service}\nclusters:"))]);
    refused_at(
        &[
            (11, "api: { publish: NodePort, vip: 192.168.203.110 },"),
            (16, &format!("}}\n{service}")),
        ],
        11,
        "clusters.a.api.node_port",
        "missing",
    );
}
