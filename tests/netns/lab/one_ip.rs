//! The host's only address is the VIP, and the backends are guests behind a bridge on it.

use std::{
    collections::BTreeSet,
    net::{SocketAddrV4, TcpStream},
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_tests::{
    oracle::observe::{self, Xdp},
    poll,
    product::lb::Lb,
    servers::{
        echo::EchoServer,
        identity::Identity,
        peers::{DNS_NAME, Peers, Serves},
    },
    topology::{
        ADDRESS, API_NODE_PORT, BRIDGE, DNS_NODE_PORT, ECHO_NODE_PORT, GATEWAY, Host, OneIp,
        TENANT_NIC,
    },
    traffic::{
        client,
        ping::{Ping, ping},
        programs,
        secret::SecretFlow,
    },
};

pub(crate) const CONFIG: &str = r#"
version: 1
networks:
  public:
    role: uplink
    interface: eth0
    address: host
    prefixes: [203.0.113.0/24]
    routes: [{ to: 0.0.0.0/0, via: 203.0.113.1 }]
    sources: any
  guests:
    role: mgmt
    interface: virbr0
    address: host
    prefixes: [192.168.126.0/24]
    snat: [{ address: 192.168.126.1, ports: 10000-29999 }]
nodes:
  guests: { network: guests, addresses: [192.168.126.11, 192.168.126.12, 192.168.126.13] }
defaults:
  pool: { network: guests }
  service: { network: public }
pools:
  api:  { backends: { nodes: guests, port: 30918 } }
  dns:  { backends: { nodes: guests, port: 30053 } }
  echo: { backends: { nodes: guests, port: 30700 } }
services:
  api:  { listen: ["203.0.113.10:6443/tcp"], pool: api }
  dns:  { listen: ["203.0.113.10:53/udp"], pool: dns }
  echo: { listen: ["203.0.113.10:7000/tcp"], pool: echo }
"#;

const API: SocketAddrV4 = SocketAddrV4::new(ADDRESS, 6443);
const DNS: SocketAddrV4 = SocketAddrV4::new(ADDRESS, 53);
const ECHO: SocketAddrV4 = SocketAddrV4::new(ADDRESS, 7000);
const SSH: SocketAddrV4 = SocketAddrV4::new(ADDRESS, 22);
const ROUNDS: usize = 1_000;
const PINGS: usize = 30;
/// Connections that are made meanwhile, at least, and how long that may take longer.
const LOAD: u64 = 100;
const LIMIT: Duration = Duration::from_secs(10);

#[privileged_test]
fn the_hosts_only_address_serves_and_stays_the_hosts() -> Result<()> {
    let one = OneIp::build()?;
    let identity = Identity::create(&one, "api", &[ADDRESS])?;
    let guests = one.backends.iter().map(|guest| (guest, serves(guest)));
    let peers = Peers::start_on(&one, identity, guests)?;
    let server = EchoServer::start(&one.lb, SSH, "host")?;
    let clients: Vec<&Host> = one.clients.iter().chain([&one.far.host]).collect();
    let mut sessions = clients
        .iter()
        .map(|client| SecretFlow::open(&client.netns, None, SSH))
        .collect::<Result<Vec<_>>>()?;

    let mut lb = Lb::start_with(&one, CONFIG, &["--no-careful"])?;

    // Every client, on the wire and behind a router, reaches every guest by the one address.
    for client in &clients {
        let mut names = BTreeSet::new();
        for _ in 0..20 {
            names.insert(programs::curl(client, peers.certificate(), API)?.node);
        }
        assert!(names.len() > 1, "{names:?} for {}", client.name);
        programs::dig(client, DNS, DNS_NAME, "TXT")?;
    }
    let up = clients[0]
        .netns
        .inside(|| client::upload(ECHO, 8 << 20, 1))??;
    assert_eq!(up.sent, up.received);
    let down = clients[2]
        .netns
        .inside(|| client::download(ECHO, 8 << 20, 2))??;
    assert_eq!(down.sent, down.received);
    assert_eq!(peers.sources()?, BTreeSet::from([GATEWAY]));

    // SSH that was there before, SSH that comes, and ping, while connections go through.
    client::under_load(clients[0], ECHO, |made| {
        for client in &clients {
            sessions.push(SecretFlow::open(&client.netns, None, SSH)?);
        }
        for _ in 0..ROUNDS {
            sessions.iter_mut().try_for_each(SecretFlow::round)?;
        }
        for _ in 0..PINGS {
            for client in &clients {
                ensure!(
                    ping(&client.netns, ADDRESS)? == Ping::Answered,
                    "{}",
                    client.name
                );
            }
            ensure!(
                ping(&one.lb, one.backends[0].address)? == Ping::Answered,
                "a guest"
            );
            ensure!(
                ping(&one.backends[1].netns, GATEWAY)? == Ping::Answered,
                "the host"
            );
        }
        poll::until("a load worth the name", LIMIT, || {
            sessions.iter_mut().try_for_each(SecretFlow::round)?;
            Ok((made.load(Ordering::Relaxed) > LOAD).then_some(()))
        })
    })?;
    assert_eq!(server.mixed_up(), Vec::<String>::new());
    // No socket listens there, and the host itself sends the error.
    let closed = SocketAddrV4::new(ADDRESS, 7001);
    let refused = clients[0]
        .netns
        .inside(|| TcpStream::connect_timeout(&closed.into(), Duration::from_secs(5)))?;
    let kind = refused.err().map(|error| error.kind());
    assert_eq!(kind, Some(std::io::ErrorKind::ConnectionRefused));
    // The host's own connections to its guests are its own.
    let own = SocketAddrV4::new(one.backends[2].address, ECHO_NODE_PORT);
    assert_eq!(one.lb.inside(|| client::who(None, own))??.node, "b3");

    ensure_generic(&one, &mut lb)
}

/// A bridge has no native mode and cannot take redirects from it: both run in generic mode, and
/// both `lb status` and the log say so.
fn ensure_generic(one: &OneIp, lb: &mut Lb<'_>) -> Result<()> {
    for network in lb.status()?.networks {
        assert_eq!(network.mode, "generic", "{network:?}");
        assert_eq!(network.cell, None, "{network:?}");
    }
    for interface in [TENANT_NIC, BRIDGE] {
        let link = observe::link(&one.lb, interface)?;
        let generic = matches!(link.xdp, Some(Xdp { native: false, .. }));
        assert!(generic, "{link:?}");
    }
    let log = lb.process().stderr();
    let warned = log
        .lines()
        .any(|line| line.contains("WARN") && line.contains("generic mode"));
    assert!(warned, "{log}");
    Ok(())
}

fn serves(guest: &Host) -> Serves {
    Serves {
        name: guest.name.to_owned(),
        https: Some(API_NODE_PORT),
        dns: Some(DNS_NODE_PORT),
        echo: Some(ECHO_NODE_PORT),
        ..Serves::default()
    }
}
