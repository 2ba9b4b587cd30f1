//! Tenants that share a VIP, by network and by prefix: FEATURES B6, B10. Real TLS clients and servers.

use anyhow::{Result, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{Host, Topology, Trunk},
};
use serde_json::{Value, json};

use crate::proxy::sni::{PORT, SHARED, ask, reaches, tls_servers};

/// By network: each has a service of its own on the same VIP, and the one without a tag has no default.
#[privileged_test]
fn b6_who_asks_for_no_name_is_told_apart_by_his_network() -> Result<()> {
    let trunk = Trunk::build()?;
    let _servers = tls_servers(&trunk, &trunk.nodes)?;
    let service = |network: &str, names: &str, more: &str| {
        format!(
            "  of-{network}: {{ network: {network}, listen: [\"{SHARED}/tcp\"], \
             sni: {{ routes: [{names}]{more} }} }}\n"
        )
    };
    let services = [
        service(
            "t1",
            "{ names: [a.lab], pool: a }",
            ", no_name: { pool: a }",
        ),
        service(
            "t2",
            "{ names: [b.lab], pool: b }",
            ", no_name: { pool: b }",
        ),
        service("x", "{ names: [c.lab], pool: c }", ""),
    ];
    let networks =
        "  t1: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24] }
  t2: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24] }
  x: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
";
    let lb = Lb::start(&trunk, &config(&trunk.nodes, networks, &services.concat()))?;
    let [t1, t2] = [0, 1].map(|tenant| trunk.tenants[tenant].client());
    let x = &trunk.outsider;

    for version in ["-tls1_2", "-tls1_3"] {
        reaches(t1, None, "a.lab", version)?;
        reaches(t2, None, "b.lab", version)?;
        is_nobodys(x, None, version)?;
    }
    // No tenant gets at a name of another (B10).
    reaches(t1, Some("a.lab"), "a.lab", "")?;
    is_nobodys(t2, Some("a.lab"), "")?;
    is_nobodys(t1, Some("b.lab"), "")?;
    reaches(x, Some("c.lab"), "c.lab", "")?;

    let nobodys = json!({ "no_match": 1 });
    expect(&lb, "of-t1", [4, 3], &nobodys, &json!({ "b.lab": 1 }))?;
    expect(&lb, "of-t2", [3, 2], &nobodys, &json!({ "a.lab": 1 }))?;
    expect(&lb, "of-x", [3, 1], &json!({ "no_name": 2 }), &json!({}))
}

/// By prefix: one network with a tenant behind a router, another one on the link, and others.
#[privileged_test]
fn b6_b10_tenants_of_one_network_are_told_apart_by_their_prefixes() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_client()?;
    let _servers = tls_servers(&topology, &topology.nodes)?;
    let [t1, t2, x] = [&far.host, &topology.clients[0], &topology.clients[1]];
    let networks = format!(
        "  uplink: {{ role: uplink, interface: eth0, prefixes: [192.168.203.0/24], \
         routes: [{{ to: {}, via: {} }}] }}\n",
        far.to, far.via
    );
    let (of_t1, of_t2) = (far.to, format!("{}/32", t2.address));
    let with = |more: &str| {
        let service = format!(
            "  shared:
    network: uplink
    listen: [\"{SHARED}/tcp\"]
    sni:
      routes:
        - {{ names: [a.lab], from: [{of_t1}], pool: a }}
        - {{ no_name: true, from: [{of_t1}], pool: a }}
        - {{ names: [b.lab], from: [{of_t2}], pool: b }}
        - {{ no_name: true, from: [{of_t2}], pool: b }}
        - {{ names: [\"*.lab\"], pool: c }}
{more}"
        );
        config(&topology.nodes, &networks, &service)
    };
    let lb = Lb::start(&topology, &with(""))?;

    for version in ["-tls1_2", "-tls1_3"] {
        reaches(t1, None, "a.lab", version)?;
        reaches(t2, None, "b.lab", version)?;
        is_nobodys(x, None, version)?;
    }
    for (client, name, server) in [
        (t1, "a.lab", Some("a.lab")),
        (t1, "b.lab", None),
        (t2, "a.lab", None),
        (t2, "b.lab", Some("b.lab")),
        (x, "a.lab", None),
        (x, "c.lab", Some("c.lab")),
    ] {
        match server {
            Some(server) => reaches(client, Some(name), server, "")?,
            None => is_nobodys(client, Some(name), "")?,
        }
    }
    let refused = json!({ "deny_tenant_name": 3, "no_name": 2 });
    let names = json!({ "a.lab": 2, "b.lab": 1 });
    expect(&lb, "shared", [12, 7], &refused, &names)?;

    // What the service says is for the others alone.
    lb.reload(&with("      no_name: { pool: c }\n"))?;
    for (client, server) in [(t1, "a.lab"), (t2, "b.lab"), (x, "c.lab")] {
        reaches(client, None, server, "")?;
    }
    Ok(())
}

/// The first three nodes as the pools `a`, `b` and `c`, and these networks and services.
fn config(nodes: &[Host], networks: &str, services: &str) -> String {
    let pools = ["a", "b", "c"].iter().zip(nodes);
    let pools = pools.map(|(pool, node)| {
        format!(
            "  {pool}: {{ network: mgmt, backends: [\"{}:{PORT}\"] }}\n",
            node.address
        )
    });
    let pools: String = pools.collect();
    format!(
        "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }}
{networks}pools:
{pools}services:
{services}"
    )
}

/// Asserts that a client is told by the alert 112 that nobody has the name, and sees no certificate.
fn is_nobodys(client: &Host, asked: Option<&str>, words: &str) -> Result<()> {
    let said = ask(client, asked, words)?;
    let is_told = said.contains("unrecognized name") && said.contains("SSL alert number 112");
    ensure!(
        is_told && !said.contains("CN"),
        "{} {asked:?} {words}: {said}",
        client.name
    );
    Ok(())
}

/// Asserts what `lb status` says of the clients of a service: how many there were, how many of them got
/// a backend, and why and with which names the others did not.
fn expect(
    lb: &Lb<'_>,
    service: &str,
    [accepted, routed]: [u64; 2],
    refused: &Value,
    unrouted_names: &Value,
) -> Result<()> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: Value = serde_json::from_str(&status)?;
    let expected = json!({
        "accepted": accepted,
        "routed": routed,
        "handed_over": routed,
        "copied": {},
        "redispatched": 0,
        "ech": 0,
        "refused": refused,
        "unrouted_names": unrouted_names,
    });
    assert_eq!(status["shared"][service], expected, "{service}");
    Ok(())
}
