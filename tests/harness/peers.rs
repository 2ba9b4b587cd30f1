//! Real servers on the hub nodes: nginx with TLS, dnsmasq, and our own echo server, each on the
//! NodePort that `config/lab.yaml` names. Every answer tells the node, and every server keeps a
//! record of the peers it saw.

use std::{
    collections::BTreeSet, fs, net::Ipv4Addr, path::PathBuf, process::Command, time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    echo::EchoServer,
    poll,
    process::{self, Process},
    topology::{API_NODE_PORT, DNS_NODE_PORT, Host, Topology, VIP},
};

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(20);

/// The name under which every node answers with its own name.
pub const DNS_NAME: &str = "node.lab";

/// The servers of all nodes.
#[derive(Debug)]
pub struct Peers<'t> {
    nodes: Vec<NodeServers<'t>>,
    certificate: PathBuf,
}

/// The servers of one node.
#[derive(Debug)]
pub struct NodeServers<'t> {
    /// The node they run on.
    pub node: &'t Host,
    nginx: Process,
    dnsmasq: Process,
    echo: EchoServer<'t>,
    access_log: PathBuf,
}

impl<'t> Peers<'t> {
    /// Starts all servers; each listens when this returns.
    ///
    /// # Errors
    ///
    /// When one does not start, with its last words.
    pub fn start(topology: &'t Topology) -> Result<Self> {
        let (key, certificate) = (
            topology.dir().join("tls.key"),
            topology.dir().join("tls.crt"),
        );
        process::succeed(
            Command::new("openssl")
                .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1".split(' '))
                .args("-nodes -days 2 -subj /CN=api.lab -addext".split(' '))
                .arg(format!("subjectAltName=DNS:api.lab,IP:{VIP}"))
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&certificate),
        )?;
        let mut nodes = topology
            .nodes
            .iter()
            .map(|node| NodeServers::start(topology, node))
            .collect::<Result<Vec<_>>>()?;
        nodes
            .iter_mut()
            .try_for_each(NodeServers::wait_until_they_listen)?;
        Ok(Self { nodes, certificate })
    }

    /// The certificate that nginx shows; it is its own authority and names the VIP.
    pub fn certificate(&self) -> &PathBuf {
        &self.certificate
    }

    /// The servers, node by node.
    pub fn nodes(&self) -> &[NodeServers<'t>] {
        &self.nodes
    }

    /// Every source address that any server of any node saw.
    ///
    /// # Errors
    ///
    /// When a log has an address that is none.
    pub fn sources(&self) -> Result<BTreeSet<Ipv4Addr>> {
        let mut all = BTreeSet::new();
        for node in &self.nodes {
            all.extend(node.http_sources()?);
            all.extend(node.dns_sources()?);
            all.extend(node.echo_sources());
        }
        Ok(all)
    }
}

impl<'t> NodeServers<'t> {
    fn start(topology: &'t Topology, node: &'t Host) -> Result<Self> {
        let dir = topology.dir().join(node.name);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let config = topology.write(&format!("{}/nginx.conf", node.name), &nginx_config(node))?;
        let (config, prefix) = (config.to_string_lossy(), dir.to_string_lossy());
        let nginx = Process::start(
            &node.netns.path(),
            &dir,
            "nginx",
            "nginx",
            &["-p", &*prefix, "-e", "stderr", "-c", &*config],
        )?;
        let dnsmasq = Process::start(
            &node.netns.path(),
            &dir,
            "dnsmasq",
            "dnsmasq",
            &dnsmasq_args(node),
        )?;
        let echo = EchoServer::start(node)?;
        let access_log = dir.join("access.log");
        Ok(Self {
            node,
            nginx,
            dnsmasq,
            echo,
            access_log,
        })
    }

    /// The sources of HTTP requests.
    ///
    /// # Errors
    ///
    /// When the log has something else.
    pub fn http_sources(&self) -> Result<BTreeSet<Ipv4Addr>> {
        let log = fs::read_to_string(&self.access_log).context("read the access log of nginx")?;
        log.lines()
            .map(|line| {
                let address = line.split(' ').next().unwrap_or_default();
                address
                    .parse()
                    .with_context(|| format!("access log: {line:?}"))
            })
            .collect()
    }

    /// The sources of DNS queries.
    ///
    /// # Errors
    ///
    /// When the log has something else.
    pub fn dns_sources(&self) -> Result<BTreeSet<Ipv4Addr>> {
        // `dnsmasq: query[TXT] node.lab from 10.32.96.50`
        let log = self.dnsmasq.stderr();
        log.lines()
            .filter(|line| line.contains("query["))
            .map(|line| {
                let address = line.rsplit(" from ").next().unwrap_or_default().trim();
                address
                    .parse()
                    .with_context(|| format!("log of dnsmasq: {line:?}"))
            })
            .collect()
    }

    /// The sources of connections to the echo server.
    pub fn echo_sources(&self) -> BTreeSet<Ipv4Addr> {
        self.echo.seen().into_keys().collect()
    }

    /// How many connections the echo server accepted.
    pub fn echo_connections(&self) -> u64 {
        self.echo.seen().into_values().sum()
    }

    fn wait_until_they_listen(&mut self) -> Result<()> {
        let node = self.node;
        let what = format!("the servers of {}", node.name);
        let ready = poll::until(&what, START, || {
            if let Some(status) = self.nginx.ended()? {
                anyhow::bail!(
                    "nginx ended: {status}: {}",
                    process::tail(&self.nginx.stderr())
                );
            }
            if let Some(status) = self.dnsmasq.ended()? {
                anyhow::bail!(
                    "dnsmasq ended: {status}: {}",
                    process::tail(&self.dnsmasq.stderr())
                );
            }
            let sockets = node.netns.run("ss -Hlntu")?;
            let listens = |protocol: &str, port: u16| {
                let port = format!(":{port} ");
                sockets
                    .lines()
                    .any(|line| line.starts_with(protocol) && line.contains(&port))
            };
            let all = listens("tcp", API_NODE_PORT) && listens("udp", DNS_NODE_PORT);
            Ok(all.then_some(()))
        });
        ready.with_context(|| format!("start the servers of {}", node.name))
    }
}

/// One process in the foreground, TLS with the certificate of the run, and nothing outside the
/// run's folder.
fn nginx_config(node: &Host) -> String {
    let Host {
        name,
        address,
        netns: _,
    } = node;
    format!(
        r#"daemon off;
master_process off;
user root;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
  log_format peer '$remote_addr $remote_port $request_uri';
  access_log access.log peer;
  default_type application/json;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {{
    listen {address}:{API_NODE_PORT} ssl backlog=2048;
    ssl_certificate ../tls.crt;
    ssl_certificate_key ../tls.key;
    location / {{
      return 200 '{{"node":"{name}","peer":"$remote_addr:$remote_port"}}\n';
    }}
  }}
}}
"#
    )
}

/// Only the records named here; no configuration, hosts or resolver of the machine.
fn dnsmasq_args(node: &Host) -> Vec<String> {
    let Host {
        name,
        address,
        netns: _,
    } = node;
    [
        "--no-daemon",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
        "--user=root",
        "--pid-file=",
        "--log-queries",
        "--log-facility=-",
        "--local-ttl=1",
        "--local=/lab/",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([
        format!("--port={DNS_NODE_PORT}"),
        format!("--listen-address={address}"),
        format!("--txt-record={DNS_NAME},{name}"),
        format!("--address=/api.lab/{VIP}"),
        format!("--address=/node-address.lab/{address}"),
    ])
    .collect()
}
