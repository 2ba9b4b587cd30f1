//! `limits` of names guard what a file may have, and change with a reload: the maps have room for all. Those of flows are
//! sizes of maps, and do not.

use std::net::SocketAddrV4;

use anyhow::{Result, ensure};
use lb_tests::{
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, Topology, VIP},
    traffic::client::who,
};
use serde_json::json;

use crate::health::verdicts::{alive, connect};

const SECOND: SocketAddrV4 = SocketAddrV4::new(VIP, 7001);
/// Clients whose connections stay.
const CLIENTS: usize = 20;

/// So many names of each kind, and not one more.
fn guarded(config: &Config, names: u32) -> Config {
    let limits = json!({ "pools": names, "services": names, "backends": names });
    config.clone().set("limits", limits)
}

#[privileged_test]
fn limits_of_names_change_with_a_reload() -> Result<()> {
    let topology = Topology::poc()?;
    let at = |node: usize| {
        [SocketAddrV4::new(
            topology.nodes[node].address,
            ECHO_NODE_PORT,
        )]
    };
    let one = Config::poc()
        .mgmt_pool("one", at(0))
        .tcp_service("one", ECHO);
    let two = one
        .clone()
        .mgmt_pool("two", at(1))
        .tcp_service("two", SECOND);
    let nodes = topology.nodes.iter().take(2);
    let echo = nodes.map(|node| {
        let at = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        EchoServer::start(&node.netns, at, node.name)
    });
    let _echo = echo.collect::<Result<Vec<_>>>()?;
    let mut lb = Lb::start(&topology, &guarded(&one, 1))?;
    let kept = connect(&topology, CLIENTS)?;
    let client = &topology.client().netns;
    let ask = |to| client.inside(|| who(None, to))?;

    let maps = lb.maps()?;
    lb.write(&guarded(&two, 1))?;
    let said = lb.tell(&["reload"])?;
    assert_eq!(said.code, Some(2), "{said:?}");
    for words in [
        "2 pools in all, but limits.pools is 1",
        "2 backends in all, but limits.backends is 1",
        "2 listen entries in all, but limits.services is 1",
    ] {
        ensure!(said.stderr.contains(words), "{said:?}");
    }
    assert_eq!(lb.maps()?, maps);

    lb.write(&guarded(&two, 2))?;
    let said = lb.tell(&["reload"])?.done()?;
    ensure!(
        said.contains("limits.pools: 1 -> 2") && !said.contains("limits:"),
        "{said}"
    );
    assert_eq!(ask(SECOND)?.node, topology.nodes[1].name);
    kept.iter().try_for_each(alive)?;

    // Back, with an operator's second thought.
    lb.reload(&guarded(&one, 1))?;
    assert_eq!(ask(ECHO)?.node, topology.nodes[0].name);
    lb.process().stop()?;
    lb.restart(&guarded(&two, 2))?;
    assert_eq!(ask(SECOND)?.node, topology.nodes[1].name);
    ensure!(!lb.process().stderr().contains("keeps its size"));
    kept.iter().try_for_each(alive)?;

    let sized = |limits: Keys| limits.set("handed_over", 1000);
    lb.write(&guarded(&two, 2).set("limits", sized(Keys::from("pools: 2"))))?;
    let said = lb.tell(&["reload"])?.done()?;
    ensure!(
        said.contains("limits: the maps of flows stay as large as they are"),
        "{said}"
    );
    kept.iter().try_for_each(alive)
}
