//! The shared VIP, routed by the Host of each request: FEATURES B3. nginx and curl, and raw sockets where
//! these are too polite.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::{self, Host, SNAT, Topology, VIP},
    traffic::client::open,
};

/// Where each node speaks HTTP.
pub(crate) const PORT: u16 = 31080;
/// The shared VIP.
pub(crate) const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 80);
/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);
/// Bytes that are sent each way.
const BULK: usize = 10 << 20;

/// Where each name goes, and `*.all.lab` to all.
const ROUTES: &str = "routes: [{ names: [a.lab], pool: a }, { names: [b.lab], pool: b }, \
    { names: [c.lab], redirect: https }, { names: [d.lab], pool: d }, { names: [\"*.all.lab\"], pool: all }]";

/// A topology whose first three nodes are `a`, `b` and `c`. They answer with their names, the Host, the
/// client that a request was forwarded for, and the peer that they see.
pub(crate) struct Site<'t> {
    topology: &'t Topology,
    _servers: Vec<Process>,
}

impl<'t> Site<'t> {
    pub(crate) fn new(topology: &'t Topology) -> Result<Self> {
        Ok(Self {
            topology,
            _servers: http_servers(topology, &topology.nodes)?,
        })
    }

    /// The nodes as the pools `a` to `d`, the first three as `all`, and this as the key `http` of the
    /// service, which listens here.
    pub(crate) fn config_on(&self, listen: SocketAddrV4, http: impl Into<Keys>) -> Config {
        let nodes = self.topology.nodes.iter();
        let nodes: Vec<_> = nodes
            .map(|node| SocketAddrV4::new(node.address, PORT))
            .collect();
        let all = Config::poc().mgmt_pool("all", &nodes[..3]);
        let pools = ["a", "b", "c", "d"].iter().zip(&nodes);
        let config = pools.fold(all, |config, (pool, node)| config.mgmt_pool(pool, [node]));
        let service = |service: Keys| service.on("tenant-a").tcp(listen);
        config.service("shared", |shared| service(shared).set("http", http.into()))
    }

    pub(super) fn config(&self, more: &str) -> Config {
        self.config_on(SHARED, Keys::from(ROUTES).with(more))
    }

    /// A server of our own on the fourth node, which is `d.lab`.
    pub(crate) fn listen(&self) -> Result<TcpListener> {
        let node = &self.topology.nodes[3];
        let listener = node
            .netns
            .inside(|| TcpListener::bind((node.address, PORT)))??;
        Ok(listener)
    }
}

/// Makes the first three nodes speak HTTP, as `a`, `b` and `c`.
pub(crate) fn http_servers(site: &topology::Site, nodes: &[Host]) -> Result<Vec<Process>> {
    let mut servers = Vec::new();
    for (name, node) in ["a", "b", "c"].into_iter().zip(nodes) {
        servers.push(nginx(site, node, name)?);
        let listens = || Ok(node.netns.run("ss -Hltn")?.contains(":31080").then_some(()));
        poll::until("nginx listens", SOON, listens)?;
    }
    Ok(servers)
}

fn nginx(site: &topology::Site, node: &Host, name: &str) -> Result<Process> {
    let dir = site.dir().join(name);
    fs::create_dir_all(&dir)?;
    let address = node.address;
    let config = format!(
        "daemon off; master_process off; user root; pid nginx.pid; error_log stderr warn; events {{}}
http {{
  log_format short '$request_method $request_uri $status $body_bytes_sent'; access_log access.log short;
  default_type text/plain; client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {{
    listen {address}:{PORT};
    location / {{ return 200 '{name} $host $http_x_forwarded_for $remote_addr;'; }}
  }}
}}
"
    );
    let config = site.write(&format!("{name}/nginx.conf"), &config)?;
    let (config, prefix) = (config.to_string_lossy(), dir.to_string_lossy());
    let words = ["-p", &*prefix, "-e", "stderr", "-c", &*config];
    Process::start(&node.netns.path(), &dir, "nginx", "nginx", &words)
}

/// What curl prints.
pub(crate) fn curl(client: &Host, words: &str) -> Result<String> {
    let output = client.netns.try_run(&format!("curl -s -S -m 20 {words}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "curl {words}: {said} {error}");
    Ok(said)
}

pub(crate) fn connect(client: &Host) -> Result<TcpStream> {
    let stream = client.netns.inside(|| open(None, SHARED))??;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SOON))?;
    Ok(stream)
}

