//! Two boxes with one configuration, of which the one with the marker is active.

mod connections;
mod families;
mod faults;
mod fence;
mod haproxy;
mod leave;
mod links;
mod maintenance;
mod many_vips;
mod marker;
mod names;
mod overrides;
mod power_off;
mod rate;
mod replicas;
mod resync;
mod roles;
mod rounds;
mod status;
mod sync_cut;
mod two_masters;
mod verdicts;
mod versions;
mod vlans;

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lb_tests::{
    oracle::query::Flow,
    poll,
    product::{
        config::{Config, Keys},
        group::Group,
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::{BoxName, ECHO, ECHO_NODE_PORT, Host, TwoBoxes, VIP},
};
use serde_json::Value;

/// Connections of which the test holds both ends.
const IDLE: SocketAddrV4 = ECHO;
const IDLE_PORT: u16 = ECHO_NODE_PORT;
/// Connections that talk all the time.
const BUSY: SocketAddrV4 = SocketAddrV4::new(VIP, 7010);
const BUSY_PORT: u16 = 30710;
/// Connections that see which box it is that they come through.
const PROBE: SocketAddrV4 = SocketAddrV4::new(VIP, 7011);
const PROBE_PORT: u16 = 30711;

const CHECKS: &str = "interval: 200ms, timeout: 150ms, fast_interval: 100ms";

/// How long a new connection may wait for its box to become the active one.
const TAKEN_OVER: Duration = Duration::from_secs(3);
/// How long the first box may take from its start until it serves.
const FIRST: Duration = Duration::from_secs(10);
/// In this time the other box has what this one has.
const SYNCED: Duration = Duration::from_secs(10);
/// How long a probe waits for each answer before the next one is sent.
const TRY: Duration = Duration::from_millis(100);

/// The first node is behind all services; each box checks it five times a second, where the probes come.
fn config(pair: &TwoBoxes) -> Config {
    let node = pair.nodes[0].address;
    let services = [
        ("idle", IDLE, IDLE_PORT),
        ("busy", BUSY, BUSY_PORT),
        ("probe", PROBE, PROBE_PORT),
    ];
    services.into_iter().fold(
        Config::poc().set("on_stop", "drop"),
        |config, (name, vip, port)| {
            let health = Keys::from(CHECKS).set("tcp.port", PROBE_PORT);
            config
                .mgmt_pool(name, [SocketAddrV4::new(node, port)])
                .pool(name, |pool| pool.set("health", health))
                .tcp_service(name, vip)
        },
    )
}

/// An echo server at a port of the first node.
fn server(pair: &TwoBoxes, port: u16) -> Result<EchoServer<'_>> {
    let node = &pair.nodes[0];
    EchoServer::start(
        &node.netns,
        SocketAddrV4::new(node.address, port),
        node.name,
    )
}

/// `lb` on both boxes, and the server of the probes.
struct Boxes<'t> {
    pair: &'t TwoBoxes,
    first: Lb<'t>,
    second: Lb<'t>,
    group: Group,
    _probed: EchoServer<'t>,
}

impl<'t> Boxes<'t> {
    /// The first one has the marker, and serves when this returns.
    fn start(pair: &'t TwoBoxes) -> Result<Self> {
        pair.give_marker(BoxName::Lb1)?;
        Self::start_beside_marker(pair)
    }

    /// The same where the first one has the marker, or gets it now.
    fn start_beside_marker(pair: &'t TwoBoxes) -> Result<Self> {
        Self::start_with(pair, &config(pair))
    }

    /// The same with this configuration of both.
    fn start_with(pair: &'t TwoBoxes, both: &Config) -> Result<Self> {
        Self::start_through(pair, both, &[])
    }

    /// The same where the process of the second box is started by these words.
    fn start_through(pair: &'t TwoBoxes, both: &Config, second: &[&str]) -> Result<Self> {
        let group = Group::create(pair)?;
        let probed = server(pair, PROBE_PORT)?;
        let start = |name, words| {
            let config = group.config(both.clone(), name);
            Lb::start_through(pair.site(name), &config, words).with_context(|| name.name())
        };
        let boxes = Self {
            pair,
            first: start(BoxName::Lb1, &[])?,
            second: start(BoxName::Lb2, second)?,
            group,
            _probed: probed,
        };
        boxes.wait_until_served_by(BoxName::Lb1, FIRST)?;
        Ok(boxes)
    }

