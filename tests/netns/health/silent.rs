//! Nodes that vanish: backends behind a next hop that does not answer, without any check. RELIABILITY 4.

use std::{
    net::SocketAddrV4,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    oracle::{links, raw_map::RawMap},
    poll,
    product::{config::Config, lb::Lb},
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, Host, Topology},
    traffic::client,
};
use lb_user::dataplane::pins::Pins;

use crate::{
    flows::life::LIMIT,
    health::{
        sweep::backends,
        verdicts::{alive, connect},
    },
};

/// From the loss of a node until no table has it.
const MAX_LOSS: Duration = Duration::from_secs(4);
/// From the loss of a node until new connections do not meet it.
const SETTLED: Duration = Duration::from_secs(3);
/// From the return of a node until it has its share again.
const MAX_RETURN: Duration = Duration::from_secs(5);
/// What a connection takes that meets no lost node: a repeated SYN comes after a second.
const MAX_CONNECT: Duration = Duration::from_millis(200);

/// States of backends that nothing checks.
const UNCHECKED: &str = "unchecked";
const UNREACHABLE: &str = "unchecked, unreachable";

/// Nodes that nothing checks, and all that a test looks at.
struct Site<'t> {
    topology: &'t Topology,
    lb: Lb<'t>,
    /// The tables of pools, in the kernel.
    tables: RawMap,
    _echo: Vec<EchoServer<'t>>,
}

impl<'t> Site<'t> {
    fn start(topology: &'t Topology) -> Result<Self> {
        let at = |node: &Host| SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        let nodes = topology.nodes.iter();
        let echo = nodes.map(|node| EchoServer::start(&node.netns, at(node), node.name));
        let echo = echo.collect::<Result<_>>()?;
        let config = Config::poc()
            .mgmt_pool("echo-a", topology.nodes.iter().map(at))
            .tcp_service("echo-a", ECHO);
        let lb = Lb::start(topology, &config)?;
        let maps = links::pins(topology.run()).join(Pins::version());
        let site = Self {
            topology,
            lb,
            tables: RawMap::open(&maps.join("MAGLEV"))?,
            _echo: echo,
        };
        site.wait_for(topology.nodes.len(), LIMIT)?;
        Ok(site)
    }

    fn set(&self, node: &Host, state: &str) -> Result<()> {
        let line = format!("ip link set eth0 {state}");
        node.netns.run(&line).map(drop)
    }

    /// Waits until so many backends are in the tables; how long that took.
    fn wait_for(&self, count: usize, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        poll::until("as many backends in the tables", limit, || {
            Ok((backends(&self.tables)?.len() == count).then_some(()))
        })?;
        Ok(start.elapsed())
    }

    /// The state of each backend, in the order of the file.
    fn states(&self) -> Result<Vec<String>> {
        let backends = self.lb.backends()?.into_iter();
        Ok(backends.map(|backend| backend.state).collect())
    }

    /// What became of next hops, by `lb events`.
    fn events(&self) -> Result<Vec<String>> {
        let events = self.lb.events()?.into_iter();
        let events = events.filter(|event| event.kind == "neighbour");
        Ok(events
            .map(|event| format!("{}: {}", event.object, event.words))
            .collect())
    }
}

/// The share of a lost node goes and comes back by itself; its connections wait for it.
#[privileged_test]
fn a_node_that_vanishes_loses_its_share_until_it_is_back() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::start(&topology)?;
    let connections = connect(&topology, 24)?;
    assert_eq!(site.events()?, [""; 0], "all answer from the start");
    let lost = &topology.nodes[1];

    site.set(lost, "down")?;
    let start = Instant::now();
    let took = site.wait_for(3, MAX_LOSS)?;
    println!("out of the table after {took:?}");
    thread::sleep(SETTLED.saturating_sub(start.elapsed()));
    for _ in 0..40 {
        let begun = Instant::now();
        let netns = &topology.client().netns;
        let answer = netns.inside(|| client::who(None, ECHO))??;
        ensure!(answer.node != lost.name, "{answer:?}");
        let took = begun.elapsed();
        ensure!(took < MAX_CONNECT, "{took:?} by {}", answer.node);
    }
    let states = [UNCHECKED, UNREACHABLE, UNCHECKED, UNCHECKED];
    assert_eq!(site.states()?, states);
    let shares = site.lb.backends()?.into_iter().map(|backend| backend.share);
    assert_eq!(shares.filter(|share| *share == 0.0).count(), 1);

    site.set(lost, "up")?;
    let took = site.wait_for(4, MAX_RETURN)?;
    println!("back after {took:?}");
    assert_eq!(site.states()?, [UNCHECKED; 4]);
    connections.iter().try_for_each(alive)?;
    let hop = format!("next hop {}", lost.address);
    let wanted = [
        format!("{hop}: does not answer: 1 backend is behind it"),
        format!("{hop}: answers again"),
    ];
    assert_eq!(site.events()?, wanted);
    Ok(())
}

