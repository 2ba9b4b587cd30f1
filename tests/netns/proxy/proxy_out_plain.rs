//! A service with one pool whose backends get the client of each connection: FEATURES B11, byte by byte.
//! No end waits for the client: which of them sends first is as without the header.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    topology::{ADDRESS, Host, OneIp, TENANT_NIC, TENANT_SNAT, Topology, VIP},
    traffic::{
        client::open,
        conn_pair::{Pair, hear, say, wait_for_reset},
    },
};

use crate::proxy::{
    pipe::carry,
    proxy_out::{counted, snat_of},
    relayed::{have_copied, wait_for},
};

/// Where clients come, and where the backend is.
const PLAIN: SocketAddrV4 = SocketAddrV4::new(VIP, 6443);
const PORT: u16 = 31443;
/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);
/// Bytes that go each way.
const MUCH: u64 = 8 << 20;
/// Connections to a backend that speaks at once.
const SPOKEN: u64 = 200;
/// Connections of clients that speak at once, each a moment later than the one before.
const SPEAKING: u32 = 600;
const MOMENT: Duration = Duration::from_micros(5);
const MOMENTS: u32 = 100;
/// Less than it takes until what was dropped is sent again.
const LATE: Duration = Duration::from_millis(150);
/// What every header begins with, as the protocol has it: a connection of a client, by TCP over IPv4.
const SIGNATURE: [u8; 14] = *b"\r\n\r\n\0\r\nQUIT\n\x21\x11";
/// The type of an id, with the first byte of its length.
const UNIQUE_ID: [u8; 2] = [5, 0];

/// The first node as the only pool, with these keys.
fn config(topology: &Topology, keys: &str) -> Config {
    let node = SocketAddrV4::new(topology.nodes[0].address, PORT);
    Config::poc()
        .mgmt_pool("a", [node])
        .pool("a", |pool| pool.with(keys))
        .tcp_service_to("plain", PLAIN, "a")
        .set("timeouts.half_closed", "5s")
}

const TOLD: &str = "proxy_protocol: v2";

/// From a client to a backend.
struct Way<'t> {
    client: &'t Host,
    listener: TcpListener,
    to: SocketAddrV4,
}

impl<'t> Way<'t> {
    fn new(client: &'t Host, to: SocketAddrV4, backend: &Host) -> Result<Self> {
        let address = SocketAddrV4::new(backend.address, PORT);
        let listener = backend.netns.inside(|| TcpListener::bind(address))??;
        listener.set_nonblocking(true)?;
        Ok(Self {
            client,
            listener,
            to,
        })
    }

    /// Connects; the client has said nothing, and the backend has heard nothing.
    fn open(&self) -> Result<Pair> {
        let client = self.client.netns.inside(|| open(None, self.to))??;
        let (server, peer) = poll::until("a connection at the backend", SOON, || {
            match self.listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                accepted => accepted.context("accept").map(Some),
            }
        })?;
        server.set_nonblocking(false)?;
        server.set_read_timeout(Some(SOON))?;
        server.set_nodelay(true)?;
        let SocketAddr::V4(snat) = peer else {
            bail!("{peer} is no IPv4 peer")
        };
        Ok(Pair {
            client,
            server,
            snat,
        })
    }

    /// Connects; the backend has got the header, and these bytes alone; the id in it as well.
    fn open_told(&self) -> Result<(Pair, String)> {
        let pair = self.open()?;
        let SocketAddr::V4(client) = pair.client.local_addr()? else {
            bail!("an IPv6 client")
        };
        let id = told(&pair.server, client, self.to)?;
        Ok((pair, id))
    }
}

/// Asserts that a header comes that says this, and nothing more than that and an id, which is returned.
fn told(mut server: &TcpStream, client: SocketAddrV4, vip: SocketAddrV4) -> Result<String> {
    let mut head = [0; 16];
    server.read_exact(&mut head)?;
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    let mut rest = vec![0; length];
    server.read_exact(&mut rest)?;
    let (addresses, id) = rest.split_at(12);
    let mut expected = [client, vip].map(|at| at.ip().octets()).concat();
    expected.extend([client, vip].map(|at| at.port().to_be_bytes()).concat());
    ensure!(head[..14] == SIGNATURE, "{head:?}");
    ensure!(addresses == expected, "{addresses:?} of {client} to {vip}");
    let (kind, id) = id.split_at(3);
    ensure!(
        kind[..2] == UNIQUE_ID && usize::from(kind[2]) == id.len(),
        "{rest:?}"
    );
    Ok(String::from_utf8(id.to_vec())?)
}

/// Both ends speak, first the backend, then carry a lot, and close as they like.
fn lives(way: &Way<'_>, client_first: bool) -> Result<()> {
    let (pair, _) = way.open_told()?;
    let Pair { client, server, .. } = &pair;
    say(server, client, b"220 ready")?;
    say(client, server, b"helo")?;
    carry(client, server, MUCH)?;
    carry(server, client, MUCH)?;
    let (first, second) = match client_first {
        true => (client, server),
        false => (server, client),
    };
    first.shutdown(Shutdown::Write)?;
    hears_the_end(second)?;
    carry(second, first, 1 << 20)?;
    second.shutdown(Shutdown::Write)?;
    hears_the_end(first)
}

