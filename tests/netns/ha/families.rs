//! Flows of UDP, and of both over IPv6, at the other box.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::config::Config,
    topology::{BoxName, Topology, TwoBoxes, VIP, VIP6, address6},
    traffic::{client, conn_pair::say},
};

use super::{Boxes, config};

const PORT: u16 = 7030;
const NODE_PORT: u16 = 30_730;
/// How long a datagram and an answer to it may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long the first packet of a flow waits for its next hops before it is sent again.
const AGAIN: Duration = Duration::from_millis(500);

/// Services of TCP and UDP over both, each with the first node behind it.
fn both_families(pair: &TwoBoxes) -> Config {
    ends(pair).into_iter().zip(["v4", "v6"]).fold(
        config(pair).with_ipv6(&["tenant-a"]),
        |config, ((vip, node), name)| {
            config.mgmt_pool(name, [node]).service(name, |service| {
                service.on("tenant-a").tcp(vip).udp(vip).pool(name)
            })
        },
    )
}

/// The VIP and the node of each family.
fn ends(pair: &TwoBoxes) -> [(SocketAddr, SocketAddr); 2] {
    let node = &pair.nodes[0];
    let of =
        |vip: IpAddr, node: IpAddr| (SocketAddr::new(vip, PORT), SocketAddr::new(node, NODE_PORT));
    [
        of(VIP.into(), node.address.into()),
        of(VIP6.into(), address6(node).into()),
    ]
}

/// A flow of UDP: both ends, and the client as the node saw it first.
struct Datagrams {
    client: UdpSocket,
    node: UdpSocket,
    peer: Option<SocketAddr>,
}

impl Datagrams {
    fn new(pair: &TwoBoxes, (vip, node): (SocketAddr, SocketAddr)) -> Result<Self> {
        let host = &pair.nodes[0];
        let node = host.netns.inside(|| UdpSocket::bind(node))??;
        let any = SocketAddr::new(
            if vip.is_ipv4() {
                [0; 4].into()
            } else {
                [0_u16; 8].into()
            },
            0,
        );
        let client = pair.client().netns.inside(|| UdpSocket::bind(any))??;
        client.connect(vip)?;
        for socket in [&client, &node] {
            socket.set_read_timeout(Some(AGAIN))?;
        }
        Ok(Self {
            client,
            node,
            peer: None,
        })
    }

    /// One each way; the node sees the client as before.
    fn talk(&mut self) -> Result<()> {
        let mut heard = [0; 8];
        let peer = poll::until("a datagram at the node", LIMIT, || {
            self.client.send(b"request")?;
            Ok(self.node.recv_from(&mut heard).ok())
        })?;
        ensure!(heard.starts_with(b"request"), "{heard:?}");
        let (_, peer) = peer;
        let before = *self.peer.get_or_insert(peer);
        ensure!(peer == before, "{peer}, not {before}");
        self.node.send_to(b"reply", peer)?;
        let length = self.client.recv(&mut heard).context("no answer")?;
        ensure!(heard.get(..length) == Some(b"reply"), "{heard:?}");
        Ok(())
    }
}

/// Each goes on with its SNAT port, at the other box and back at the first one.
#[privileged_test]
fn datagrams_and_ipv6_go_on_through_a_move_and_back() -> Result<()> {
    let pair = Topology::pair()?;
    pair.add_ipv6()?;
    pair.give_marker(BoxName::Lb1)?;
    let boxes = Boxes::start_with(&pair, &both_families(&pair))?;
    let (mut streams, mut datagrams) = (Vec::new(), Vec::new());
    for (vip, node) in ends(&pair) {
        let listener = pair.nodes[0].netns.inside(|| TcpListener::bind(node))??;
        let client = pair.client().netns.inside(|| client::open_any(vip))??;
        let (server, _) = listener.accept()?;
        streams.push((client, server));
        let mut flow = Datagrams::new(&pair, (vip, node))?;
        flow.talk().with_context(|| vip.to_string())?;
        datagrams.push(flow);
    }
    for to in [BoxName::Lb2, BoxName::Lb1] {
        boxes.wait_for_replicas(to, streams.len() + datagrams.len())?;
        boxes.move_to(to)?;
        for (client, server) in &streams {
            say(client, server, b"request")?;
            say(server, client, b"reply")?;
        }
        for flow in &mut datagrams {
            flow.talk().with_context(|| to.name())?;
        }
    }
    Ok(())
}
