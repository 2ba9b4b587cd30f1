//! The shared VIP, routed by SNI: FEATURES B1, B6, B7, B10, B16. Real TLS clients and servers.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpListener},
    path::Path,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::identity::Identity,
    topology::{self, Host, SNAT, Topology, VIP},
    traffic::{
        client::open,
        hello::{TLS12, hello as nameless, named},
    },
};

/// Where each node speaks TLS.
pub(crate) const PORT: u16 = 31443;
/// The shared VIP.
pub(crate) const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
/// The same on the port of an API server.
const SHARED_API: SocketAddrV4 = SocketAddrV4::new(VIP, 6443);
/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);
/// The alert of RFC 8446 section 6 for a name that no route has: a record of two bytes, fatal.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 1, 0, 2, 2, 112];

/// A topology whose first three nodes are `a.lab`, `b.lab` and `c.lab`.
pub(crate) struct Site<'t> {
    topology: &'t Topology,
    _servers: Vec<Process>,
}

/// The names, as the nodes bear them.
pub(crate) const NAMES: [&str; 3] = ["a.lab", "b.lab", "c.lab"];
/// Each of them to its pool.
pub(crate) const ROUTES: &str = "routes: [{ names: [a.lab], pool: a }, \
    { names: [b.lab, \"*.b.lab\"], pool: b }, { names: [c.lab], pool: c }]";

impl<'t> Site<'t> {
    pub(crate) fn new(topology: &'t Topology) -> Result<Self> {
        Ok(Self {
            topology,
            _servers: tls_servers(topology, &topology.nodes)?,
        })
    }

    /// What [`config`] says.
    pub(crate) fn config(&self, sni: impl Into<Keys>) -> Config {
        config(self.topology, sni)
    }

    /// The same, with this node for `d.lab`.
    fn with_d(&self, node: &Host) -> Config {
        self.config("routes: [{ names: [d.lab], pool: d }]")
            .mgmt_pool("d", [SocketAddrV4::new(node.address, PORT)])
    }

    /// Each name to its pool.
    fn names(&self) -> Config {
        self.config(ROUTES)
    }
}

/// The first three nodes as the pools `a`, `b` and `c`, and this as the key `sni` of the service.
pub(crate) fn config(topology: &Topology, sni: impl Into<Keys>) -> Config {
    let service = |service: Keys| service.on("tenant-a").tcp(SHARED);
    pools(Config::poc(), &topology.nodes)
        .service("shared", |shared| service(shared).set("sni", sni.into()))
}

/// The first three nodes as the pools `a`, `b` and `c`.
pub(super) fn pools(config: Config, nodes: &[Host]) -> Config {
    let pools = ["a", "b", "c"].iter().zip(nodes);
    pools.fold(config, |config, (pool, node)| {
        config.mgmt_pool(pool, [SocketAddrV4::new(node.address, PORT)])
    })
}

/// Makes the first three nodes speak TLS, each by its name.
pub(crate) fn tls_servers(site: &topology::Site, nodes: &[Host]) -> Result<Vec<Process>> {
    let mut servers = Vec::new();
    for (name, node) in NAMES.iter().zip(nodes) {
        let identity = Identity::create(site, name, &[])?;
        servers.push(tls_server(site, node, name, &identity)?);
    }
    for node in &nodes[..NAMES.len()] {
        let listens = || Ok(node.netns.run("ss -Hltn")?.contains(":31443").then_some(()));
        poll::until("the TLS server listens", SOON, listens)?;
    }
    Ok(servers)
}

fn tls_server(
    site: &topology::Site,
    node: &Host,
    name: &str,
    identity: &Identity,
) -> Result<Process> {
    let text = |path: &Path| path.to_str().context("a path").map(str::to_owned);
    let (key, certificate) = (text(identity.key())?, text(identity.certificate())?);
    let accept = format!("{}:{PORT}", node.address);
    let words = [
        "s_server",
        "-quiet",
        "-rev",
        "-accept",
        &accept,
        "-key",
        &key,
        "-cert",
        &certificate,
    ];
    Process::start(&node.netns.path(), site.dir(), name, "openssl", &words)
}

/// What `openssl s_client` says that asks for `name`.
pub(crate) fn ask(client: &Host, name: Option<&str>, words: &str) -> Result<String> {
    ask_at(client, SHARED, name, words)
}

/// The same at another address.
fn ask_at(client: &Host, to: SocketAddrV4, name: Option<&str>, words: &str) -> Result<String> {
    let name = match name {
        Some(name) => format!("-servername {name}"),
        None => "-noservername".to_owned(),
    };
    let command = format!("timeout 10 openssl s_client -connect {to} {name} {words}");
    let output = client.netns.try_run(&command)?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok(text)
}

