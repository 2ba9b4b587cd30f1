//! A node that is taken out with all of its backends: FEATURES D11.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{Ipv4Addr, SocketAddrV4, SocketAddrV6, TcpStream},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::{links, map_content::ids_of_tables, query::Event, raw_map::RawMap},
    poll,
    product::{config::Config, lb::Lb},
    topology::{ECHO_NODE_PORT, Topology, VIP, VIP6, address6},
    traffic::conn_pair::wait_for_reset,
};
use lb_user::dataplane::pins::Pins;
use serde_json::{Value, json};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, alive, connect, wait_for},
};

/// Connections in these tests.
const CONNECTIONS: usize = 40;
/// The NodePorts of the nodes in pool `six`, from this one on; in the maps an IPv6 address is a label.
const SIX_PORT: u16 = 30_801;
/// The NodePort of pool `plain`.
const PLAIN_PORT: u16 = 30_901;

/// Two nodes in three pools: in `echo-a` with their names, in `six` with the same names and IPv6 addresses, in `plain`
/// without a name.
fn config(site: &Site<'_>) -> Config {
    let nodes = || site.topology.nodes.iter().take(2);
    let six: Vec<Value> = nodes()
        .zip(SIX_PORT..)
        .map(|(node, port)| {
            let address = SocketAddrV6::new(address6(node), port, 0, 0);
            json!({ "name": node.name, "address": address })
        })
        .collect();
    let plain = nodes().map(|node| SocketAddrV4::new(node.address, PLAIN_PORT));
    let config = site
        .http_reset("")
        .with_ipv6(&["tenant-a"])
        .pool("six", |pool| pool.on("mgmt").set("backends", six))
        .mgmt_pool("plain", plain)
        .tcp_service("six", SocketAddrV6::new(VIP6, 7001, 0, 0))
        .tcp_service("plain", SocketAddrV4::new(VIP, 7002));
    ["echo-a", "six", "plain"]
        .into_iter()
        .fold(config, |config, pool| {
            config.pool(pool, |pool| pool.set("drain_timeout", "1h"))
        })
}

/// The kernel's tables of all pools.
struct Tables {
    maglev: RawMap,
    backends: RawMap,
}

impl Tables {
    fn open(topology: &Topology) -> Result<Self> {
        let maps = links::pins(topology.run()).join(Pins::version());
        Ok(Self {
            maglev: RawMap::open(&maps.join("MAGLEV"))?,
            backends: RawMap::open(&maps.join("BACKENDS"))?,
        })
    }

    /// Address and port of each backend that gets new flows.
    fn served(&self) -> Result<BTreeSet<SocketAddrV4>> {
        let ids = ids_of_tables(&self.maglev.take()?);
        let records: BTreeMap<Vec<u8>, Vec<u8>> = self.backends.take()?.into_iter().collect();
        let addresses = ids.iter().map(|id| {
            // The oracle sorts by key, and has an index with its highest byte first.
            let index: Vec<u8> = id.iter().rev().copied().collect();
            let record = records.get(&index).and_then(|record| record.first_chunk());
            let [a, b, c, d, high, low] = *record.context("the record of a backend")?;
            let port = u16::from_be_bytes([high, low]);
            Ok(SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port))
        });
        addresses.collect()
    }

    /// Whether exactly these nodes are in the tables of all three pools.
    fn ensure_served_by(&self, topology: &Topology, nodes: &[usize]) -> Result<()> {
        let served = self.served()?;
        let of = |ports: &[u16], address: Ipv4Addr| {
            let mut served = served.iter();
            served.any(|at| ports.contains(&at.port()) && *at.ip() == address)
        };
        let ports: BTreeSet<u16> = served.iter().map(SocketAddrV4::port).collect();
        for (index, six) in (0..2).zip(SIX_PORT..) {
            let address = topology.nodes[index].address;
            let found = [
                of(&[ECHO_NODE_PORT], address),
                of(&[PLAIN_PORT], address),
                ports.contains(&six),
            ];
            let wanted = [nodes.contains(&index); 3];
            ensure!(found == wanted, "node {index}: {served:?}");
        }
        ensure!(served.len() == nodes.len() * 3, "{served:?}");
        Ok(())
    }
}

/// How many live flows the second node has.
fn held(lb: &Lb<'_>, topology: &Topology) -> Result<usize> {
    let second = format!("{}:", topology.nodes[1].address);
    let flows = lb.flows()?.into_iter();
    Ok(flows
        .filter(|flow| flow.backend.starts_with(&second))
        .count())
}

/// What `lb nodes` has of the second node.
fn second(lb: &Lb<'_>) -> Result<Value> {
    let mut answer: Value = lb.ask_json(&["nodes"])?;
    let nodes = answer["nodes"].as_array_mut().context("nodes")?;
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    Ok(nodes.remove(1))
}

/// The latest event of an operator's override.
fn last_override(lb: &Lb<'_>) -> Result<Event> {
    let events = lb.events()?;
    let mut overrides = events.into_iter().filter(|event| event.kind == "override");
    overrides.next_back().context("an override")
}

/// The reasons for which flows of the second node have ended.
fn reasons(log: &Path, topology: &Topology) -> Result<Vec<String>> {
    let second = format!("{}:", topology.nodes[1].address);
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>()?;
    let ended = lines.iter().filter(|line| {
        let backend = line["backend"].as_str().unwrap_or_default();
        line["event"] == "ended" && backend.starts_with(&second)
    });
    let reasons = ended.filter_map(|line| line["reason"].as_str());
    Ok(reasons.map(str::to_owned).collect())
}

