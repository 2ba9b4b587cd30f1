//! Backends that get the client of their connection, by the PROXY protocol: FEATURES B11. HAProxy and nginx
//! say what they have understood; [`super::proxy_out_plain`] looks at the bytes.

use std::{
    fs,
    net::SocketAddrV4,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::identity::Identity,
    topology::{Host, SNAT, Topology, VIP},
};

use crate::{
    health::verdicts::{self, FAST},
    proxy::{hosts::curl, relayed::have_copied},
};

/// Where HAProxy is, and nginx.
const PORT: u16 = 31443;
const HTTP_PORT: u16 = 31080;
/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);
/// How long checks go on.
const CHECKS: Duration = Duration::from_secs(2);

/// The first node as the pool `a`, at 443 by SNI and at 6443 for all who come; and its nginx
/// at 80 by the Host.
pub(crate) fn config(topology: &Topology) -> Config {
    let node = topology.nodes[0].address;
    let at = |port| [SocketAddrV4::new(node, port)];
    let vip = |port| SocketAddrV4::new(VIP, port);
    Config::poc()
        .mgmt_pool("a", at(PORT))
        .mgmt_pool("b", at(HTTP_PORT))
        .service("shared", |shared| {
            let shared = shared.on("tenant-a").tcp(vip(443));
            shared.with("sni: { routes: [{ names: [a.lab], pool: a }] }")
        })
        .service("plain", |plain| {
            plain.on("tenant-a").tcp(vip(6443)).pool("a")
        })
        .service("hosts", |hosts| {
            let hosts = hosts.on("tenant-a").tcp(vip(80));
            hosts.with("http: { routes: [{ names: [a.lab, b.lab], pool: b }] }")
        })
        .set("defaults.pool.proxy_protocol", "v2")
}

/// A counter of a service in `lb status`; its path is in the words.
pub(crate) fn counted(lb: &Lb<'_>, service: &str, path: &[&str]) -> Result<u64> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    let of_service = &status["shared"][service];
    let found = path.iter().fold(of_service, |found, key| &found[key]);
    Ok(found.as_u64().unwrap_or_default())
}

/// HAProxy on the first node: it speaks TLS, takes nothing without a header, and logs what that said.
pub(crate) fn haproxy(topology: &Topology) -> Result<Process> {
    let node = &topology.nodes[0];
    let identity = Identity::create(topology, "a.lab", &[])?;
    let both = [identity.certificate(), identity.key()].map(fs::read_to_string);
    let [certificate, key] = both;
    let pem = topology.write("a.lab.pem", &(certificate? + &key?))?;
    let text = format!(
        "global
  log stdout format raw daemon
  maxconn 1000
defaults
  mode http
  log global
  option dontlognull
  timeout connect 10s
  timeout client 10s
  timeout server 10s
frontend told
  bind {}:{PORT} accept-proxy ssl crt {}
  log-format \"told %ci:%cp %[dst]:%[dst_port] %[fc_pp_authority] %[fc_pp_unique_id]\"
  http-request return status 200 content-type text/plain string served
",
        node.address,
        pem.display()
    );
    let file = topology.write("haproxy.cfg", &text)?;
    let words = ["-db", "-f", file.to_str().context("a path")?];
    let process = Process::start(
        &node.netns.path(),
        topology.dir(),
        "haproxy",
        "haproxy",
        &words,
    )?;
    listens(node, PORT).with_context(|| process.stderr())?;
    Ok(process)
}

/// nginx on the first node: it speaks HTTP behind a header; the file that it logs to.
fn nginx(topology: &Topology) -> Result<(Process, std::path::PathBuf)> {
    let node = &topology.nodes[0];
    let dir = topology.dir().join("nginx");
    fs::create_dir_all(&dir)?;
    let log = dir.join("told");
    let text = format!(
        "daemon off; master_process off; user root; pid nginx.pid; error_log stderr warn; events {{}}
http {{
  log_format told '$proxy_protocol_addr:$proxy_protocol_port '
    '$proxy_protocol_server_addr:$proxy_protocol_server_port $connection $host';
  access_log {} told; default_type text/plain; client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {{ listen {}:{HTTP_PORT} proxy_protocol; location / {{ return 200 'served'; }} }}
}}
",
        log.display(),
        node.address
    );
    let file = topology.write("nginx/nginx.conf", &text)?;
    let (file, prefix) = (file.to_string_lossy(), dir.to_string_lossy());
    let words = ["-p", &*prefix, "-e", "stderr", "-c", &*file];
    let process = Process::start(&node.netns.path(), &dir, "nginx", "nginx", &words)?;
    listens(node, HTTP_PORT).with_context(|| process.stderr())?;
    Ok((process, log))
}

