//! Tenants that share a VIP, by network and by prefix: FEATURES B6, B10. Real TLS clients and servers.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};
use lb_tests::{
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{self, Teller},
    topology::{Host, TENANT_NIC, Topology, Trunk},
    traffic::hello::named,
};
use serde_json::{Value, json};

use crate::proxy::{
    bind::hellos,
    guard::teller,
    sni::{SHARED, ask, pools, reaches, tls_servers},
};

/// By network: each has a service of its own on the same VIP, and the one without a tag has no default.
#[privileged_test]
fn b6_who_asks_for_no_name_is_told_apart_by_his_network() -> Result<()> {
    let trunk = Trunk::build()?;
    let _servers = tls_servers(&trunk, &trunk.nodes)?;
    let services = [
        (
            "t1",
            "routes: [{ names: [a.lab], pool: a }], no_name: { pool: a }",
        ),
        (
            "t2",
            "routes: [{ names: [b.lab], pool: b }], no_name: { pool: b }",
        ),
        ("x", "routes: [{ names: [c.lab], pool: c }]"),
    ];
    let prefix = "192.168.203.0/24";
    let networks = Config::new()
        .mgmt()
        .network("t1", |t1| t1.tenant(2003, prefix))
        .network("t2", |t2| t2.tenant(2004, prefix))
        .network("x", |x| x.nic("tenant", TENANT_NIC, prefix));
    let config =
        services
            .into_iter()
            .fold(pools(networks, &trunk.nodes), |config, (network, sni)| {
                config.service(&format!("of-{network}"), |service| {
                    service.on(network).tcp(SHARED).set("sni", Keys::from(sni))
                })
            });
    let lb = Lb::start(&trunk, &config)?;
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
    // XDP knows the names that it has opened connections to.
    expect(&lb, "of-t1", [3, 2, 1], &nobodys, &json!({ "b.lab": 1 }))?;
    expect(&lb, "of-t2", [3, 2, 0], &nobodys, &json!({ "a.lab": 1 }))?;
    expect(&lb, "of-x", [2, 0, 1], &json!({ "no_name": 2 }), &json!({}))
}

/// By prefix: one network with a tenant behind a router, another one on the link, and others.
#[privileged_test]
fn b6_b10_tenants_of_one_network_are_told_apart_by_their_prefixes() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_client()?;
    let _servers = tls_servers(&topology, &topology.nodes)?;
    let [t1, t2, x] = [&far.host, &topology.clients[0], &topology.clients[1]];
    let uplink = |uplink: Keys| uplink.nic("uplink", TENANT_NIC, "192.168.203.0/24");
    let networks = Config::new()
        .mgmt()
        .network("uplink", |network| uplink(network).route(&far));
    let (of_t1, of_t2) = (far.to, format!("{}/32", t2.address));
    let routes = json!([
        { "names": ["a.lab"], "from": [of_t1], "pool": "a" },
        { "no_name": true, "from": [of_t1], "pool": "a" },
        { "names": ["b.lab"], "from": [of_t2], "pool": "b" },
        { "no_name": true, "from": [of_t2], "pool": "b" },
        { "names": ["*.lab"], "pool": "c" },
    ]);
    let config = pools(networks, &topology.nodes).service("shared", |shared| {
        shared.on("uplink").tcp(SHARED).set("sni.routes", routes)
    });
    let lb = Lb::start(&topology, &config)?;

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
    expect(&lb, "shared", [9, 4, 3], &refused, &names)?;

    // What the service says is for the others alone.
    lb.reload(&config.service("shared", |shared| shared.set("sni.no_name.pool", "c")))?;
    for (client, server) in [(t1, "a.lab"), (t2, "b.lab"), (x, "c.lab")] {
        reaches(client, None, server, "")?;
    }
    Ok(())
}

/// How often routes change.
const CHANGES: usize = 20;

/// One name of two tenants on one network, by whose prefixes XDP opens their connections: no tenant reaches the other one's backend
/// while the prefixes change.
#[privileged_test]
fn b10_tenants_stay_apart_while_their_prefixes_change() -> Result<()> {
    let topology = Topology::poc()?;
    let tellers = ["a", "b"].iter().zip(&topology.nodes);
    let _tellers: Vec<Teller> = tellers
        .map(|(name, node)| teller(node, name))
        .collect::<Result<_>>()?;
    let [one, other] = &topology.clients[..] else {
        anyhow::bail!("there are two clients")
    };
    let [of_one, of_other] = [one, other].map(|client| format!("{}/32", client.address));
    let config = |more: &[&str]| {
        let with_more = [&[of_one.as_str()], more].concat();
        let routes = json!([
            { "names": ["same.lab"], "from": with_more, "pool": "a" },
            { "names": ["same.lab"], "from": [of_other], "pool": "b" },
        ]);
        pools(Config::poc(), &topology.nodes).service("shared", |shared| {
            shared.on("tenant-a").tcp(SHARED).set("sni.routes", routes)
        })
    };
    let changes = [&["172.16.0.0/12", "10.9.0.0/16"][..], &["10.9.0.0/17"], &[]];
    let changes: Vec<Config> = changes.iter().map(|more| config(more)).collect();
    let lb = Lb::start(&topology, &config(&[]))?;
    let is_over = AtomicBool::default();
    let hello = named(b"same.lab");
    let come = |client: &Host, name: &str| -> Result<u64> {
        client.netns.inside(|| {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let reached = teller::ask(SHARED, &[&hello], Duration::ZERO)?;
                ensure!(reached.as_deref() == Some(name), "{reached:?} for {name}");
                count += 1;
            }
            Ok(count)
        })?
    };
    let count = thread::scope(|scope| {
        let clients = [(one, "a"), (other, "b")];
        let clients = clients.map(|(client, name)| scope.spawn(move || come(client, name)));
        let mut changes = changes.iter().cycle().take(CHANGES);
        let changed = changes.try_for_each(|config| lb.reload(config).map(drop));
        is_over.store(true, Ordering::Relaxed);
        let mut count = 0;
        for client in clients {
            count += client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        changed.map(|()| count)
    })?;
    let hellos = hellos(&lb)?;
    println!("{count} connections beside {CHANGES} changes: {hellos:?}");
    ensure!(hellos["bound"] * 100 >= count * 99, "{hellos:?} of {count}");
    Ok(())
}

/// Asserts that a client gets the alert 112, that no route has the name, and sees no certificate.
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

/// Asserts what `lb status` says of the clients of a service: how many came to the process, how many of them got
/// a backend, how many got one by XDP alone, and why and with which names the others did not.
fn expect(
    lb: &Lb<'_>,
    service: &str,
    [accepted, routed, bound]: [u64; 3],
    refused: &Value,
    unrouted_names: &Value,
) -> Result<()> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: Value = serde_json::from_str(&status)?;
    let expected = json!({
        "accepted": accepted,
        "routed": routed,
        "bound": bound,
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