fn hears_the_end(mut end: &TcpStream) -> Result<()> {
    end.set_read_timeout(Some(SOON))?;
    ensure!(end.read(&mut [0])? == 0, "bytes instead of an end");
    Ok(())
}

/// B11: it is handed over before either end has sent anything, and is a flow by its id; without timestamps it is
/// copied, and neither end sees a difference.
#[privileged_test]
fn b11_a_plain_connection_is_told_and_handed_over() -> Result<()> {
    let topology = Topology::poc()?;
    let way = Way::new(topology.client(), PLAIN, &topology.nodes[0])?;
    let lb = Lb::start(&topology, &config(&topology, TOLD))?;
    let (pair, id) = way.open_told()?;
    assert_eq!(snat_of(&id)?, pair.snat);
    assert_eq!(counted(&lb, "plain", &["handed_over"])?, 1);
    let who = lb.who(pair.snat)?;
    ensure!(who.len() == 1 && who[0].live, "{who:?}");
    assert_eq!(who[0].flow.client, pair.client.local_addr()?.to_string());
    pair.talk()?;
    drop(pair);
    for client_first in [true, false] {
        lives(&way, client_first)?;
    }
    wait_for(&lb, 0)?;
    assert_eq!(counted(&lb, "plain", &["handed_over"])?, 3);

    have_copied(&topology)?;
    for client_first in [true, false] {
        lives(&way, client_first)?;
    }
    let (pair, id) = way.open_told()?;
    assert_eq!(snat_of(&id)?, pair.snat);
    let who = lb.who(pair.snat)?;
    ensure!(who.len() == 1 && who[0].live, "{who:?}");
    drop(pair);
    wait_for(&lb, 0)?;
    assert_eq!(counted(&lb, "plain", &["copied", "options"])?, 3);
    assert_eq!(counted(&lb, "plain", &["handed_over"])?, 3);
    Ok(())
}

/// A client that says all at once, and closes; at whatever moment, of which some meet the hand-over.
#[privileged_test]
fn b11_a_client_may_speak_at_once() -> Result<()> {
    let topology = Topology::poc()?;
    let way = Way::new(topology.client(), PLAIN, &topology.nodes[0])?;
    let lb = Lb::start(&topology, &config(&topology, TOLD))?;
    let said: Vec<u8> = (0..=250).cycle().take(1000).collect();
    let mut late = 0;
    for round in 0..SPEAKING {
        let mut client = way.client.netns.inside(|| open(None, PLAIN))??;
        let start = Instant::now();
        while start.elapsed() < MOMENT * (round % MOMENTS) {
            std::hint::spin_loop();
        }
        client.write_all(&said)?;
        client.shutdown(Shutdown::Write)?;
        let (mut server, _) = poll::until("a connection at the backend", SOON, || {
            Ok(way.listener.accept().ok())
        })?;
        server.set_nonblocking(false)?;
        server.set_read_timeout(Some(SOON))?;
        let SocketAddr::V4(from) = client.local_addr()? else {
            bail!("an IPv6 client")
        };
        told(&server, from, PLAIN)?;
        let mut heard = Vec::new();
        server.read_to_end(&mut heard)?;
        ensure!(heard == said, "{} bytes, or others", heard.len());
        server.write_all(b"done")?;
        drop(server);
        hear(&client, b"done")?;
        hears_the_end(&client)?;
        late += u32::from(start.elapsed() > LATE);
    }
    let handed_over = counted(&lb, "plain", &["handed_over"])?;
    println!("{handed_over} of {SPEAKING} handed over; {late} were late");
    assert_eq!(counted(&lb, "plain", &["routed"])?, u64::from(SPEAKING));
    wait_for(&lb, 0)
}

/// Whenever a backend speaks, all of it arrives, and so does all that it hears behind its header.
#[privileged_test]
fn b11_a_backend_may_speak_before_it_is_told() -> Result<()> {
    let topology = Topology::poc()?;
    let way = Way::new(topology.client(), PLAIN, &topology.nodes[0])?;
    let lb = Lb::start(&topology, &config(&topology, TOLD))?;
    let listener = way.listener.try_clone()?;
    listener.set_nonblocking(false)?;
    thread::scope(|scope| {
        let serve = scope.spawn(move || -> Result<()> {
            for _ in 0..SPOKEN {
                let (mut server, _) = listener.accept()?;
                server.write_all(b"220 ready")?;
                let mut head = [0; 16];
                server.read_exact(&mut head)?;
                let length = u16::from_be_bytes([head[14], head[15]]);
                server.read_exact(&mut vec![0; usize::from(length)])?;
                hear(&server, b"helo")?;
                server.write_all(b"bye")?;
            }
            Ok(())
        });
        for round in 0..SPOKEN {
            let client = way.client.netns.inside(|| open(None, PLAIN))??;
            hear(&client, b"220 ready").with_context(|| format!("connection {round}"))?;
            (&client).write_all(b"helo")?;
            hear(&client, b"bye").with_context(|| format!("connection {round}"))?;
            hears_the_end(&client)?;
        }
        serve.join().map_err(|_| anyhow!("the server panicked"))?
    })?;
    let handed_over = counted(&lb, "plain", &["handed_over"])?;
    let spoke = counted(&lb, "plain", &["copied", "backend_spoke"])?;
    println!("{handed_over} of {SPOKEN} handed over, {spoke} spoke before");
    assert_eq!(handed_over + spoke, SPOKEN);
    Ok(())
}