/// How many connections have been reset, where the others are alive.
fn resets(connections: &[TcpStream]) -> Result<usize> {
    let mut resets = 0;
    for connection in connections {
        match wait_for_reset(connection, Duration::from_millis(50)) {
            Ok(_) => resets += 1,
            Err(_) => alive(connection)?,
        }
    }
    Ok(resets)
}

/// One order takes a node out of the tables of all pools, also those that do not name it; its flows go on, also over a
/// restart, and one order brings it back.
#[privileged_test]
fn d11_a_drained_node_is_out_of_all_pools() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    let site = Site::new(&topology, 2)?;
    let config = config(&site);
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 6], LIMIT)?;
    let tables = Tables::open(&topology)?;
    tables.ensure_served_by(&topology, &[0, 1])?;
    let connections = connect(&topology, CONNECTIONS)?;
    let held = held(&lb, &topology)?;
    ensure!(held > 1 && held < CONNECTIONS, "{held} flows");

    let said = lb.tell(&["node", "drain", "n2"])?.done()?;
    let words = format!(
        "3 backends of 3 pools: drains: no new flows, and those that it has end in 3600 s ({held} flows)"
    );
    assert_eq!(said, format!("node n2: {words}\n"));
    tables.ensure_served_by(&topology, &[0])?;
    let event = last_override(&lb)?;
    assert_eq!((event.object.as_str(), event.words), ("node n2", words));
    assert_eq!(
        second(&lb)?,
        json!({
            "name": "n2",
            "addresses": [topology.nodes[1].address, address6(&topology.nodes[1])],
            "pools": ["echo-a", "six", "plain"],
            "backends": 3,
            "backends_up": 0,
            "backends_drained": 3,
            "backends_disabled": 0,
            "backends_weighted": 0,
            "flows": held,
        })
    );
    let table = lb.tell(&["nodes"])?.done()?;
    ensure!(table.contains("drained"), "{table}");
    assert_eq!(site.who(20)?.into_keys().collect::<Vec<_>>(), ["n1"]);
    connections.iter().try_for_each(alive)?;

    lb.kill()?;
    lb.restart(&config)?;
    wait_for(&lb, &["up"; 6], LIMIT)?;
    tables.ensure_served_by(&topology, &[0])?;
    assert_eq!(second(&lb)?["backends_drained"], 3, "after a restart");
    connections.iter().try_for_each(alive)?;

    let address = address6(&topology.nodes[1]).to_string();
    let said = lb.tell(&["node", "enable", &address])?.done()?;
    assert_eq!(
        said,
        "node n2: 3 backends of 3 pools: as the file and its checks say\n"
    );
    tables.ensure_served_by(&topology, &[0, 1])?;
    connections.iter().try_for_each(alive)
}

/// The flows of a disabled node end at once, for a reason that is not that of a node that dies; a node that is not there
/// is an error, and a name of several backends has a hint.
#[privileged_test]
fn d11_a_disabled_node_loses_its_flows_and_is_not_dead() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    let site = Site::new(&topology, 2)?;
    let log = topology.dir().join("flows.json");
    let config = config(&site).set("log.flows", &log);
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 6], LIMIT)?;
    let tables = Tables::open(&topology)?;
    let connections = connect(&topology, CONNECTIONS)?;
    let disabled = held(&lb, &topology)?;
    ensure!(disabled > 1 && disabled < CONNECTIONS, "{disabled} flows");

    let address = topology.nodes[1].address.to_string();
    let said = lb.tell(&["node", "disable", &address])?.done()?;
    let words = "3 backends of 3 pools: disabled: no new flows, and those that it had end";
    assert_eq!(said, format!("node n2: {words} ({disabled} flows)\n"));
    assert_eq!(held(&lb, &topology)?, 0);
    tables.ensure_served_by(&topology, &[0])?;
    let event = last_override(&lb)?;
    assert_eq!(
        (event.object.as_str(), event.words.as_str()),
        ("node n2", words)
    );
    assert_eq!(resets(&connections)?, disabled);
    let ended = |count: usize| {
        poll::until("ends in the flow log", LIMIT, || {
            let reasons = reasons(&log, &topology)?;
            Ok((reasons.len() >= count).then_some(reasons))
        })
    };
    assert_eq!(ended(disabled)?, vec!["disabled"; disabled]);

    lb.kill()?;
    lb.restart(&config)?;
    wait_for(&lb, &["up"; 6], LIMIT)?;
    tables.ensure_served_by(&topology, &[0])?;
    lb.tell(&["node", "enable", "n2"])?.done()?;
    tables.ensure_served_by(&topology, &[0, 1])?;

    let _connections = connect(&topology, CONNECTIONS)?;
    let dying = held(&lb, &topology)?;
    ensure!(dying > 1, "{dying} flows");
    site.health[1].refuse();
    wait_for(&lb, &["up", "dead", "up", "up", "up", "up"], SOON)?;
    let reasons = ended(disabled + dying)?.split_off(disabled);
    assert_eq!(reasons, vec!["backend_down"; dying]);

    for (wrong, said) in [
        (
            &["node", "drain", "n22"][..],
            "there is no node \"n22\"; did you mean n2? `lb nodes` lists them with their addresses\n",
        ),
        (
            &["node", "drain", "10.32.96.107"],
            "there is no node \"10.32.96.107\"; `lb nodes` lists them with their addresses\n",
        ),
        (
            &["backend", "drain", "n2"],
            "n2 is a backend of 2 pools (echo-a, six): say which, as POOL/n2, or override all of them by `lb node`\n",
        ),
    ] {
        let refused = lb.tell(wrong)?;
        assert_eq!((refused.code, refused.stderr.as_str()), (Some(2), said));
    }
    Ok(())
}