/// All that comes back for these bytes until the other end closes.
pub(crate) fn send(client: &Host, bytes: &str) -> Result<String> {
    let mut stream = connect(client)?;
    stream.write_all(bytes.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The head that comes, and nothing that follows it.
fn head(stream: &mut TcpStream) -> Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head)?.to_ascii_lowercase())
}

/// B3: two Hosts of one connection reach two nodes, which get the client's address.
#[privileged_test]
fn b3_two_hosts_of_one_connection_reach_two_nodes() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.config(""))?;
    let client = topology.client();
    let one = |host: &str| format!("-H Host:{host} -w %{{num_connects}} http://{SHARED}/");
    let said = curl(
        client,
        &format!("{} --next -s -S {}", one("a.lab"), one("B.lab:80")),
    )?;
    let address = client.address;
    let expected = format!("a a.lab {address} {SNAT};1b b.lab {address} {SNAT};0");
    ensure!(said == expected, "{said}");
    let forwarded = format!("-H X-Forwarded-For:10.9.8.7 -H Host:a.lab http://{SHARED}/");
    let said = curl(client, &forwarded)?;
    ensure!(
        said == format!("a a.lab 10.9.8.7, {address} {SNAT};"),
        "{said}"
    );
    // By an absolute form, as to a proxy.
    let said = curl(
        client,
        &format!("-x http://{SHARED} -H Host:a.lab http://b.lab/"),
    )?;
    ensure!(said.starts_with("b b.lab "), "{said}");
    let mut stream = connect(client)?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.lab\r\n\r\n")?;
    head(&mut stream)?;
    let flows = lb.tell(&["flows", "-o", "json"])?.done()?;
    ensure!(
        flows.contains("\"a.lab\"") && !flows.contains("\"b.lab\""),
        "{flows}"
    );
    Ok(())
}

/// B3: a request for an unknown Host, or for what is no Host, is answered with an error.
#[privileged_test]
fn b3_who_asks_for_nobody_is_told_so() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let more = "header_timeout: 500ms, max_header: 4096";
    let lb = Lb::start(&topology, &site.config(more))?;
    let client = topology.client();
    let status = |words: &str| {
        let url = format!("http://{SHARED}/x?y=1");
        curl(
            client,
            &format!("-o /dev/null -w %{{http_code}}%{{redirect_url}} {words} {url}"),
        )
    };
    for (words, expected) in [
        ("-H Host:a..lab", "400"),
        ("-H Host:", "400"),
        ("-H Host:a.lab,b.lab", "400"),
        ("-H Host:e.lab", "421"),
        ("", "421"),
        ("-H Host:c.lab", "308https://c.lab/x?y=1"),
        // No socket listens there.
        ("-H Host:d.lab", "502"),
        ("-H Host:a.lab", "200"),
    ] {
        let found = status(words)?;
        ensure!(found == expected, "{words}: {found}");
    }
    let big = format!("-H Host:a.lab -H X:{}", "x".repeat(5000));
    ensure!(status(&big)? == "431");
    let start = Instant::now();
    let answer = send(client, "GET / HTTP/1.1\r\nHost: a.l")?;
    let took = start.elapsed();
    ensure!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    ensure!(
        took >= Duration::from_millis(450) && took < Duration::from_secs(3),
        "{took:?}"
    );
    let told = lb.tell(&["status", "-o", "json"])?.done()?;
    let told: serde_json::Value = serde_json::from_str(&told)?;
    let shared = &told["shared"]["shared"];
    let requests = serde_json::json!({
        "routed": 1,
        "refused": { "bad_request": 3, "no_match": 2, "unreachable": 1 },
    });
    assert_eq!(shared["requests"], requests);
    // Those that had no request.
    let connections = serde_json::json!({ "header_too_large": 1, "timeout": 1 });
    assert_eq!(shared["refused"], connections);
    assert_eq!(
        (&shared["accepted"], &shared["routed"]),
        (&10.into(), &1.into())
    );
    let table = lb.tell(&["status"])?.done()?;
    let words: Vec<&str> = table.split_whitespace().collect();
    let words = words.join(" ");
    for row in [
        "ECH REFUSED WHY COPIED WHY REFUSED shared 0 10 1 0 0 0 0 2 - header_too_large 1, timeout 1 ",
        "REQUESTS TO ROUTED REFUSED WHY REFUSED shared 1 6 bad_request 3, no_match 2, unreachable 1 ",
    ] {
        ensure!(words.contains(row), "no {row:?} in {table}");
    }
    Ok(())
}