/// Asserts that the certificate of `name` is shown to a client that asks for `asked`.
pub(crate) fn reaches(client: &Host, asked: Option<&str>, name: &str, words: &str) -> Result<()> {
    reaches_at(client, SHARED, asked, name, words)
}

/// The same at another address.
fn reaches_at(
    client: &Host,
    to: SocketAddrV4,
    asked: Option<&str>,
    name: &str,
    words: &str,
) -> Result<()> {
    let said = ask_at(client, to, asked, words)?;
    let is_there = said.contains(&format!("CN = {name}")) || said.contains(&format!("CN={name}"));
    ensure!(is_there, "{to} {asked:?} {words}: {said}");
    Ok(())
}

/// A ClientHello of openssl with these words, as it stands on the wire.
fn hello(client: &Host, words: &str) -> Result<Vec<u8>> {
    let listener = client
        .netns
        .inside(|| TcpListener::bind((client.address, 0)))??;
    let port = listener.local_addr()?.port();
    let address = client.address;
    let line = format!("timeout 10 openssl s_client -connect {address}:{port} {words}");
    thread::scope(|scope| {
        let openssl = scope.spawn(|| client.netns.try_run(&line));
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(SOON))?;
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        stream.read_exact(&mut body)?;
        drop(stream);
        let _output = openssl.join();
        Ok([&head[..], &body].concat())
    })
}

/// Connects to the shared VIP, sends the pieces one by one, and gives the first bytes that come back.
pub(crate) fn send(client: &Host, pieces: &[&[u8]]) -> Result<Vec<u8>> {
    let mut stream = client.netns.inside(|| open(None, SHARED))??;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SOON))?;
    for piece in pieces {
        // A connection that is refused at once is closed.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer)?;
    answer.truncate(read);
    Ok(answer)
}

/// B1, B2: three names, three certificates, on both ports of one address, by TLS 1.2 and 1.3, in any case and
/// under a wildcard.
#[privileged_test]
fn b1_three_names_have_three_certificates() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let config = site
        .names()
        .service("shared", |shared| shared.tcp(SHARED_API));
    let _lb = Lb::start(&topology, &config)?;
    let client = topology.client();
    for (to, version) in [
        (SHARED, "-tls1_2"),
        (SHARED, "-tls1_3"),
        (SHARED_API, "-tls1_2"),
        (SHARED_API, "-tls1_3"),
    ] {
        for name in NAMES {
            reaches_at(client, to, Some(name), name, version)?;
        }
        reaches_at(client, to, Some("A.Lab"), "a.lab", version)?;
        reaches_at(client, to, Some("x.y.b.lab"), "b.lab", version)?;
    }
    Ok(())
}

/// B6, B7: a client without a name, or with an unknown one, gets an alert, unless there is a pool for it.
#[privileged_test]
fn b7_who_asks_for_nobody_is_told_so() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.names())?;
    let client = topology.client();
    for name in [Some("d.lab"), Some("a.lab.evil.lab"), Some("b.lab.c"), None] {
        let said = ask(client, name, "")?;
        ensure!(said.contains("unrecognized name"), "{name:?}: {said}");
        ensure!(!said.contains("CN"), "{name:?}: {said}");
    }
    let hello = hello(client, "-servername d.lab")?;
    let answer = send(client, &[&hello])?;
    ensure!(answer == UNRECOGNIZED_NAME, "{answer:?}");
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: String = status.split_whitespace().collect();
    for piece in ["\"d.lab\":2", "\"no_name\":1", "\"no_match\":4"] {
        ensure!(status.contains(piece), "no {piece} in {status}");
    }
    let routes =
        "routes: [{ names: [a.lab], pool: a }], no_name: { pool: b }, no_match: { pool: c }";
    lb.reload(&site.config(routes))?;
    reaches(client, None, "b.lab", "")?;
    reaches(client, Some("d.lab"), "c.lab", "")?;
    reaches(client, Some("a.lab"), "a.lab", "")?;
    Ok(())
}

/// B6, B7: a connection that is closed gets no bytes, and ends at once.
#[privileged_test]
fn b7_who_is_closed_on_is_told_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let closes = "hello_timeout: 1m, no_name: close, no_match: close";
    let config = site.config(Keys::from(closes).with(ROUTES));
    let lb = Lb::start(&topology, &config)?;
    let client = topology.client();
    for (hello, reason) in [
        (named(b"d.lab"), "no_match"),
        (nameless(TLS12, &[]), "no_name"),
    ] {
        // The end of the connection, and not a reset, which would be an error here.
        let answer = send(client, &[&hello]).context(reason)?;
        assert_eq!(answer, [0_u8; 0], "{reason}");
        assert_eq!(counted_refusal(&lb, reason)?, 1, "{reason}");
    }
    reaches(client, Some("a.lab"), "a.lab", "")
}

