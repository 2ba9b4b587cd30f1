//! Backends that stand by: `backup: true`.

use std::net::SocketAddrV4;

use anyhow::{Result, ensure};
use lb_tests::{
    oracle::{links, raw_map::RawMap},
    poll,
    product::lb::Lb,
    topology::{ECHO, ECHO_NODE_PORT, Topology},
    traffic::client,
};
use lb_user::dataplane::pins::Pins;
use serde_json::{Value, json};

use crate::{
    flows::life::LIMIT,
    health::{
        sweep::backends,
        verdicts::{FAST, SOON, Site, alive, at_endpoints, connect, wait_for},
    },
};

/// Connections that a client opens to see which nodes serve.
const CONNECTIONS: usize = 16;

/// The third of three nodes gets no client as long as one of the others is up, then all of them, and none again; its
/// connections stay.
#[privileged_test]
fn a_backup_serves_as_long_as_no_other_backend_is_up() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 3)?;
    let backend = |index: usize| {
        let node = &topology.nodes[index];
        let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        json!({ "name": node.name, "address": address, "backup": index == 2 })
    };
    let list: Vec<Value> = (0..3).map(backend).collect();
    let config = site
        .config(at_endpoints(FAST), "")
        .pool("echo-a", |pool| pool.set("backends", list));
    let lb = Lb::start(&topology, &config)?;
    let maps = links::pins(topology.run()).join(Pins::version());
    let tables = RawMap::open(&maps.join("MAGLEV"))?;
    let served = |wanted: &[usize]| -> Result<()> {
        poll::until("the backends in the tables", SOON, || {
            Ok((backends(&tables)?.len() == wanted.len()).then_some(()))
        })?;
        for _ in 0..CONNECTIONS {
            let netns = &topology.client().netns;
            let answer = netns.inside(|| client::who(None, ECHO))??;
            let is_wanted = |&index: &usize| topology.nodes[index].name == answer.node;
            ensure!(wanted.iter().any(is_wanted), "{wanted:?}: {answer:?}");
        }
        Ok(())
    };
    let states = || -> Result<Vec<String>> {
        let lines = lb.backends()?.into_iter();
        Ok(lines.map(|line| line.state).collect())
    };

    served(&[0, 1])?;
    assert_eq!(states()?, ["up", "up", "up, backup"]);
    ensure!(
        lb.tell(&["services"])?.done()?.contains("2/2"),
        "one that stands by is not missed"
    );
    site.health[0].refuse();
    wait_for(&lb, &["dead", "up", "up"], LIMIT)?;
    served(&[1])?;
    site.health[1].refuse();
    wait_for(&lb, &["dead", "dead", "up"], LIMIT)?;
    served(&[2])?;
    assert_eq!(lb.tell(&["health"])?.code, Some(0), "every pool serves");

    let connections = connect(&topology, 4)?;
    site.health[0].answer(200);
    wait_for(&lb, &["up", "dead", "up"], LIMIT)?;
    served(&[0])?;
    connections.iter().try_for_each(alive)
}
