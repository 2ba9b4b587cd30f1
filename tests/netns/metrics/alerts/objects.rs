//! Faults of backends, next hops, interfaces and the configuration.

use std::{
    net::SocketAddrV4,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lb_tests::{
    product::{config::Config, lb::Lb},
    servers::answers::Answers,
    topology::{ECHO_NODE_PORT, Host, Topology, VIP},
    traffic::client,
};

use super::{
    board,
    prometheus::{Prometheus, SCRAPE},
};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{FAST, HEALTH_PORT, Site, at_endpoints, wait_for},
    metrics::page::LISTEN,
};

/// The alerts whose faults are made here.
pub(super) const MADE: &[&str] = &[
    "LbConfigStale",
    "LbConnectsFail",
    "LbKubernetesStale",
    "LbNextHopSilent",
    "LbNoCarrier",
    "LbPoolDegraded",
    "LbPoolServiceDown",
    "LbPoolWithoutBackend",
];

/// Metrics of the board's row of backends that have nothing to show: no backend answers a client, and none is silent.
const EMPTY: [&str; 2] = [
    "lb_backend_connects_total",
    "lb_backend_unanswered_syns_total",
];

const DEGRADED: &str = "LbPoolDegraded network=mgmt pool=echo-a";
const WITHOUT_BACKEND: &str = "LbPoolWithoutBackend network=mgmt pool=alone";
const SERVICE_DOWN: &str = "LbPoolServiceDown network=mgmt pool=servers";
const CONNECTS_FAIL: &str = "LbConnectsFail network=tenant-a service=wrong";
const KUBERNETES_STALE: &str = "LbKubernetesStale cluster=hub";
const NEXT_HOP_SILENT: &str = "LbNextHopSilent network=mgmt";
const NO_CARRIER: &str = "LbNoCarrier network=tenant-a";

/// Where the first node says how the pool `alone` is.
const ALONE_HEALTH_PORT: u16 = HEALTH_PORT + 1;
/// A service with a NodePort that no server listens on.
const WRONG: SocketAddrV4 = SocketAddrV4::new(VIP, 7002);
const NO_SERVER: u16 = 9;
/// Between two connects to it.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);

/// Beside the two nodes of `site`: a pool of the first one, with an endpoint of its own; one of the other two nodes; and
/// one with a wrong port, that nothing checks.
fn config(site: &Site<'_>) -> Config {
    let at = |node: usize, port| SocketAddrV4::new(site.topology.nodes[node].address, port);
    let alone = at_endpoints(FAST).set("http.port", ALONE_HEALTH_PORT);
    site.http("")
        .mgmt_pool("alone", [at(0, ECHO_NODE_PORT)])
        .pool("alone", |pool| pool.set("health", alone))
        .mgmt_pool("servers", [2, 3].map(|node| at(node, ECHO_NODE_PORT)))
        .pool("servers", |pool| pool.set("health", at_endpoints(FAST)))
        .mgmt_pool("wrong", [at(0, NO_SERVER)])
        .tcp_service("alone", SocketAddrV4::new(VIP, 7001))
        .tcp_service("wrong", WRONG)
        .tcp_service("servers", SocketAddrV4::new(VIP, 7003))
        .set("admin.http.listen", LISTEN)
}

/// A kubeconfig of an API that is not there.
fn unanswered(topology: &Topology) -> Result<PathBuf> {
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: k\nclusters: [{ name: k, cluster: { server: \"https://127.0.0.1:1\" } }]\n\
                  users: [{ name: k, user: { token: k } }]\ncontexts: [{ name: k, context: { cluster: k, user: k } }]\n";
    topology.write("kubeconfig", config)
}

/// Connects until `stop`: each is refused by the backend.
fn connect(topology: &Topology, stop: &AtomicBool) -> Result<()> {
    topology.client().netns.inside(|| {
        while !stop.load(Ordering::Relaxed) {
            ensure!(client::open(None, WRONG).is_err(), "a server answers");
            thread::sleep(CONNECT_INTERVAL);
        }
        Ok(())
    })?
}

#[privileged_test]
fn backends_next_hops_carriers_and_a_stale_file_raise_their_alerts() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let [first, _, third, fourth] = &topology.nodes[..] else {
        bail!("four nodes wanted");
    };
    let endpoint =
        |node: &Host, port| Answers::start(&node.netns, SocketAddrV4::new(node.address, port));
    let alone = endpoint(first, ALONE_HEALTH_PORT)?;
    let servers = [
        endpoint(third, HEALTH_PORT)?,
        endpoint(fourth, HEALTH_PORT)?,
    ];
    let config = config(&site);
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 6], LIMIT)?;
    let mut prometheus = Prometheus::start(&topology, SCRAPE, &[])?;

    site.health[1].refuse();
    alone.refuse();
    servers.iter().for_each(Answers::refuse);
    let unanswered = unanswered(&topology)?;
    lb.reload(&config.clone().set("kubernetes.hub.kubeconfig", unanswered))?;
    lb.write("version: 1\nnetwork: {}\n")?;
    ensure!(lb.tell(&["reload"])?.code != Some(0), "the file is right");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let connects = scope.spawn(|| connect(&topology, &stop));
        let fire = prometheus.wait_for(&[
            DEGRADED,
            WITHOUT_BACKEND,
            SERVICE_DOWN,
            CONNECTS_FAIL,
            KUBERNETES_STALE,
            "LbConfigStale",
        ]);
        let fire = fire.and_then(|()| board::ensure_filled(&prometheus, &["Backends"], &EMPTY));
        stop.store(true, Ordering::Relaxed);
        let connects = connects.join().ok().context("the client panicked")?;
        fire.and(connects)
    })?;

    // What the operator has taken out is not missed, and neither is what a silent next hop takes out.
    lb.reload(&config)?;
    lb.tell(&["backend", "disable", "echo-a/n2"])?.done()?;
    alone.answer(200);
    servers.iter().for_each(|endpoint| endpoint.answer(200));
    fourth.netns.run("ip link set eth0 down")?;
    topology.tenant_lan.run("ip link set p-lb down")?;
    prometheus.wait_for(&[NEXT_HOP_SILENT, NO_CARRIER])?;
    fourth.netns.run("ip link set eth0 up")?;
    topology.tenant_lan.run("ip link set p-lb up")?;
    prometheus.wait_for_rest(&[])?;
    prometheus.ensure_made(MADE)?;
    lb.down()
}
