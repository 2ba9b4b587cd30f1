//! The kernel's table of neighbours is one for all namespaces: what others fill it with.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    fault::crowd::Crowd,
    frames::raw::RawPort,
    process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::{
        ECHO, ECHO_NODE_PORT, ECHO6, Host, MGMT_NIC, SNAT, SNAT6, TENANT_NIC, Topology, VIP,
        address6,
    },
    traffic::{client, flood::Flood},
};
use lb_user::network::cell::link_local;

use crate::{
    flows::life::LIMIT,
    health::verdicts::{FAST, wait_for},
    proxy::sni::{self, SHARED},
};

/// The addresses of a node.
fn addresses(node: &Host) -> [SocketAddr; 2] {
    let addresses: [IpAddr; 2] = [node.address.into(), address6(node).into()];
    addresses.map(|address| SocketAddr::new(address, ECHO_NODE_PORT))
}

/// So many nodes, by both families.
fn config(topology: &Topology, nodes: usize) -> Config {
    let of = |family: usize| {
        let nodes = topology.nodes.iter().take(nodes);
        nodes.map(move |node| addresses(node)[family])
    };
    Config::poc_dual()
        .mgmt_pool("four", of(0))
        .mgmt_pool("six", of(1))
        .tcp_service("four", ECHO)
        .tcp_service("six", ECHO6)
        .set("defaults.pool.health", Keys::from(FAST).with("tcp: {}"))
}

/// The ends know `lb` already: their entries are in the same table here, as on no real network.
fn introduce(topology: &Topology) -> Result<()> {
    let know = |host: &Host, addresses: &[String], nic: &str| -> Result<()> {
        let mac = topology.mac(nic)?;
        let line = |address: &String| {
            format!("neigh replace {address} lladdr {mac} dev eth0 nud permanent\n")
        };
        host.netns
            .ip_batch(&addresses.iter().map(line).collect::<String>())
    };
    let link_local = link_local(topology.mac(MGMT_NIC)?).to_string();
    for node in &topology.nodes {
        let addresses = [SNAT.to_string(), SNAT6.to_string(), link_local.clone()];
        know(node, &addresses, MGMT_NIC)?;
    }
    know(topology.client(), &[VIP.to_string()], TENANT_NIC)
}

/// A start, checks and new backends need no room in it.
#[privileged_test]
fn a_full_table_keeps_no_backend_from_being_found() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    introduce(&topology)?;
    let mut servers = Vec::new();
    for node in topology.nodes.iter().take(3) {
        for address in addresses(node) {
            servers.push(EchoServer::start(&node.netns, address, node.name)?);
        }
    }
    let crowd = Crowd::new(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, 2))?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    lb.reload(&config(&topology, 3))?;
    wait_for(&lb, &["up"; 6], LIMIT)?;
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;
    crowd.ensure_full()?;
    ensure!(
        lb.backends()?
            .iter()
            .all(|backend| backend.next_hop.is_some())
    );
    Ok(())
}

/// Addresses on the link that do not exist: twice as many as there is room for by default.
const ABSENT: u32 = 2000;
/// When none is asked for any more: a second after each SYN-ACK, and these come after 0, 1 and 3 seconds.
const QUIET: [Duration; 3] = [
    Duration::from_millis(2600),
    Duration::from_secs(5),
    Duration::from_secs(8),
];

/// A tenant has the kernel of a cell answer clients that are not there. It soon gives up, and others have the room.
#[privileged_test]
fn clients_of_a_shared_vip_that_are_not_there_take_no_room_for_long() -> Result<()> {
    let topology = Topology::poc()?;
    let config = sni::config(
        &topology,
        "syn_cookies: never, routes: [{ names: [a.lab], pool: a }]",
    );
    let config = config.network("tenant-a", |tenant| {
        tenant.set("prefixes", ["192.168.0.0/16"])
    });
    let _lb = Lb::start(&topology, &config)?;
    let sources = (0..ABSENT).map(|number| Ipv4Addr::from_bits(0xc0a8_1000 + number));
    let macs = [Mac::new([2, 0, 0, 0, 0x57, 9]), topology.mac(TENANT_NIC)?];
    let mut flood = Flood::new(macs, sources.collect(), SHARED);
    let port = RawPort::open(&topology.client().netns, "eth0")?;
    let sent = Instant::now();
    flood.send(&port, ABSENT.into())?;

    let cell = format!("lb.{}.tenant-a", topology.run());
    let unresolved = || -> Result<usize> {
        let entries = process::succeed(Command::new("ip").args(["-n", &cell, "neigh", "show"]))?;
        let lines = entries.lines();
        Ok(lines.filter(|line| line.contains("INCOMPLETE")).count())
    };
    let first = unresolved()?;
    ensure!(first > 0, "none is asked for");
    println!("{first} are asked for");
    for quiet in QUIET {
        thread::sleep(quiet.saturating_sub(sent.elapsed()));
        let left = unresolved()?;
        ensure!(left == 0, "{left} are asked for after {quiet:?}");
        // In another namespace.
        let entry = "ip neigh replace 10.32.100.1 lladdr 02:00:00:00:00:01 dev eth0 nud stale";
        topology.nodes[0].netns.run(entry)?;
    }
    let (client, address) = (&topology.client().netns, topology.client().address);
    client.inside(|| client::open(Some(address), SHARED))??;
    Ok(())
}