/// A client that has connected before a change and sends its hello afterwards gets what is configured then.
#[privileged_test]
fn a_hello_in_the_middle_of_a_change_goes_by_the_change() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.names())?;
    let client = topology.client();
    let hello = hello(client, "-servername a.lab")?;
    let (half, rest) = hello.split_at(hello.len() / 2);
    let mut stream = client.netns.inside(|| open(None, SHARED))??;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(half)?;
    lb.reload(&config(&topology, "routes: [{ names: [b.lab], pool: b }]"))?;
    stream.write_all(rest)?;
    let mut answer = [0; UNRECOGNIZED_NAME.len()];
    stream.read_exact(&mut answer)?;
    ensure!(answer == UNRECOGNIZED_NAME, "{answer:?}");
    Ok(())
}

/// B10: a name is for the clients that it is for; for others it is unknown.
#[privileged_test]
fn b10_a_name_of_others_is_denied() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let client = topology.client();
    let routes = |from: &str| {
        let routes = "routes: [{ names: [a.lab], pool: a }, { names: ['*.lab'], pool: b }]";
        site.config(Keys::from(routes).set("routes.0.from", [from]))
    };
    let lb = Lb::start(&topology, &routes("192.168.203.0/24"))?;
    reaches(client, Some("a.lab"), "a.lab", "")?;
    lb.reload(&routes("192.168.203.200/32"))?;
    let said = ask(client, Some("a.lab"), "")?;
    ensure!(said.contains("unrecognized name"), "{said}");
    reaches(client, Some("c.lab"), "b.lab", "")?;
    ensure!(counted_refusal(&lb, "deny_tenant_name")? == 1);
    Ok(())
}

/// Bytes that are sent each way.
const BULK: usize = 20 << 20;

/// B16: every byte arrives as it was sent, both ways, whatever follows the hello; and a side that is
/// closed is closed at the other end, which may go on.
#[privileged_test]
fn b16_bytes_arrive_as_they_were_sent() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let node = &topology.nodes[3];
    let _lb = Lb::start(&topology, &site.with_d(node))?;
    let client = topology.client();
    let hello = hello(client, "-servername d.lab")?;
    let listener = node
        .netns
        .inside(|| TcpListener::bind((node.address, PORT)))??;
    let bulk: Vec<u8> = (0..=250).cycle().take(BULK).collect();
    let sent = [&hello[..], &bulk].concat();
    let mut stream = client.netns.inside(|| open(None, SHARED))??;
    let (received, answered) = thread::scope(|scope| {
        let server = scope.spawn(|| -> Result<Vec<u8>> {
            let (mut stream, source) = listener.accept()?;
            ensure!(source.ip() == SNAT, "seen from {source}");
            let mut received = Vec::new();
            stream.read_to_end(&mut received)?;
            stream.write_all(&received)?;
            Ok(received)
        });
        stream.write_all(&sent)?;
        stream.shutdown(Shutdown::Write)?;
        let mut answered = Vec::new();
        stream.read_to_end(&mut answered)?;
        let received = server
            .join()
            .map_err(|_| anyhow!("the server panicked"))??;
        anyhow::Ok((received, answered))
    })?;
    ensure!(
        received == sent,
        "{} bytes arrived, others than {}",
        received.len(),
        sent.len()
    );
    ensure!(
        answered == sent,
        "{} bytes came back, others than {}",
        answered.len(),
        sent.len()
    );
    Ok(())
}

/// A counter of the shared service in `lb status`.
pub(crate) fn counted(lb: &Lb<'_>, counter: &str) -> Result<u64> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let counted = status["shared"]["shared"][counter].as_u64();
    counted.with_context(|| format!("no {counter} in {status}"))
}

/// The same of its requests.
pub(crate) fn requests(lb: &Lb<'_>, counter: &str) -> Result<u64> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let counted = status["shared"]["shared"]["requests"][counter].as_u64();
    counted.with_context(|| format!("no {counter} of requests in {status}"))
}

/// Connections and requests that were refused for a reason.
pub(crate) fn counted_refusal(lb: &Lb<'_>, reason: &str) -> Result<u64> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let shared = &status["shared"]["shared"];
    let both = [&shared["refused"], &shared["requests"]["refused"]];
    Ok(both.iter().filter_map(|of| of[reason].as_u64()).sum())
}
