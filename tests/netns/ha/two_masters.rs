//! Two boxes that both have the marker, each in a part of the network of its own.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::config::{Config, Keys},
    servers::echo::EchoServer,
    topology::{BoxName, Host, MGMT_NIC, TENANT_NIC, Topology, TwoBoxes, VIP},
    traffic::{
        dialer::{Dialed, Dialer},
        talks::{Busy, Talks},
    },
};

use super::{
    Boxes, CHECKS, SYNCED, config,
    rounds::{HEARD, PAUSE},
};

const LASTS: Duration = Duration::from_secs(10);
/// In this time hosts know that addresses are at the other box: else not before their entries are old, half a minute.
const ANNOUNCED: Duration = Duration::from_secs(8);
/// In this time a box finds that it does not hear the other one, and then that this may be dead.
const UNHEARD: Duration = Duration::from_secs(10);
const DEAD: Duration = Duration::from_secs(4);
const IDLE_COUNT: usize = 100;
const BUSY_COUNT: usize = 20;
/// The port of each service's node.
const NODE_PORT: u16 = 30_720;

/// A client and a node, with a service between them.
struct Part<'t> {
    /// The box that they hear.
    name: BoxName,
    client: &'t Host,
    node: &'t Host,
    vip: SocketAddrV4,
}

impl<'t> Part<'t> {
    fn both(pair: &'t TwoBoxes) -> [Self; 2] {
        [(BoxName::Lb1, 0), (BoxName::Lb2, 1)].map(|(name, number)| Self {
            name,
            client: &pair.clients[number],
            node: &pair.nodes[number],
            vip: SocketAddrV4::new(VIP, if number == 0 { 7020 } else { 7021 }),
        })
    }

