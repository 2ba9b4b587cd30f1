//! Flows in great number that all end at once.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    addr::Mac,
    conntrack::State,
    maps::{
        flow::Flow,
        snat::{PAGE, base},
    },
    wire::header::{ACK, SYN},
};
use lb_tests::{
    frames::{packet, raw::RawPort},
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::{ECHO_NODE_PORT, Host, MGMT_NIC, TENANT_NIC, Topology, VIP, mac_of},
    traffic::flood::Flood,
};
use lb_user::dataplane::{flows::FlowTable, maps::Maps, pins::Pins};

use crate::flows::life::ensure_all_ids_are_free;

/// Flows, and how many SNAT addresses each network needs for them: 56,320 flows each.
pub(crate) struct Extent {
    pub(crate) flows: u64,
    pub(crate) addresses: u8,
}

const SHORT: Extent = Extent {
    flows: 50_000,
    addresses: 1,
};
const LONG: Extent = Extent {
    flows: 1_000_000,
    addresses: 10,
};
/// Of the nodes' network alone.
const SHORT_OF_ONE: Extent = Extent {
    flows: 50_000,
    addresses: 2,
};
const LONG_OF_ONE: Extent = Extent {
    flows: 2_000_000,
    addresses: 40,
};
/// Flows that are made at a time: fewer than a ring has places, or it would end the first of them.
pub(crate) const STEP: u64 = 50_000;
pub(crate) const PLACES: u64 = 65_536;
/// How long a step may take, and how long all of the expiry.
const TIMEOUT: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(300);
/// A listener whose backend is in the nodes' network, and one whose backend is in the clients' own.
pub(crate) const LISTENERS: [SocketAddrV4; 2] =
    [SocketAddrV4::new(VIP, 7000), SocketAddrV4::new(VIP, 7001)];

/// A million established connections are live at once, become due in the same moment, and end: every
/// id is back in its queue once. How long that takes, and what CPU, is printed.
#[privileged_test]
fn a_million_flows_expire() -> Result<()> {
    let extent = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => LONG,
        None => SHORT,
    };
    let topology = Topology::poc()?;
    let backends = [&topology.nodes[0], &topology.workers[0]];
    all_expire(&topology, &extent, config(&extent), backends)
}

/// The same of two million, all from the SNAT addresses of the nodes' network.
#[privileged_test]
fn two_million_flows_of_one_network_expire() -> Result<()> {
    let extent = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => LONG_OF_ONE,
        None => SHORT_OF_ONE,
    };
    let topology = Topology::poc()?;
    let backends = [&topology.nodes[0], &topology.nodes[1]];
    let snat = (1..=extent.addresses).map(|last| Ipv4Addr::new(10, 32, 97, last));
    let pool = |config: Config, name: &str, node: &Host| {
        config.mgmt_pool(name, [SocketAddrV4::new(node.address, ECHO_NODE_PORT)])
    };
    let config = Config::poc()
        .network("mgmt", |mgmt| mgmt.snat(snat))
        .network("tenant-a", |tenant| tenant.set("half_open", PLACES))
        .tcp_service("far", LISTENERS[0])
        .tcp_service("near", LISTENERS[1])
        .set("limits.snat_addresses", extent.addresses);
    let config = pool(pool(config, "far", backends[0]), "near", backends[1]);
    all_expire(&topology, &extent, config, backends)
}

/// So many flows to two backends are made, and end at once.
fn all_expire(
    topology: &Topology,
    extent: &Extent,
    config: Config,
    backends: [&Host; 2],
) -> Result<()> {
    let mut lb = Lb::start(topology, &idle(config.clone(), "1h"))?;
    let [first, second] = backends;
    [topology.client(), first, second]
        .into_iter()
        .try_for_each(silence)?;
    let mut crowd = Crowd::between(topology, backends)?;
    let start = Instant::now();
    while crowd.flows < extent.flows {
        let more = STEP.min(extent.flows - crowd.flows);
        crowd.grow(&lb, more)?;
    }
    let live = lb.status()?.flows.live;
    println!("{live} flows made in {:.1?}", start.elapsed());
    ensure!(live >= extent.flows, "{live} flows live");

    lb.process().stop()?;
    lb.restart_with_full_log(&idle(config, "1s"))?;
    let start = Instant::now();
    poll::until("the end of all flows", LIMIT, || {
        Ok((lb.status()?.flows.live == 0).then_some(()))
    })
    .with_context(|| format!("{:?}", lb.status()))?;
    let (elapsed, cpu) = (start.elapsed(), lb.process().cpu_time("expiry")?);
    println!("{live} flows ended in {elapsed:.1?}, with {cpu:.1?} of CPU");
    ensure_all_ids_are_free(topology, &lb)?;
    // The longest batch is in there.
    let log = lb.process();
    println!(
        "{}",
        log.wait_for_stderr(&format!("expired: Count({live})"), LIMIT)?
    );
    Ok(())
}

/// As many SNAT addresses as the flows need in both networks, and a service over each of them.
pub(crate) fn config(extent: &Extent) -> Config {
    let snat = |[a, b, c]: [u8; 3]| (1..=extent.addresses).map(move |d| Ipv4Addr::new(a, b, c, d));
    let [first, second] = LISTENERS;
    Config::poc()
        .network("mgmt", |mgmt| mgmt.snat(snat([10, 32, 97])))
        .network("tenant-a", |tenant| {
            let tenant = tenant.snat(snat([192, 168, 203]));
            tenant.set("half_open", PLACES)
        })
        .mgmt_pool("far", ["10.32.96.105:30700"])
        .pool("near", |near| {
            near.on("tenant-a").backends(["192.168.203.101:30700"])
        })
        .tcp_service("far", first)
        .tcp_service("near", second)
        .set("limits.snat_addresses", 2 * extent.addresses)
}

