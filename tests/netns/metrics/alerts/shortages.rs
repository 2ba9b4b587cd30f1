//! What is limited is used up, and the data plane loses frames.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    maps::network::{Network, ROLE_TENANT},
    wire::header::SYN,
};
use lb_tests::{
    fault::stop_thread::freeze,
    frames::{packet, raw::RawPort},
    oracle::links,
    poll,
    product::{config::Config, lb::Lb},
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, TENANT_NIC, Topology, VIP, mac_of},
    traffic::{client, conn_pair::refused},
};
use lb_user::dataplane::pins::Pins;

use super::{
    board,
    prometheus::{Prometheus, SCRAPE},
};
use crate::{flows::life::LIMIT, health::verdicts::connect, metrics::page::LISTEN};

/// The alerts whose faults are made here.
pub(super) const MADE: &[&str] = &[
    "LbBackendsFull",
    "LbDataPlaneFault",
    "LbFlowLogLost",
    "LbNetworkFlowsNearMax",
    "LbQuotaNearlyUsed",
    "LbServiceFlowsNearMax",
    "LbSnatPortsExhausted",
    "LbSnatPortsNearlyUsed",
];

/// Rows of the board that have something to show at the end, and metrics that have not: nothing is checked or shared.
const ROWS: [&str; 4] = ["State at a glance", "Networks", "Services", "Backends"];
const EMPTY: [&str; 6] = [
    "lb_backend_check_seconds",
    "lb_backend_check_transitions_total",
    "lb_backend_refused_syns_total",
    "lb_backend_unanswered_syns_total",
    "lb_quota_max_flows",
    "lb_service_first_byte_seconds_bucket",
];

const BACKENDS_FULL: &str = "LbBackendsFull service=full";
/// Of SYNs without a client, which take one another's slots, most fail: it may fire before the other two have.
const FLOODED: &str = "LbConnectsFail network=tenant-a service=echo-a";
const DATA_PLANE_FAULT: &str = "LbDataPlaneFault network=mgmt reason=record_missing";
const FLOW_LOG_LOST: &str = "LbFlowLogLost network=tenant-a";
const NETWORK_NEAR_MAX: &str = "LbNetworkFlowsNearMax network=tenant-a";
const QUOTA_NEARLY_USED: &str =
    "LbQuotaNearlyUsed backend_network=mgmt family=ipv4 network=tenant-a";
const SERVICE_NEAR_MAX: &str = "LbServiceFlowsNearMax network=tenant-a service=echo-a";
const SNAT_EXHAUSTED: &str = "LbSnatPortsExhausted network=tenant-a";
const SNAT_NEARLY_USED: &str = "LbSnatPortsNearlyUsed network=mgmt";

/// SNAT ports, and what the first of two networks may have of them: a part of 84, as `lb check` has it, less half-open flows.
const PORTS: u16 = 160;
const HALF_OPEN: u16 = 64;
const QUOTA: u16 = 20;
const NEARLY: u16 = 18;
/// Of the network, once it has all ports for itself: with one flow of each all but a few are used.
const MAX_FLOWS: u16 = PORTS + 2;
const NEARLY_ALL: u16 = PORTS / 8 * 7;
/// A service whose only backend may have one connection.
const FULL: SocketAddrV4 = SocketAddrV4::new(VIP, 7001);
/// More beginnings of flows than the log's buffer has room for.
const BEGINNINGS: u16 = 9000;

/// The networks `tenant-a`, and `tenant-b` without any host.
fn config(topology: &Topology) -> Config {
    let at = |node: usize| SocketAddrV4::new(topology.nodes[node].address, ECHO_NODE_PORT);
    Config::poc()
        .network("mgmt", |mgmt| mgmt.snat_ports(20_000, 20_000 + PORTS - 1))
        .network("tenant-a", |tenant| tenant.set("half_open", HALF_OPEN))
        .network("tenant-b", |tenant| {
            let tenant = tenant.tenant(20, "192.168.204.0/24");
            tenant.set("half_open", HALF_OPEN)
        })
        .mgmt_pool("echo-a", [at(0)])
        .mgmt_pool("full", [at(1)])
        .pool("full", |pool| pool.set("max_connections", 1))
        .tcp_service("echo-a", ECHO)
        // Flows that begin, and go no further, are a flood.
        .service("echo-a", |echo| echo.set("syn_cookies", "never"))
        .tcp_service("full", FULL)
        .set("log.flows", topology.dir().join("flows.json"))
        .set("admin.http.listen", LISTEN)
}