fn listens(node: &Host, port: u16) -> Result<()> {
    let port = format!(":{port} ");
    poll::until("the server listens", SOON, || {
        Ok(node.netns.run("ss -Hltn")?.contains(&port).then_some(()))
    })
}

/// Gets a page by TLS; the address and port that the client had.
fn get(topology: &Topology, port: u16) -> Result<SocketAddrV4> {
    let words = format!(
        "-k --resolve a.lab:{port}:{VIP} -w ;%{{local_ip}}:%{{local_port}} https://a.lab:{port}/"
    );
    let said = curl(topology.client(), &words)?;
    let from = said.strip_prefix("served;");
    Ok(from.with_context(|| said.clone())?.parse()?)
}

/// What HAProxy logs of a connection that came from this client: the id is left.
pub(crate) fn logged(
    haproxy: &Process,
    client: SocketAddrV4,
    vip: &str,
    name: &str,
) -> Result<String> {
    let start = format!("told {client} {vip} {name} ");
    let line = poll::until("a line in the log", SOON, || {
        let text = haproxy.stdout();
        let mut ids = text.lines().filter_map(|line| line.strip_prefix(&start));
        Ok(ids.next().map(str::to_owned))
    });
    line.with_context(|| format!("no {start} in {}", haproxy.stdout()))
}

/// Asserts that an id has the time of now; the address that the backend has seen.
pub(crate) fn snat_of(id: &str) -> Result<SocketAddrV4> {
    let (snat, began) = id.split_once('-').with_context(|| id.to_owned())?;
    let began = Duration::from_millis(began.parse()?);
    let age = SystemTime::now().duration_since(UNIX_EPOCH + began)?;
    ensure!(age < 2 * SOON, "{id} is {age:?} old");
    let snat: SocketAddrV4 = snat.parse()?;
    ensure!(*snat.ip() == SNAT, "{id}");
    Ok(snat)
}

/// B11: HAProxy sees the client and the VIP, the name that was asked for and the id of the flow, and TLS comes
/// behind that. XDP opens the connections of the shared VIP; those of the plain one are handed over or, where the client has no
/// timestamps, copied.
#[privileged_test]
fn b11_haproxy_is_told_whose_connection_it_has() -> Result<()> {
    let topology = Topology::poc()?;
    let haproxy = haproxy(&topology)?;
    let lb = Lb::start(&topology, &config(&topology))?;
    let ways = [("shared", 443, "a.lab"), ("plain", 6443, "-")];
    for (_, port, name) in ways {
        let client = get(&topology, port)?;
        ensure!(*client.ip() == topology.client().address, "{client}");
        let id = logged(&haproxy, client, &format!("{VIP}:{port}"), name)?;
        let who = lb.who(snat_of(&id)?)?;
        ensure!(
            who.iter().any(|who| who.flow.client == client.to_string()),
            "{id}: {who:?}"
        );
    }
    assert_eq!(counted(&lb, "shared", &["bound"])?, 1);
    assert_eq!(counted(&lb, "plain", &["handed_over"])?, 1);
    have_copied(&topology)?;
    for (_, port, name) in ways {
        let client = get(&topology, port)?;
        let id = logged(&haproxy, client, &format!("{VIP}:{port}"), name)?;
        snat_of(&id)?;
    }
    assert_eq!(counted(&lb, "shared", &["bound"])?, 2);
    assert_eq!(counted(&lb, "shared", &["routed"])?, 0);
    assert_eq!(counted(&lb, "plain", &["copied", "options"])?, 1);
    assert_eq!(counted(&lb, "plain", &["routed"])?, 2);
    Ok(())
}