fn idle(config: Config, timeout: &str) -> Config {
    let idle = |service: Keys| service.set("idle_timeout", timeout);
    config.service("far", idle).service("near", idle)
}

/// Keeps the kernel of a host from answering the frames that are for it.
pub(crate) fn silence(host: &Host) -> Result<()> {
    host.netns.run("nft add table ip silent")?;
    let chain =
        "nft add chain ip silent in { type filter hook prerouting priority -300 ; policy drop ; }";
    host.netns.run(chain)?;
    // What it sends to itself concerns no other host.
    let itself = "nft add rule ip silent in iif lo accept";
    host.netns.run(itself).map(drop)
}

/// One who speaks for both ends of all connections.
pub(crate) struct Crowd {
    /// Towards each of the listeners.
    floods: [Flood; 2],
    client: Speaker,
    backends: [Speaker; 2],
    table: FlowTable,
    maps: Maps,
    pub(crate) flows: u64,
}

impl Crowd {
    /// Towards a node, and a worker in the clients' own network.
    pub(crate) fn new(topology: &Topology) -> Result<Self> {
        Self::between(topology, [&topology.nodes[0], &topology.workers[0]])
    }

    /// Towards these backends of the two listeners.
    pub(crate) fn between(topology: &Topology, backends: [&Host; 2]) -> Result<Self> {
        let speaker = |host: &Host| {
            let is_near = topology.workers.iter().any(|one| one.name == host.name);
            let nic = if is_near { TENANT_NIC } else { MGMT_NIC };
            Speaker::new(host, topology.mac(nic)?)
        };
        let client = Speaker::new(topology.client(), topology.mac(TENANT_NIC)?)?;
        let sources = |hosts: std::ops::Range<u8>| {
            hosts
                .map(|host| Ipv4Addr::new(192, 168, 203, host))
                .collect()
        };
        let [first, second] = LISTENERS;
        let pins = Pins::new(topology.run()).maps();
        Ok(Self {
            floods: [
                Flood::new(client.way, sources(120..185), first),
                Flood::new(client.way, sources(185..250), second),
            ],
            client,
            backends: [speaker(backends[0])?, speaker(backends[1])?],
            table: FlowTable::open(&pins)?,
            maps: Maps::open(&pins)?,
            flows: 0,
        })
    }

    /// Makes so many more connections; all are established when this returns.
    pub(crate) fn grow(&mut self, lb: &Lb<'_>, more: u64) -> Result<()> {
        let goal = self.flows + more;
        poll::until("more flows", TIMEOUT, || {
            // Of those that were lost on the way nothing is left: others take their turn.
            let missing = goal.saturating_sub(self.flows);
            for (index, flood) in (0..).zip(&mut self.floods) {
                flood.send(&self.client.port, (missing + index) / 2)?;
            }
            self.flows = settled(lb)?;
            Ok((self.flows >= goal).then_some(()))
        })?;
        poll::until("established flows", TIMEOUT, || self.shake_hands())
    }

    /// Says what is missing of the handshakes; the end when nothing is.
    fn shake_hands(&self) -> Result<Option<()>> {
        let mut is_missing = false;
        for id in base(0)..base(self.maps.limits().snat_addresses) {
            let Some((word, flow)) = self.table.flow(id) else {
                continue;
            };
            match word.state() {
                State::New => self.answer(id, &flow)?,
                State::Replied => self.acknowledge(&flow)?,
                _ => continue,
            }
            is_missing = true;
        }
        Ok((!is_missing).then_some(()))
    }

    /// The backend's SYN-ACK.
    fn answer(&self, id: u32, flow: &Flow) -> Result<()> {
        let page = self.maps.snat_pages.get(&(id / PAGE), 0)?;
        let from = SocketAddrV4::new(flow.backend.into(), flow.backend_port.get());
        let to = SocketAddrV4::new(page.address.into(), flow.snat_port.get());
        let expected = flow.ack_reply.get();
        let speaker = &self.backends[usize::from(flow.vip_port.get() == LISTENERS[1].port())];
        speaker.say(from, to, SYN | ACK, [0, expected])
    }

    /// The client's ACK of it.
    fn acknowledge(&self, flow: &Flow) -> Result<()> {
        let from = SocketAddrV4::new(flow.client.into(), flow.client_port.get());
        let to = SocketAddrV4::new(flow.vip.into(), flow.vip_port.get());
        self.client.say(from, to, ACK, [flow.ack_reply.get(), 1])
    }
}

/// How many flows there are when no more come: a frame may still be on its way.
fn settled(lb: &Lb<'_>) -> Result<u64> {
    let mut before = None;
    poll::until("the end of the frames", TIMEOUT, || {
        let live = lb.status()?.flows.live;
        let same = before.replace(live) == Some(live);
        Ok(same.then_some(live))
    })
}

/// A host's port to the wire, and the stations between which its frames go.
struct Speaker {
    port: RawPort,
    way: [Mac; 2],
}

impl Speaker {
    fn new(host: &Host, next: Mac) -> Result<Self> {
        Ok(Self {
            port: RawPort::open(&host.netns, "eth0")?,
            way: [mac_of(&host.netns, "eth0")?, next],
        })
    }

    fn say(
        &self,
        from: SocketAddrV4,
        to: SocketAddrV4,
        flags: u8,
        [sequence, acknowledgment]: [u32; 2],
    ) -> Result<()> {
        let [own, next] = self.way;
        let frame = packet::tcp(&from.to_string(), &to.to_string(), flags);
        let frame = frame.numbers(sequence, acknowledgment).between(own, next);
        self.port.send(&frame.bytes())
    }
}