/// B3: with `balance: host` a Host has one node for all clients, and Hosts have several.
#[privileged_test]
fn b3_a_host_has_one_node() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.config("balance: host"))?;
    let nodes = |host: &str| -> Result<Vec<char>> {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut nodes = Vec::new();
        for client in topology.clients.iter().cycle().take(30) {
            let answer = send(client, &request)?;
            let body = answer
                .split("\r\n\r\n")
                .nth(1)
                .and_then(|body| body.chars().next());
            nodes.push(body.with_context(|| format!("{host}: {answer}"))?);
        }
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    };
    let mut all = Vec::new();
    for host in ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"] {
        let found = nodes(&format!("{host}.all.lab"))?;
        ensure!(found.len() == 1, "{host}: {found:?}");
        all.extend(found);
    }
    all.sort_unstable();
    all.dedup();
    ensure!(all == ['a', 'b', 'c'], "{all:?}");
    lb.reload(&site.config(""))?;
    let found = nodes("h1.all.lab")?;
    ensure!(found == ['a', 'b', 'c'], "{found:?}");
    Ok(())
}

/// B3: bodies arrive as they were sent, both ways, also of a client that waits until it may send.
#[privileged_test]
fn b3_bodies_arrive_as_they_were_sent() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let _lb = Lb::start(&topology, &site.config(""))?;
    let listener = site.listen()?;
    let bulk: Vec<u8> = (0..=250).cycle().take(BULK).collect();
    let [sent, back] = ["sent", "back"].map(|name| topology.dir().join(name));
    fs::write(&sent, &bulk)?;
    let words = format!(
        "-H Host:d.lab -H Expect:100-continue -o {} --data-binary @{} http://{SHARED}/",
        back.display(),
        sent.display()
    );
    thread::scope(|scope| {
        let server = scope.spawn(|| -> Result<Vec<u8>> {
            let (mut stream, _) = listener.accept()?;
            let head = head(&mut stream)?;
            ensure!(
                head.contains(&format!("content-length: {BULK}\r\n")),
                "{head}"
            );
            let mut received = vec![0; BULK];
            stream.read_exact(&mut received)?;
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {BULK}\r\n\r\n")?;
            stream.write_all(&received)?;
            Ok(received)
        });
        curl(topology.client(), &words)?;
        let received = server
            .join()
            .map_err(|_| anyhow!("the server panicked"))??;
        ensure!(received == bulk, "other bytes arrived");
        anyhow::Ok(())
    })?;
    ensure!(fs::read(&back)? == bulk, "other bytes came back");
    Ok(())
}

/// B3: a connection that turns into a WebSocket carries bytes both ways.
#[privileged_test]
fn b3_a_connection_becomes_a_websocket() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.config(""))?;
    let listener = site.listen()?;
    let mut stream = connect(topology.client())?;
    thread::scope(|scope| {
        let server = scope.spawn(|| -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            let head = head(&mut stream)?;
            ensure!(head.contains("upgrade: websocket\r\n"), "{head}");
            stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello",
            )?;
            let mut echo = [0; 64];
            loop {
                match stream.read(&mut echo)? {
                    0 => return Ok(()),
                    bytes => stream.write_all(&echo[..bytes])?,
                }
            }
        });
        stream.write_all(
            b"GET /chat HTTP/1.1\r\nHost: d.lab\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        )?;
        let head = head(&mut stream)?;
        ensure!(head.starts_with("http/1.1 101 "), "{head}");
        let hears = |mut stream: &TcpStream, expected: &[u8]| -> Result<()> {
            let mut heard = vec![0; expected.len()];
            stream.read_exact(&mut heard)?;
            ensure!(heard == expected, "{heard:?}");
            Ok(())
        };
        hears(&stream, b"hello")?;
        stream.write_all(b"over and over")?;
        hears(&stream, b"over and over")?;
        let flows = lb.tell(&["flows", "-o", "json"])?.done()?;
        ensure!(flows.contains("\"d.lab\""), "{flows}");
        drop(stream);
        server.join().map_err(|_| anyhow!("the server panicked"))?
    })
}

/// B3: what is taken out of the file ends, with a reset for each client that is connected.
#[privileged_test]
fn b3_a_vip_that_is_removed_resets_its_clients() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let lb = Lb::start(&topology, &site.config(""))?;
    let mut stream = connect(topology.client())?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.lab\r\n\r\n")?;
    head(&mut stream)?;
    lb.reload(&site.config_on(SocketAddrV4::new(VIP, 81), ROUTES))?;
    let mut rest = Vec::new();
    let end = stream.read_to_end(&mut rest).map_err(|error| error.kind());
    ensure!(end == Err(ErrorKind::ConnectionReset), "{end:?}");
    Ok(())
}