/// B11: the shard behind the routes of a cluster gets the client, the VIP and the requested name.
#[privileged_test]
fn b11_the_shard_of_a_cluster_gets_the_client() -> Result<()> {
    let topology = Topology::poc()?;
    let haproxy = haproxy(&topology)?;
    let node = topology.nodes[0].address;
    let config = Config::poc()
        .entry("nodes", "hub", |hub| {
            hub.set("network", "mgmt").set("addresses", [node])
        })
        .entry("clusters", "c", |cluster| {
            cluster
                .with("network: tenant-a, nodes: hub")
                .with("oauth: { publish: Route, hostname: a.lab }")
                .set("oauth.vip", VIP)
                .set("routes.https", PORT)
                .set("routes.proxy_protocol", "v2")
        });
    let lb = Lb::start(&topology, &config)?;
    let client = get(&topology, 443)?;
    ensure!(*client.ip() == topology.client().address, "{client}");
    let id = logged(&haproxy, client, &format!("{VIP}:443"), "a.lab")?;
    snat_of(&id)?;
    let bound = counted(&lb, "c-routes-https", &["bound"])?;
    assert_eq!(bound, 1);
    Ok(())
}

/// B11: requests of one client for two names come on two connections, and each begins with his header.
#[privileged_test]
fn b11_nginx_is_told_whose_requests_it_has() -> Result<()> {
    let topology = Topology::poc()?;
    let (_nginx, log) = nginx(&topology)?;
    let _lb = Lb::start(&topology, &config(&topology))?;
    for client in &topology.clients {
        let _fresh: std::io::Result<()> = fs::write(&log, "");
        let ask = |host: &str| format!("-H Host:{host} http://{VIP}/");
        let words = format!(
            "{} --next -s -S {} --next -s -S -w ;%{{local_ip}}:%{{local_port}} {}",
            ask("a.lab"),
            ask("a.lab"),
            ask("b.lab")
        );
        let said = curl(client, &words)?;
        let from = said.strip_prefix("servedservedserved;");
        let from = from.with_context(|| said.clone())?;
        let lines = poll::until("three lines in the log", SOON, || {
            let text = fs::read_to_string(&log)?;
            Ok((text.lines().count() == 3).then_some(text))
        })?;
        let lines: Vec<Vec<&str>> = lines
            .lines()
            .map(|line| line.split(' ').collect())
            .collect();
        for (line, host) in lines.iter().zip(["a.lab", "a.lab", "b.lab"]) {
            assert_eq!(
                [line[0], line[1], line[3]],
                [from, "192.168.203.110:80", host]
            );
        }
        ensure!(
            lines[0][2] == lines[1][2] && lines[1][2] != lines[2][2],
            "{lines:?}"
        );
    }
    Ok(())
}

/// B11: a check of a backend that takes nothing without a header says that it has no client, and is no error there.
#[privileged_test]
fn b11_checks_are_nobodys() -> Result<()> {
    let topology = Topology::poc()?;
    let mut log = String::new();
    for kind in ["https: {}", "tls: {}", "tcp: {}"] {
        let haproxy = haproxy(&topology)?;
        let health = Keys::from(kind).with(FAST);
        let config = config(&topology).pool("a", |pool| pool.set("health", health));
        let lb = Lb::start(&topology, &config)?;
        verdicts::wait_for(&lb, &["up", "up"], SOON).with_context(|| kind.to_owned())?;
        std::thread::sleep(CHECKS);
        verdicts::wait_for(&lb, &["up", "up"], SOON).with_context(|| kind.to_owned())?;
        get(&topology, 443)?;
        log.push_str(&haproxy.stdout());
        // Which may meet a check in the middle of its handshake: that is an error there.
        lb.down()?;
    }
    let us = format!("told {SNAT}:");
    let other = |line: &&str| !line.starts_with("told ");
    ensure!(log.lines().any(|line| line.starts_with(&us)), "{log}");
    ensure!(!log.lines().any(|line| other(&line)), "{log}");
    Ok(())
}