    const fn lb(&self, name: BoxName) -> &Lb<'t> {
        match name {
            BoxName::Lb1 => &self.first,
            BoxName::Lb2 => &self.second,
        }
    }

    const fn lb_mut(&mut self, name: BoxName) -> &mut Lb<'t> {
        match name {
            BoxName::Lb1 => &mut self.first,
            BoxName::Lb2 => &mut self.second,
        }
    }

    /// Waits until new connections come through this box; how long that took.
    fn wait_until_served_by(&self, name: BoxName, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        poll::until(
            &format!("a connection through {}", name.name()),
            limit,
            || {
                let seen = seen_as(self.pair.client(), PROBE)?;
                Ok((seen == Some(name.snat())).then_some(()))
            },
        )?;
        Ok(start.elapsed())
    }

    /// Moves the marker to this box, and waits until it serves.
    fn move_to(&self, name: BoxName) -> Result<()> {
        self.pair.move_marker(name)?;
        let took = self.wait_until_served_by(name, TAKEN_OVER)?;
        println!("{} has taken over after {took:.0?}", name.name());
        Ok(())
    }

    /// The first box loses its power; the second one has the marker, and serves when this returns.
    fn fail_over(&mut self) -> Result<()> {
        self.pair.power_off(BoxName::Lb1)?;
        self.first.kill()?;
        self.pair.give_marker(BoxName::Lb2)?;
        let took = self.wait_until_served_by(BoxName::Lb2, TAKEN_OVER)?;
        println!("lb2 has taken over after {took:.0?}");
        Ok(())
    }

    /// What `lb ha status` says on a box, and whether the flows of each stand ready on the other.
    fn ha_status(&self, name: BoxName) -> Result<(Value, bool)> {
        let said = self.lb(name).tell(&["ha", "status", "-o", "json"])?;
        let status = serde_json::from_str(&said.stdout).with_context(|| format!("{said:?}"))?;
        Ok((status, said.code == Some(0)))
    }

    /// Waits until a box has all flows of the other one, which are so many.
    fn wait_for_replicas(&self, name: BoxName, count: usize) -> Result<()> {
        let start = Instant::now();
        let wanted = flows(self.lb(name.other()))?;
        anyhow::ensure!(
            wanted.len() == count,
            "{} flows, not {count}: {wanted:?}",
            wanted.len()
        );
        let mut missing = BTreeSet::new();
        let waited = poll::until("all flows at the other box", SYNCED, || {
            let there = flows(self.lb(name))?;
            missing = wanted.difference(&there).cloned().collect();
            Ok(missing.is_empty().then_some(()))
        });
        waited.with_context(|| format!("{} are missing: {missing:?}", missing.len()))?;
        println!(
            "{} has {count} flows after {:.0?}",
            name.name(),
            start.elapsed()
        );
        Ok(())
    }
}

/// A flow by what both boxes call it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Tuple {
    client: String,
    vip: String,
    snat: String,
    backend: String,
}

/// The flows that a box has, but those of the probes.
fn flows(lb: &Lb<'_>) -> Result<BTreeSet<Tuple>> {
    let flows = lb.flows()?.into_iter();
    let ours = flows.filter(|flow| flow.service != "probe");
    let tuple = |flow| {
        let Flow {
            client,
            vip,
            snat,
            backend,
            ..
        } = flow;
        Tuple {
            client,
            vip,
            snat,
            backend,
        }
    };
    Ok(ours.map(tuple).collect())
}

/// What a server behind `to` sees a new connection as; nothing if the connection has no answer at once.
fn seen_as(client: &Host, to: SocketAddrV4) -> Result<Option<Ipv4Addr>> {
    seen_within(client, to, TRY)
}

/// The same of a connection that may wait so long for each answer.
fn seen_within(client: &Host, to: SocketAddrV4, limit: Duration) -> Result<Option<Ipv4Addr>> {
    let ask = || -> io::Result<String> {
        let stream = TcpStream::connect_timeout(&to.into(), limit)?;
        stream.set_read_timeout(Some(limit))?;
        (&stream).write_all(b"who\n")?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        Ok(line)
    };
    let Ok(line) = client.netns.inside(ask)? else {
        return Ok(None);
    };
    let Some((_, peer)) = line.trim().split_once(' ') else {
        return Ok(None);
    };
    let peer: SocketAddrV4 = peer.parse().with_context(|| format!("answer {line:?}"))?;
    Ok(Some(*peer.ip()))
}