/// Flows of before go on; a copied connection ends when the data plane has the listener again, and no other.
#[privileged_test]
fn b11_a_pool_may_begin_and_cease_to_want_headers() -> Result<()> {
    let topology = Topology::poc()?;
    let way = Way::new(topology.client(), PLAIN, &topology.nodes[0])?;
    let lb = Lb::start(&topology, &config(&topology, ""))?;
    let open_plain = || -> Result<Pair> {
        let pair = way.open()?;
        pair.talk()?;
        Ok(pair)
    };
    let before = open_plain()?;
    lb.reload(&config(&topology, TOLD))?;
    before.talk()?;
    let (handed_over, _) = way.open_told()?;
    handed_over.talk()?;
    have_copied(&topology)?;
    let (copied, _) = way.open_told()?;
    copied.talk()?;
    assert_eq!(counted(&lb, "plain", &["handed_over"])?, 1);
    assert_eq!(counted(&lb, "plain", &["copied", "options"])?, 1);
    lb.reload(&config(&topology, ""))?;
    copied.wait_for_resets(SOON)?;
    let after = open_plain()?;
    for pair in [&before, &handed_over, &after] {
        pair.talk()?;
    }
    lb.reload(&config(&topology, TOLD))?;
    for pair in [&before, &handed_over, &after] {
        pair.talk()?;
    }
    way.open_told()?.0.talk()?;
    Ok(())
}

/// With no backend in the pool a client is refused, as without the header.
#[privileged_test]
fn b11_without_a_backend_a_client_is_reset() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology, TOLD).pool("a", |pool| pool.without("backends", 0));
    let lb = Lb::start(&topology, &config)?;
    let client = topology.client().netns.inside(|| open(None, PLAIN))?;
    // It may be reset before it knows that it was connected.
    if let Ok(client) = client {
        wait_for_reset(&client, SOON)?;
    }
    assert_eq!(counted(&lb, "plain", &["refused", "no_backend"])?, 1);
    Ok(())
}

/// Clients, VIP and backends on one LAN.
#[privileged_test]
fn b11_a_backend_of_the_clients_lan_is_told() -> Result<()> {
    let topology = Topology::poc()?;
    let worker = &topology.workers[0];
    let way = Way::new(topology.client(), PLAIN, worker)?;
    let at = SocketAddrV4::new(worker.address, PORT);
    let config = Config::new()
        .network("tenant-a", |tenant| {
            let tenant = tenant.nic("tenant", TENANT_NIC, "192.168.203.0/24");
            tenant.push("snat", TENANT_SNAT)
        })
        .pool("a", |pool| pool.on("tenant-a").backends([at]).with(TOLD))
        .tcp_service_to("plain", PLAIN, "a")
        .set("timeouts.half_closed", "5s");
    let lb = Lb::start(&topology, &config)?;
    lives(&way, true)?;
    assert_eq!(counted(&lb, "plain", &["handed_over"])?, 1);
    Ok(())
}

/// The guests behind a bridge, on the host's own address.
const ON_HOST: &str = r#"
version: 1
networks:
  public: { role: uplink, interface: eth0, address: host, prefixes: [203.0.113.0/24] }
  guests:
    role: mgmt
    interface: virbr0
    address: host
    prefixes: [192.168.126.0/24]
    snat: [{ address: 192.168.126.1, ports: 10000-29999 }]
pools:
  a: { network: guests, proxy_protocol: v2, backends: ["192.168.126.11:31443"] }
services:
  plain: { network: public, listen: ["203.0.113.10:6443/tcp"], pool: a }
timeouts: { half_closed: 5s }
"#;

/// Where addresses are the host's own every connection is copied, as with names.
#[privileged_test]
fn b11_behind_the_hosts_own_address_a_backend_is_told() -> Result<()> {
    let one = OneIp::build()?;
    let to = SocketAddrV4::new(ADDRESS, 6443);
    let way = Way::new(&one.clients[0], to, &one.backends[0])?;
    let lb = Lb::start_with(&one, ON_HOST, &["--no-careful"])?;
    lives(&way, true)?;
    assert_eq!(counted(&lb, "plain", &["copied", "no_port"])?, 1);
    Ok(())
}