/// With the flows of the first service limited, and a service of the second network, which shares the ports.
fn divided(config: &Config) -> Config {
    let vip = SocketAddrV4::new(Ipv4Addr::new(192, 168, 204, 110), ECHO.port());
    config
        .clone()
        .service("echo-a", |service| service.set("max_flows", QUOTA))
        .service("echo-b", |service| {
            service.on("tenant-b").tcp(vip).pool("echo-a")
        })
}

/// SYNs of a client with this last part of its address that is not there.
fn begin_flows(topology: &Topology, source: u8) -> Result<()> {
    let client = topology.client();
    let port = RawPort::open(&client.netns, "eth0")?;
    let hops = [mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    for number in 0..BEGINNINGS {
        let from = format!("192.168.203.{source}:{}", 20_000 + number);
        let syn = packet::tcp(&from, &ECHO.to_string(), SYN);
        port.send(&syn.between(hops[0], hops[1]).bytes())?;
    }
    Ok(())
}

/// The record of a network in the data plane.
struct NetworkRecord {
    map: Array<MapData, Network>,
    id: u32,
    whole: Network,
}

impl NetworkRecord {
    /// Of the clients' network, the second one.
    fn of_tenant(topology: &Topology) -> Result<Self> {
        let maps = links::pins(topology.run()).join(Pins::version());
        let map = MapData::from_pin(maps.join("NETWORKS")).context("open NETWORKS")?;
        let map = Array::try_from(Map::Array(map))?;
        let id = 2;
        let whole: Network = map.get(&id, 0)?;
        ensure!(whole.role == ROLE_TENANT && whole.vlan == 0, "{whole:?}");
        Ok(Self { map, id, whole })
    }

    /// Has it without the interface that frames to the network leave by.
    fn spoil(&mut self) -> Result<()> {
        let spoilt = Network {
            ifindex: 0,
            ..self.whole
        };
        self.map.set(self.id, &spoilt, 0).context("write NETWORKS")
    }

    fn mend(&mut self) -> Result<()> {
        let set = self.map.set(self.id, &self.whole, 0);
        set.context("write NETWORKS")
    }
}

#[privileged_test]
fn what_is_used_up_and_what_the_data_plane_loses_raise_their_alerts() -> Result<()> {
    let topology = Topology::poc()?;
    let nodes = topology.nodes[..2].iter();
    let echo = nodes.map(|node| {
        let at = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        EchoServer::start(&node.netns, at, node.name)
    });
    let _echo = echo.collect::<Result<Vec<_>>>()?;
    let config = config(&topology);
    let mut lb = Lb::start(&topology, &divided(&config))?;
    let mut prometheus = Prometheus::start(&topology, SCRAPE, &[])?;
    let client = topology.client();

    let full = client.netns.inside(|| client::open(None, FULL))??;
    let mut flows = connect(&topology, usize::from(NEARLY))?;
    prometheus.wait_while(
        || refused(client, FULL).map(drop),
        &[BACKENDS_FULL, QUOTA_NEARLY_USED, SERVICE_NEAR_MAX],
    )?;

    // Without the other network's service there is no quota, and with more flows there is no port.
    let undivided = config.network("tenant-a", |tenant| tenant.set("max_flows", MAX_FLOWS));
    lb.reload(&undivided)?;
    flows.extend(connect(&topology, usize::from(NEARLY_ALL - NEARLY))?);
    prometheus.wait_for(&[SNAT_NEARLY_USED, NETWORK_NEAR_MAX])?;
    let left = usize::from(PORTS) - flows.len() - 1;
    flows.extend(connect(&topology, left)?);
    prometheus.wait_while(|| refused(client, ECHO).map(drop), &[SNAT_EXHAUSTED])?;

    flows.truncate(usize::from(NEARLY));
    poll::until("ports for others", LIMIT, || {
        let live = usize::try_from(lb.status()?.flows.live)?;
        Ok((live <= flows.len() + 1).then_some(()))
    })?;
    prometheus.note_coming(FLOODED);
    let mut floods = 100..u8::MAX;
    prometheus.wait_while(
        || {
            let source = floods.next().context("too many floods")?;
            let _frozen = freeze(lb.process(), "lb")?;
            begin_flows(&topology, source)
        },
        &[FLOW_LOG_LOST],
    )?;
    let mut record = NetworkRecord::of_tenant(&topology)?;
    record.spoil()?;
    prometheus.wait_while(|| flows.iter().try_for_each(write), &[DATA_PLANE_FAULT])?;
    board::ensure_filled(&prometheus, &ROWS, &EMPTY)?;
    record.mend()?;
    drop((flows, full));
    prometheus.ensure_made(MADE)?;
    lb.down()
}

fn write(mut flow: &TcpStream) -> Result<()> {
    flow.write_all(b"lost").context("send")
}
