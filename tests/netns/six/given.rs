//! What these tests share: one client, one backend, one service each of TCP and UDP.

use std::{
    io::ErrorKind,
    net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket},
};

use anyhow::{Context as _, Result};
use lb_common::addr::Mac;
use lb_tests::{
    poll,
    product::config::Config,
    topology::{
        DNS_NODE_PORT, DNS6, ECHO_NODE_PORT, ECHO6, Host, SNAT6, TENANT_NIC, Topology, address6,
        mac_of,
    },
    traffic::client,
};

use crate::flows::life::LIMIT;

/// The first node behind one service each of TCP and UDP.
pub(super) fn config() -> Config {
    let node = |port| [SocketAddrV6::new(NODE, port, 0, 0)];
    Config::poc()
        .network("mgmt", |mgmt| {
            mgmt.set("prefixes", ["fd00:32::/64"]).set("snat", [SNAT6])
        })
        .network("tenant-a", |tenant| {
            tenant.set("prefixes", ["fd00:203::/64"])
        })
        .mgmt_pool("echo-a", node(ECHO_NODE_PORT))
        .mgmt_pool("dns-a", node(DNS_NODE_PORT))
        .tcp_service("echo-a", ECHO6)
        .service("dns-a", |dns| dns.on("tenant-a").udp(DNS6).pool("dns-a"))
}

/// The first node.
const NODE: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x32, 0, 0, 0, 0, 0, 0x105);

/// The topology, with IPv6 on every host.
pub(super) fn topology() -> Result<Topology> {
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    Ok(topology)
}

/// An address and port of a host.
pub(super) fn at(host: &Host, port: u16) -> SocketAddr {
    SocketAddrV6::new(address6(host), port, 0, 0).into()
}

/// Both ends of a connection through the TCP service.
#[derive(Debug)]
pub(super) struct Pair {
    /// The client's.
    pub(super) client: TcpStream,
    /// The backend's.
    pub(super) server: TcpStream,
    /// The client as the backend sees it.
    pub(super) snat: SocketAddr,
}

/// Connects the first client to the first node.
pub(super) fn open(topology: &Topology) -> Result<Pair> {
    let node = &topology.nodes[0];
    let listener = node
        .netns
        .inside(|| TcpListener::bind(at(node, ECHO_NODE_PORT)))?
        .context("listen")?;
    listener.set_nonblocking(true).context("with a deadline")?;
    let client = &topology.client().netns;
    let client = client.inside(|| client::open_any(ECHO6.into()))??;
    let accepted = poll::until("a connection at the backend", LIMIT, || {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            accepted => accepted.context("accept").map(Some),
        }
    });
    let (server, snat) = accepted?;
    server.set_nonblocking(false).context("wait for words")?;
    server.set_nodelay(true).context("send at once")?;
    Ok(Pair {
        client,
        server,
        snat,
    })
}

/// A socket of `host` that talks to the UDP service alone.
pub(super) fn udp_client(host: &Host) -> Result<UdpSocket> {
    let socket = host.netns.inside(|| -> Result<UdpSocket> {
        let socket = UdpSocket::bind(at(host, 0)).context("make a UDP socket")?;
        socket.connect(DNS6).context("connect it")?;
        Ok(socket)
    })??;
    patient(socket)
}

/// The socket of the UDP service at the first node.
pub(super) fn udp_server(topology: &Topology) -> Result<UdpSocket> {
    let node = &topology.nodes[0];
    let bind = || UdpSocket::bind(at(node, DNS_NODE_PORT));
    patient(node.netns.inside(bind)?.context("listen for datagrams")?)
}

fn patient(socket: UdpSocket) -> Result<UdpSocket> {
    let patience = socket.set_read_timeout(Some(LIMIT));
    patience.context("set the read timeout")?;
    Ok(socket)
}

/// The next datagram, and its sender.
pub(super) fn receive(socket: &UdpSocket) -> Result<(Vec<u8>, SocketAddr)> {
    let mut datagram = vec![0; 1 << 16];
    let (length, from) = socket.recv_from(&mut datagram).context("a datagram")?;
    datagram.truncate(length);
    Ok((datagram, from))
}

/// The MACs between which a frame of `host` goes to the load balancer.
pub(super) fn hops(topology: &Topology, host: &Host) -> Result<[Mac; 2]> {
    Ok([mac_of(&host.netns, "eth0")?, topology.mac(TENANT_NIC)?])
}
