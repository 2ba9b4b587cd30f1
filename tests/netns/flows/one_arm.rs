//! Clients, VIP and backends on one LAN: FEATURES A4.

use std::{collections::BTreeSet, net::Ipv4Addr, path::Path};

use anyhow::Result;
use lb_tests::{
    oracle::capture::Capture,
    product::lb::Lb,
    servers::{
        identity::Identity,
        peers::{Peers, Serves},
    },
    topology::{
        APPS, APPS_HTTP, APPS_HTTP_NODE_PORT, APPS_HTTPS, APPS_HTTPS_NODE_PORT, Host, LAB_CONFIG,
        Site, TENANT_SNAT, Topology, Trunk,
    },
    traffic::programs,
};

/// More than enough connections for both workers to get one: the chance of a miss is 2^-40.
const CONNECTIONS: usize = 40;

const UNTAGGED: &str = r#"
version: 1
networks:
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24], snat: [192.168.203.9] }
pools:
  apps-https-a: { network: tenant-a, backends: ["192.168.203.101:30190", "192.168.203.102:30190"] }
  apps-http-a:  { network: tenant-a, backends: ["192.168.203.101:30282", "192.168.203.102:30282"] }
services:
  apps-https-a: { network: tenant-a, listen: ["192.168.203.112:443/tcp"], pool: apps-https-a }
  apps-http-a:  { network: tenant-a, listen: ["192.168.203.112:80/tcp"], pool: apps-http-a }
"#;

#[privileged_test]
fn a_client_and_a_worker_reach_the_workers_of_their_own_lan() -> Result<()> {
    let topology = Topology::poc()?;
    let identity = Identity::create(&topology, "tenant-a", &[APPS])?;
    let workers = topology.workers.iter().map(|worker| {
        let serves = Serves {
            name: worker.name.to_owned(),
            https: Some(APPS_HTTPS_NODE_PORT),
            http: Some(APPS_HTTP_NODE_PORT),
            ..Serves::default()
        };
        (worker, serves)
    });
    let peers = Peers::start_on(&topology, identity, workers)?;
    let lb = Lb::start(&topology, UNTAGGED)?;

    prove(
        &topology,
        &peers,
        topology.client(),
        &topology.workers,
        &["w1", "w2"],
    )?;

    let verdicts = lb.status()?.verdicts.nic;
    assert!(
        verdicts.transmitted > 0,
        "out of the NIC it came from: {verdicts:?}"
    );
    assert_eq!(verdicts.forwarded, 0, "{verdicts:?}");
    Ok(())
}

#[privileged_test]
fn tenants_of_a_trunk_reach_the_workers_of_their_own_vlan() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let [of_a, of_b] = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    let _lb = Lb::start(&trunk, LAB_CONFIG)?;

    let names = ["tenant-a/a-w1", "tenant-a/a-w2"];
    prove(&trunk, &of_a, a.client(), &a.workers, &names)?;
    let names = ["tenant-b/b-w1", "tenant-b/b-w2"];
    prove(&trunk, &of_b, b.client(), &b.workers, &names)
}

/// A client and the first worker reach both workers, the client's peer is the VIP alone, and the
/// workers see the SNAT address alone.
fn prove(
    site: &Site,
    peers: &Peers<'_>,
    client: &Host,
    workers: &[Host],
    names: &[&str],
) -> Result<()> {
    let at_client = Capture::start(&client.netns, "eth0", "ip", site.dir())?;
    let at_workers: Vec<Capture> = workers
        .iter()
        .map(|worker| {
            let ports = format!("port {APPS_HTTPS_NODE_PORT} or port {APPS_HTTP_NODE_PORT}");
            Capture::start(
                &worker.netns,
                "eth0",
                &format!("tcp and ({ports})"),
                site.dir(),
            )
        })
        .collect::<Result<_>>()?;

    for from in [client, &workers[0]] {
        let answered = answers(from, peers.certificate())?;
        let all = names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(answered, all, "asked by {}", from.name);
    }

    for frame in at_client.stop()? {
        let ends = BTreeSet::from([frame.source, frame.destination]);
        assert_eq!(ends, BTreeSet::from([client.address, APPS]), "{frame:?}");
    }
    for (worker, capture) in workers.iter().zip(at_workers) {
        let frames = capture.stop()?;
        assert!(!frames.is_empty(), "{} got nothing", worker.name);
        for frame in frames {
            let ends = BTreeSet::from([frame.source, frame.destination]);
            assert_eq!(
                ends,
                BTreeSet::from([worker.address, TENANT_SNAT]),
                "{frame:?}"
            );
        }
    }
    for worker in workers {
        let sources: BTreeSet<Ipv4Addr> = peers.on(worker)?.http_sources()?;
        assert_eq!(sources, BTreeSet::from([TENANT_SNAT]), "{}", worker.name);
    }
    Ok(())
}

/// The servers that answer a host at the VIP.
fn answers(from: &Host, certificate: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for _ in 0..CONNECTIONS / 2 {
        names.insert(programs::curl(from, certificate, APPS_HTTPS)?.node);
        names.insert(programs::curl_plain(from, APPS_HTTP)?.node);
    }
    Ok(names)
}
