//! Tuples that rest in TIME_WAIT at a backend, and are used again.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::Result;
use lb_tests::{
    product::lb::Lb,
    topology::{ECHO, ECHO_NODE_PORT, Topology},
    traffic::short_conns::{Closer, Load, Outcome, Server},
};

use crate::{
    flows::life::{config, ensure_all_ids_are_free},
    lifecycle::alone::add_sources,
};

const WORKERS: usize = 64;

/// Where the backend closes first and there are fewer ports than connections within a minute, a tuple
/// comes back while the backend's end of the last connection rests in TIME_WAIT. No connection fails, and
/// every byte comes back; what it costs is printed beside the same without `lb`.
#[privileged_test]
fn tuples_in_time_wait_are_used_again() -> Result<()> {
    let (count, ports): (u32, u16) = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => (20_000, 4096),
        None => (1500, 1024),
    };
    let topology = Topology::poc()?;
    let config = config().network("mgmt", |mgmt| mgmt.snat_ports(1024, 1024 + ports - 1));
    let lb = Lb::start(&topology, &config)?;
    let node = &topology.nodes[0];
    let server = Server::start(node, ECHO_NODE_PORT, WORKERS)?;
    let sources = add_sources(topology.client(), 120, 16)?;

    // From a neighbour, over as many ports.
    let neighbour = &topology.nodes[1];
    let direct = Load {
        to: SocketAddrV4::new(node.address, ECHO_NODE_PORT),
        sources: &[neighbour.address],
        ports,
        count,
        workers: WORKERS,
        rate: None,
        closer: |_| Closer::Backend,
    };
    let without = direct.run(neighbour)?;
    report("without lb", &without);
    without.ensure_none_failed()?;
    let through = Load {
        to: ECHO,
        sources: &sources,
        ports: 50_000,
        ..direct
    };
    let with = through.run(topology.client())?;
    report("through lb", &with);
    let ratio = |part| with.permille(part).as_secs_f64() / without.permille(part).as_secs_f64();
    println!("ratio: p50 {:.2}, p99 {:.2}", ratio(500), ratio(990));

    with.ensure_none_failed()?;
    assert_eq!(server.failures(), Vec::<String>::new());
    assert_eq!(server.accepted(), 2 * u64::from(count));
    println!("{} ids had not rested", lb.status()?.networks[1].unrested);
    ensure_all_ids_are_free(&topology, &lb)
}

fn report(what: &str, outcome: &Outcome) {
    let [half, most, last] = [500, 990, 1000].map(|part| outcome.permille(part));
    let slow = outcome.times.iter();
    let slow = slow.filter(|time| **time > Duration::from_millis(500));
    println!(
        "{what}: {} connections in {:.1?}, p50 {half:.1?}, p99 {most:.1?}, longest {last:.1?}, {} \
         over 500 ms",
        outcome.times.len(),
        outcome.elapsed,
        slow.count(),
    );
}