    fn server(&self) -> Result<EchoServer<'t>> {
        let at = SocketAddrV4::new(self.node.address, NODE_PORT);
        EchoServer::start(&self.node.netns, at, self.node.name)
    }

    /// What its hosts know of the boxes: of which NIC, and which addresses.
    fn known(&self) -> [(&Host, &str, Vec<Ipv4Addr>); 2] {
        let snat = BoxName::ALL.map(BoxName::snat).to_vec();
        [
            (self.client, TENANT_NIC, vec![VIP]),
            (self.node, MGMT_NIC, snat),
        ]
    }

    /// Its hosts know the addresses to be of its box: for ever, or until a box announces them.
    fn know_own(&self, pair: &TwoBoxes, state: &str) -> Result<()> {
        for (host, nic, addresses) in self.known() {
            let mac = pair.site(self.name).mac(nic)?;
            let line =
                |address| format!("neigh replace {address} lladdr {mac} nud {state} dev eth0\n");
            let lines: Vec<String> = addresses.iter().map(line).collect();
            host.netns.ip_batch(&lines.concat())?;
        }
        Ok(())
    }

    /// Waits until its hosts know all addresses to be of this box.
    fn wait_until_known(&self, pair: &TwoBoxes, name: BoxName) -> Result<()> {
        poll::until("the addresses at the other box", ANNOUNCED, || {
            Ok(self.is_known(pair, name)?.then_some(()))
        })
        .with_context(|| format!("{} still goes by its box", self.client.name))
    }

    /// Whether its hosts know all addresses to be of this box.
    fn is_known(&self, pair: &TwoBoxes, name: BoxName) -> Result<bool> {
        for (host, nic, addresses) in self.known() {
            let mac = pair.site(name).mac(nic)?;
            let known = host.netns.run("ip neigh show dev eth0")?;
            let is_of = |address: &Ipv4Addr| {
                let start = format!("{address} lladdr {mac} ");
                known.lines().any(|line| line.starts_with(&start))
            };
            if !addresses.iter().all(is_of) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The connections of a part, opened before there were two.
struct Open {
    idle: Talks,
    busy: Busy,
    peers: BTreeSet<SocketAddrV4>,
}

impl Open {
    fn new(part: &Part<'_>) -> Result<Self> {
        let idle = Talks::open(
            part.client,
            part.vip,
            IDLE_COUNT,
            &format!("idle-{}", part.node.name),
        )?;
        let busy = Talks::open(
            part.client,
            part.vip,
            BUSY_COUNT,
            &format!("busy-{}", part.node.name),
        )?;
        let peers: BTreeSet<_> = idle.peers().union(&busy.peers()).copied().collect();
        for talks in [&idle, &busy] {
            ensure!(
                talks.nodes() == BTreeSet::from([part.node.name.to_owned()]),
                "{:?}",
                talks.nodes()
            );
        }
        ensure!(
            peers.len() == IDLE_COUNT + BUSY_COUNT,
            "a port is in use twice"
        );
        Ok(Self {
            idle,
            busy: busy.keep_busy(part.client, PAUSE)?,
            peers,
        })
    }

    fn ensure_alive(&mut self) -> Result<()> {
        self.idle.exchange(HEARD).ensure_whole()?;
        let busy = self.busy.take();
        println!(
            "busy: {} answers, longest {:.0?}",
            busy.answers, busy.longest
        );
        ensure!(busy.answers > 0, "{busy:?}");
        busy.ensure_whole()
    }
}

/// Each service has a node of its own.
fn both_parts(pair: &TwoBoxes) -> Config {
    Part::both(pair).iter().fold(config(pair), |config, part| {
        let health = Keys::from(CHECKS).set("tcp.port", NODE_PORT);
        let name = format!("part-{}", part.node.name);
        config
            .mgmt_pool(&name, [SocketAddrV4::new(part.node.address, NODE_PORT)])
            .pool(&name, |pool| pool.set("health", health))
            .tcp_service(&name, part.vip)
    })
}

/// What is open goes on at whichever box its hosts hear, new connections have ports that are in use once and come to their
/// own backend, and with one marker again the box that has it announces all addresses: every flow that is open goes on there.
#[privileged_test]
fn two_active_boxes_serve_without_a_port_that_is_in_use_twice() -> Result<()> {
    let pair = Topology::pair()?;
    pair.give_marker(BoxName::Lb1)?;
    let parts = Part::both(&pair);
    let servers = [parts[0].server()?, parts[1].server()?];
    let boxes = Boxes::start_with(&pair, &both_parts(&pair))?;
    let mut open = [Open::new(&parts[0])?, Open::new(&parts[1])?];
    boxes.wait_for_replicas(BoxName::Lb2, 2 * (IDLE_COUNT + BUSY_COUNT))?;

    for part in &parts {
        part.know_own(&pair, "permanent")?;
    }
    pair.give_marker(BoxName::Lb2)?;
    thread::sleep(Duration::from_secs(1));
    let dialers = [&parts[0], &parts[1]].map(|part| Dialer::start(part.client, part.vip));
    thread::sleep(LASTS);
    let mut peers: BTreeSet<_> = open.iter().flat_map(|open| open.peers.clone()).collect();
    for (part, dialer) in parts.iter().zip(dialers) {
        let dialed = dialer?.end()?;
        ensure_own(part, &dialed, &mut peers).with_context(|| part.name.name())?;
    }
    for open in &mut open {
        open.ensure_alive().context("with two markers")?;
    }
    // Opened at either box, and to go on at one.
    let mut later = Vec::new();
    for part in &parts {
        later.push(Open::new(part)?);
    }

    thread::sleep(Duration::from_secs(1));
    for part in &parts {
        part.know_own(&pair, "reachable")?;
    }
    pair.take_marker(BoxName::Lb1)?;
    for part in &parts {
        part.wait_until_known(&pair, BoxName::Lb2)?;
    }
    for open in open.iter_mut().chain(&mut later) {
        open.ensure_alive().context("with one marker")?;
    }
    for server in &servers {
        ensure!(server.mixed_up().is_empty(), "{:?}", server.mixed_up());
    }
    Ok(())
}

/// Each was answered by the node of its part through the box of its part, with an address of that box and a port that no
/// other flow has.
fn ensure_own(
    part: &Part<'_>,
    dialed: &[Dialed],
    peers: &mut BTreeSet<SocketAddrV4>,
) -> Result<()> {
    ensure!(dialed.len() > 100, "{} connections", dialed.len());
    for one in dialed {
        let answer = one.answer.as_ref().with_context(|| format!("{one:?}"))?;
        ensure!(answer.node == part.node.name, "{answer:?}");
        ensure!(*answer.peer.ip() == part.name.snat(), "{answer:?}");
        ensure!(peers.insert(answer.peer), "{} is in use twice", answer.peer);
    }
    println!("{}: {} connections", part.name.name(), dialed.len());
    Ok(())
}

/// Nothing of what is between the boxes gets through: each keeps its clients. When it is mended one of them has left before the
/// other one hears it again.
#[privileged_test]
fn clients_of_a_box_that_has_left_unheard_hear_the_other_one() -> Result<()> {
    let pair = Topology::pair()?;
    pair.give_marker(BoxName::Lb1)?;
    let parts = Part::both(&pair);
    let _servers = [parts[0].server()?, parts[1].server()?];
    let boxes = Boxes::start_with(&pair, &both_parts(&pair))?;
    let part = &parts[1];
    poll::until("the flows of each box at the other one", SYNCED, || {
        Ok(boxes.ha_status(BoxName::Lb1)?.1.then_some(()))
    })?;
    pair.sync.cut()?;
    pair.give_marker(BoxName::Lb2)?;
    poll::until("a peer that is not heard", UNHEARD, || {
        let (status, _) = boxes.ha_status(BoxName::Lb1)?;
        Ok(status["peer_active"].is_null().then_some(()))
    })?;
    part.know_own(&pair, "reachable")?;
    thread::sleep(DEAD);
    ensure!(part.is_known(&pair, BoxName::Lb2)?, "lb1 took its clients");
    pair.take_marker(BoxName::Lb2)?;
    thread::sleep(Duration::from_secs(1));
    ensure!(part.is_known(&pair, BoxName::Lb2)?);
    pair.sync.mend()?;
    part.wait_until_known(&pair, BoxName::Lb1)
}
