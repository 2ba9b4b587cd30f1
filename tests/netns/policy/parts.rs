//! The parts of a control plane are at their ports, and those for worker nodes are for these alone: FEATURES C5.

use std::{
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    time::Duration,
};

use anyhow::Result;
use lb_tests::{
    product::{config::Config, lb::Lb},
    servers::echo::EchoServer,
    topology::{Host, Topology},
    traffic::client,
};
use serde_json::json;

const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 130);
/// The key of each part with its port at the VIP, and the NodePort behind it.
const FOR_ALL: [(&str, u16, u16); 3] = [
    ("api", 6443, 30_001),
    ("oauth", 443, 30_002),
    ("dns", 53, 30_003),
];
const FOR_WORKERS: [(&str, u16, u16); 4] = [
    ("konnectivity", 8091, 30_004),
    ("ignition_proxy", 8443, 30_005),
    ("ignition_server", 9090, 30_006),
    ("machine_config", 22_623, 30_007),
];
/// Where the workers are, and the clients are not.
const WORKERS: &str = "192.168.203.96/28";
/// How long a client waits for what does not come.
const SILENCE: Duration = Duration::from_millis(500);

fn answers(host: &Host, port: u16) -> Result<String> {
    let to = SocketAddrV4::new(VIP, port);
    Ok(host.netns.inside(|| client::who(None, to))??.node)
}

/// C5: 22623 from a client is dropped, and from a worker node it is served; so are the other ports for workers. The API,
/// OAuth and DNS are for all clients.
#[privileged_test]
fn c5_each_part_is_at_its_port_for_its_clients() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let all: Vec<_> = FOR_ALL.into_iter().chain(FOR_WORKERS).collect();
    let mut config = Config::poc()
        .set("nodes.hub.network", "mgmt")
        .set("nodes.hub.addresses", [node.address])
        .set("clusters.c.network", "tenant-a")
        .set("clusters.c.nodes", "hub")
        .set("clusters.c.workers", [WORKERS]);
    let mut servers = Vec::new();
    for (part, _, node_port) in &all {
        let at = SocketAddrV4::new(node.address, *node_port);
        servers.push(EchoServer::start(&node.netns, at, part)?);
        let value = json!({ "publish": "LoadBalancer", "vip": VIP, "node_port": node_port });
        config = config.set(&format!("clusters.c.{part}"), value);
    }
    let lb = Lb::start(&topology, &config)?;
    let [worker, client] = [&topology.workers[0], &topology.clients[0]];
    for (part, port, _) in &all {
        assert_eq!(answers(worker, *port)?, *part);
    }
    for (part, port, _) in FOR_ALL {
        assert_eq!(answers(client, port)?, part);
    }
    let before: Vec<u64> = connections(&servers);
    let denied = lb.dropped("denied")?;
    for (part, port, _) in FOR_WORKERS {
        let to = SocketAddrV4::new(VIP, port);
        let refused = client
            .netns
            .inside(|| TcpStream::connect_timeout(&to.into(), SILENCE))?;
        assert!(refused.is_err(), "{part}: {refused:?}");
    }
    assert_eq!(lb.dropped("denied")? - denied, FOR_WORKERS.len() as u64);
    assert_eq!(connections(&servers), before);
    Ok(())
}

fn connections(servers: &[EchoServer<'_>]) -> Vec<u64> {
    let seen = servers.iter().map(|server| server.seen().values().sum());
    seen.collect()
}