/// It may be our own way that is lost: then all keep their shares.
#[privileged_test]
fn nodes_that_all_vanish_keep_their_shares() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::start(&topology)?;
    let nodes = topology.nodes.iter();
    nodes.clone().try_for_each(|node| site.set(node, "down"))?;
    poll::until("all are unreachable", LIMIT, || {
        Ok((site.states()? == [UNREACHABLE; 4]).then_some(()))
    })?;
    site.wait_for(4, LIMIT)?;
    thread::sleep(SETTLED);
    assert_eq!(backends(&site.tables)?.len(), 4);
    assert_eq!(site.events()?.len(), 4, "{:?}", site.events()?);

    nodes.clone().try_for_each(|node| site.set(node, "up"))?;
    poll::until("all are reachable", LIMIT, || {
        Ok((site.states()? == [UNCHECKED; 4]).then_some(()))
    })?;
    site.wait_for(4, LIMIT)?;
    assert_eq!(site.events()?.len(), 8, "{:?}", site.events()?);
    Ok(())
}

/// Without a carrier there is one event, that of the NIC.
#[privileged_test]
fn a_nic_without_carrier_is_no_silence_of_nodes() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::start(&topology)?;
    let set = |state: &str| {
        let line = format!("link set p-lb {state}\n");
        topology.mgmt_lan.ip_batch(&line)
    };
    set("down")?;
    poll::until("all are unreachable", LIMIT, || {
        Ok((site.states()? == [UNREACHABLE; 4]).then_some(()))
    })?;
    set("up")?;
    poll::until("all are reachable", LIMIT, || {
        Ok((site.states()? == [UNCHECKED; 4]).then_some(()))
    })?;
    site.wait_for(4, LIMIT)?;
    assert_eq!(site.events()?, [""; 0]);
    connect(site.topology, 4)?.iter().try_for_each(alive)
}

/// A node behind a router is as lost as the router.
#[privileged_test]
fn what_is_behind_a_silent_gateway_is_unreachable() -> Result<()> {
    let topology = Topology::poc()?;
    let routed = topology.add_routed_node()?;
    let near = topology.nodes[0].address;
    let far = routed.host.address;
    let at = |address, port| SocketAddrV4::new(address, port);
    let backends = [at(near, 1), at(far, 1), at(far, 2)];
    let config = Config::poc()
        .network("mgmt", |mgmt| mgmt.route(&routed))
        .mgmt_pool("echo-a", backends)
        .tcp_service("echo-a", ECHO);
    let lb = Lb::start(&topology, &config)?;
    let states = || -> Result<Vec<String>> {
        let backends = lb.backends()?.into_iter();
        Ok(backends.map(|backend| backend.state).collect())
    };
    assert_eq!(states()?, [UNCHECKED; 3]);
    routed.router.run("ip link set eth0 down")?;
    poll::until("both are unreachable", MAX_LOSS, || {
        let wanted = [UNCHECKED, UNREACHABLE, UNREACHABLE];
        Ok((states()? == wanted).then_some(()))
    })?;
    let shares = lb.backends()?.into_iter().map(|backend| backend.share);
    assert_eq!(shares.collect::<Vec<_>>(), [100.0, 0.0, 0.0]);
    let events = lb.events()?.into_iter();
    let events = events.filter(|event| event.kind == "neighbour");
    let words: Vec<String> = events.map(|event| event.words).collect();
    assert_eq!(words, ["does not answer: 2 backends are behind it"]);
    Ok(())
}
