//! The data plane alone: what it opens and closes needs no control plane.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Result, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{ECHO, ECHO_NODE_PORT, Host, Topology},
    traffic::short_conns::{Closer, Load, Server},
};

use crate::flows::life::{config, ensure_all_ids_are_free};

/// How many connections, over which SNAT ports, and how many in a second.
struct Extent {
    connections: u32,
    ports: Option<u16>,
    rate: Option<u32>,
}

/// Three times the ports that there are.
const SHORT: Extent = Extent {
    connections: 3000,
    ports: Some(2047),
    rate: None,
};
/// Five times the ports of an address, in five minutes.
const LONG: Extent = Extent {
    connections: 300_000,
    ports: None,
    rate: Some(1000),
};
const WORKERS: usize = 24;
const SOURCES: u8 = 100;

/// A control plane that was killed is missed by no connection: far more connections than there are ports
/// are opened, used and closed, by either end, and not one is refused. The next process finds
/// every id where it belongs.
#[privileged_test]
fn connections_come_and_go_while_the_control_plane_is_dead() -> Result<()> {
    let extent = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => LONG,
        None => SHORT,
    };
    let topology = Topology::poc()?;
    let config = config().network("mgmt", |mgmt| match extent.ports {
        Some(last) => mgmt.snat_ports(1024, last),
        None => mgmt,
    });
    let mut lb = Lb::start(&topology, &config)?;
    let server = Server::start(&topology.nodes[0], ECHO_NODE_PORT, WORKERS)?;
    let sources = add_sources(topology.client(), 120, SOURCES)?;
    lb.kill()?;

    let load = Load {
        to: ECHO,
        sources: &sources,
        ports: 50_000,
        count: extent.connections,
        workers: WORKERS,
        rate: extent.rate,
        closer: |number| match number % 8 {
            0 => Closer::Backend,
            _ => Closer::Client,
        },
    };
    let outcome = load.run(topology.client())?;

    println!(
        "{} connections without a control plane in {:.1?}: p50 {:.1?}, p99 {:.1?}, longest {:.1?}",
        extent.connections,
        outcome.elapsed,
        outcome.permille(500),
        outcome.permille(990),
        outcome.permille(1000),
    );
    outcome.ensure_none_failed()?;
    assert_eq!(server.failures(), Vec::<String>::new());
    assert_eq!(server.accepted(), u64::from(extent.connections));
    if let Some(rate) = extent.rate {
        let least = Duration::from_secs(u64::from((extent.connections - 1) / rate));
        ensure!(outcome.elapsed >= least, "{:?}", outcome.elapsed);
    }
    lb.restart(&config)?;
    ensure_all_ids_are_free(&topology, &lb)
}

/// Gives a client so many addresses more, the first of which ends in `first`.
pub(crate) fn add_sources(client: &Host, first: u8, count: u8) -> Result<Vec<Ipv4Addr>> {
    let [a, b, c, _] = client.address.octets();
    let hosts = first..first + count;
    let sources: Vec<Ipv4Addr> = hosts.map(|host| Ipv4Addr::new(a, b, c, host)).collect();
    let lines: String = sources
        .iter()
        .map(|source| format!("addr add {source}/24 dev eth0\n"))
        .collect();
    client.netns.ip_batch(&lines)?;
    Ok(sources)
}
