//! Checks of real servers over the real way: FEATURES E2, E3, E6.

use std::{
    net::SocketAddrV4,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::wire::{Wire, ipv4},
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::{answers::Answers, identity::Identity, peers::Peers},
    topology::{API, API_NODE_PORT, ECHO, SNAT, Topology},
    traffic::conn_pair::refused,
};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{FAST, HEALTH_PORT, SOON, Site, wait_for},
};

/// Where the node speaks TLS.
const TLS_PORT: u16 = 31443;

/// `openssl s_server` at the second node, which insists on a name.
fn tls_server(topology: &Topology, identity: &Identity, words: &[&str]) -> Result<Process> {
    let node = &topology.nodes[1];
    let accept = format!("{}:{TLS_PORT}", node.address);
    let [key, certificate] = [identity.key(), identity.certificate()];
    let [key, certificate] = [key, certificate].map(|path| path.to_str().context("a path"));
    let [key, certificate] = [key?, certificate?];
    let args = [
        "s_server",
        "-quiet",
        "-accept",
        &accept,
        "-key",
        key,
        "-cert",
        certificate,
    ];
    let args = [&args[..], words].concat();
    Process::start(
        &node.netns.path(),
        topology.dir(),
        "s_server",
        "openssl",
        &args,
    )
}

/// E2: a server that answers with an alert cannot serve; with the right name it can; a pinned CA is
/// insisted on.
#[privileged_test]
fn e2_a_tls_alert_is_not_ready_and_the_right_name_is_up() -> Result<()> {
    let topology = Topology::poc()?;
    let nameless = Identity::create(&topology, "default.lab", &[])?;
    let authority = Identity::create(&topology, "ca.lab", &[])?;
    let named = authority.sign(&topology, "api.lab")?;
    let fatal = ["-servername", "api.lab", "-servername_fatal"];
    let key = named.key().to_str().context("a path")?;
    let certificate = named.certificate().to_str().context("a path")?;
    let second = ["-key2", key, "-cert2", certificate];
    let mut server = tls_server(&topology, &nameless, &[&fatal[..], &second].concat())?;
    let site = Site::new(&topology, 2)?;
    let config = |tls: &str| {
        let tls = Keys::from(tls).set("port", TLS_PORT);
        site.config(Keys::from(FAST).set("tls", tls), "")
    };
    let lb = Lb::start(&topology, &config("sni: api.lab"))?;
    wait_for(&lb, &["dead", "up"], SOON)?;
    lb.reload(&config("sni: wrong.lab"))?;
    wait_for(&lb, &["dead", "not_ready"], SOON)?;
    let table = lb.tell(&["backends"])?.done()?;
    ensure!(
        table.contains("alert") || table.contains("unrecognized"),
        "{table}"
    );
    refused(topology.client(), ECHO)?;
    // The name's own certificate, and no other CA, is what is asked for.
    let pinned = |identity: &Identity| {
        let ca = identity.certificate().display().to_string();
        config(&format!("sni: api.lab, ca: {ca}"))
    };
    lb.reload(&pinned(&nameless))?;
    wait_for(&lb, &["dead", "not_ready"], SOON)?;
    lb.reload(&pinned(&authority))?;
    wait_for(&lb, &["dead", "up"], SOON)?;
    server.stop()?;
    wait_for(&lb, &["dead", "dead"], SOON)?;
    Ok(())
}

/// E3, with the defaults: a backend whose `/readyz` says 500 gets nothing new 30 s later at the most, and
/// has its share again 30 s after it says 200.
#[privileged_test]
fn e3_readyz_counts_within_thirty_seconds() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let nodes = topology.nodes.iter();
    let nodes = nodes.map(|node| SocketAddrV4::new(node.address, API_NODE_PORT));
    let check = "health: { https: { path: /readyz, sni: api.lab } }";
    let config = Config::poc()
        .mgmt_pool("kas-a", nodes)
        .pool("kas-a", |pool| pool.with(check))
        .tcp_service_to("api-a", API, "kas-a");
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    peers.nodes()[0].be_ready(false)?;
    let took = wait_for(
        &lb,
        &["not_ready", "up", "up", "up"],
        Duration::from_secs(30),
    )?;
    println!("out after {took:?}");
    peers.nodes()[0].be_ready(true)?;
    let took = wait_for(&lb, &["up"; 4], Duration::from_secs(30))?;
    println!("back after {took:?}");
    Ok(())
}

/// Ports of a thousand checks that have ended rest for a minute, and many pools may ask at one port: they
/// go on all the same.
#[privileged_test]
fn checks_do_not_run_out_of_ports() -> Result<()> {
    const BACKENDS: u16 = 20;
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let endpoint = SocketAddrV4::new(node.address, HEALTH_PORT);
    let answers = Answers::start(&node.netns, endpoint)?;
    // Each has other keys: those that are checked alike would share their checks.
    let config = (1..=BACKENDS).fold(Config::poc(), |config, number| {
        let name = format!("many-{number:02}");
        let health = Keys::from("interval: 100ms").set("tcp.port", HEALTH_PORT);
        config
            .mgmt_pool(&name, [SocketAddrV4::new(node.address, number)])
            .pool(&name, |pool| pool.set("health", health.set("fall", number)))
    });
    let config = config.tcp_service_to("many", ECHO, "many-01");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; BACKENDS as usize], LIMIT)?;
    poll::until("twice as many checks as ports", 2 * LIMIT, || {
        Ok((answers.asked() > 2048).then_some(()))
    })
    .with_context(|| format!("{} checks: {}", answers.asked(), lb.process().stderr()))?;
    let log = lb.process().stderr();
    ensure!(!log.contains("not checked"), "{log}");
    Ok(())
}

/// E6: checks come from the SNAT address, as the flows do: a node that reaches the host, but not that
/// address, is dead.
#[privileged_test]
fn e6_checks_go_the_way_of_the_flows() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let node = &topology.nodes[1];
    let wire = Wire::received(&node.netns, "eth0", "tcp dst port 31936", topology.dir())?;
    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    node.netns
        .run(&format!("ip route add blackhole {SNAT}/32"))?;
    let broken = Instant::now();
    wait_for(&lb, &["up", "dead"], SOON)?;
    println!("dead after {:?}", broken.elapsed());
    let frames = wire.stop()?;
    ensure!(!frames.is_empty(), "no check was seen");
    for frame in &frames {
        let (from, _) = ipv4(frame).context("IPv4")?;
        assert_eq!(from, SNAT);
    }
    Ok(())
}
