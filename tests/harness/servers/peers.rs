//! Real servers on the hosts of a topology: nginx with TLS, dnsmasq, and our own echo server, each on
//! the NodePort that the topology's configuration names. Every answer tells the host, and every
//! server keeps a record of the peers it saw.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    poll,
    process::{self, Process},
    servers::{echo::EchoServer, identity::Identity},
    topology::{
        API_NODE_PORT, APPS, APPS_HTTP_NODE_PORT, APPS_HTTPS_NODE_PORT, DNS_NODE_PORT,
        ECHO_NODE_PORT, Host, Site, Tenant, Topology, Trunk, VIP,
    },
};

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(20);

/// The name under which every node answers with its own name.
pub const DNS_NAME: &str = "node.lab";

/// What one host serves, and under which name it answers.
#[derive(Clone, Debug, Default)]
pub struct Serves {
    /// The name in every answer.
    pub name: String,
    /// The port of HTTP over TLS.
    pub https: Option<u16>,
    /// Whether HTTP/2 is spoken there as well.
    pub http2: bool,
    /// The port of plain HTTP.
    pub http: Option<u16>,
    /// The UDP port of DNS.
    pub dns: Option<u16>,
    /// The port of the echo server.
    pub echo: Option<u16>,
}

/// The servers of one topology, or of one tenant of it.
#[derive(Debug)]
pub struct Peers<'t> {
    nodes: Vec<NodeServers<'t>>,
    identity: Identity,
}

/// The servers of one host.
#[derive(Debug)]
pub struct NodeServers<'t> {
    /// The host they run on.
    pub node: &'t Host,
    serves: Serves,
    nginx: Option<Process>,
    dnsmasq: Option<Process>,
    echo: Option<EchoServer<'t>>,
    access_log: PathBuf,
    /// While it exists, nginx is not ready.
    not_ready: PathBuf,
}

impl<'t> Peers<'t> {
    /// Starts all servers on the nodes; each listens when this returns.
    ///
    /// # Errors
    ///
    /// When one does not start, with its last words.
    pub fn start(topology: &'t Topology) -> Result<Self> {
        let identity = Identity::create(topology, "api.lab", &[VIP])?;
        let node = |node: &'t Host| {
            let serves = Serves {
                name: node.name.to_owned(),
                https: Some(API_NODE_PORT),
                dns: Some(DNS_NODE_PORT),
                echo: Some(ECHO_NODE_PORT),
                ..Serves::default()
            };
            (node, serves)
        };
        Self::start_on(topology, identity, topology.nodes.iter().map(node))
    }

    /// Starts the control plane of a tenant on the nodes and what its own workers serve. They
    /// answer as `tenant-a/n1` and `tenant-a/a-w1`, with a certificate of the tenant.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_tenant(trunk: &'t Trunk, tenant: &'t Tenant) -> Result<Self> {
        let identity = Identity::create(trunk, tenant.name, &[VIP, APPS])?;
        let name = |host: &Host| format!("{}/{}", tenant.name, host.name);
        let nodes = trunk.nodes.iter().map(|node| {
            let serves = Serves {
                name: name(node),
                https: Some(tenant.ports.api),
                dns: Some(tenant.ports.dns),
                echo: Some(tenant.ports.echo),
                ..Serves::default()
            };
            (node, serves)
        });
        let workers = tenant.workers.iter().map(|worker| {
            let serves = Serves {
                name: name(worker),
                https: Some(APPS_HTTPS_NODE_PORT),
                http: Some(APPS_HTTP_NODE_PORT),
                ..Serves::default()
            };
            (worker, serves)
        });
        Self::start_on(trunk, identity, nodes.chain(workers))
    }

    /// Starts what each host serves.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_on(
        site: &Site,
        identity: Identity,
        hosts: impl IntoIterator<Item = (&'t Host, Serves)>,
    ) -> Result<Self> {
        let mut nodes = hosts
            .into_iter()
            .map(|(host, serves)| NodeServers::start(site, &identity, host, serves))
            .collect::<Result<Vec<_>>>()?;
        nodes
            .iter_mut()
            .try_for_each(NodeServers::wait_until_they_listen)?;
        Ok(Self { nodes, identity })
    }

    /// The certificate that nginx shows; it is its own authority and names the VIP.
    pub fn certificate(&self) -> &Path {
        self.identity.certificate()
    }

    /// The servers, host by host.
    pub fn nodes(&self) -> &[NodeServers<'t>] {
        &self.nodes
    }

    /// The servers of one host.
    ///
    /// # Errors
    ///
    /// When it serves nothing.
    pub fn on(&self, host: &Host) -> Result<&NodeServers<'t>> {
        let found = self.nodes.iter().find(|node| node.node.name == host.name);
        found.with_context(|| format!("{} serves nothing", host.name))
    }

    /// Every source address that any server of any host saw.
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

    /// What came to a connection whose secret it does not carry: nothing, or a serious fault.
    pub fn mixed_up(&self) -> Vec<String> {
        let echo = self.nodes.iter().filter_map(|node| node.echo.as_ref());
        echo.flat_map(EchoServer::mixed_up).collect()
    }
}

impl<'t> NodeServers<'t> {
    fn start(site: &Site, identity: &Identity, node: &'t Host, serves: Serves) -> Result<Self> {
        let folder = serves.name.replace('/', "-");
        let dir = site.dir().join(&folder);
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let netns = node.netns.path();
        let not_ready = dir.join("not-ready");
        let nginx = if serves.https.is_some() || serves.http.is_some() {
            let config = nginx_config(&serves, identity, &not_ready);
            let config = site.write(&format!("{folder}/nginx.conf"), &config)?;
            let (config, prefix) = (config.to_string_lossy(), dir.to_string_lossy());
            let args = ["-p", &*prefix, "-e", "stderr", "-c", &*config];
            Some(Process::start(&netns, &dir, "nginx", "nginx", &args)?)
        } else {
            None
        };
        let dnsmasq = match serves.dns {
            Some(port) => {
                let args = dnsmasq_args(node, &serves.name, port);
                Some(Process::start(&netns, &dir, "dnsmasq", "dnsmasq", &args)?)
            }
            None => None,
        };
        let echo = match serves.echo {
            Some(port) => {
                let address = SocketAddrV4::new(node.address, port);
                Some(EchoServer::start(&node.netns, address, &serves.name)?)
            }
            None => None,
        };
        let access_log = dir.join("access.log");
        Ok(Self {
            node,
            serves,
            nginx,
            dnsmasq,
            echo,
            access_log,
            not_ready,
        })
    }

    /// Whether `/readyz` says so from now on.
    ///
    /// # Errors
    ///
    /// When the file that nginx looks at cannot be changed.
    pub fn be_ready(&self, ready: bool) -> Result<()> {
        let changed = match ready {
            true => fs::remove_file(&self.not_ready),
            false => fs::write(&self.not_ready, []),
        };
        changed.with_context(|| format!("change {}", self.not_ready.display()))
    }

    /// The sources of HTTP requests.
    ///
    /// # Errors
    ///
    /// When the log has something else.
    pub fn http_sources(&self) -> Result<BTreeSet<Ipv4Addr>> {
        let sources = self.http_log()?.into_iter().map(|(peer, _)| *peer.ip());
        Ok(sources.collect())
    }

    /// HTTP requests in the order of their ends: `/version HTTP/2.0 TLSv1.3 api.lab`, the last being the
    /// name that was asked for in the handshake. Without TLS the last two are `-`.
    ///
    /// # Errors
    ///
    /// As for [`Self::http_sources`].
    pub fn http_requests(&self) -> Result<Vec<String>> {
        let requests = self.http_log()?.into_iter().map(|(_, request)| request);
        Ok(requests.collect())
    }

    fn http_log(&self) -> Result<Vec<(SocketAddrV4, String)>> {
        if self.nginx.is_none() {
            return Ok(Vec::new());
        }
        let log = fs::read_to_string(&self.access_log).context("read the access log of nginx")?;
        let read = |line: &str| {
            let (peer, request) = line.split_once(' ')?;
            Some((peer.parse().ok()?, request.to_owned()))
        };
        log.lines()
            .map(|line| read(line).with_context(|| format!("access log: {line:?}")))
            .collect()
    }

    /// The sources of DNS queries.
    ///
    /// # Errors
    ///
    /// When the log has something else.
    pub fn dns_sources(&self) -> Result<BTreeSet<Ipv4Addr>> {
        // `dnsmasq: query[TXT] node.lab from 10.32.96.50`
        let log = self
            .dnsmasq
            .as_ref()
            .map(Process::stderr)
            .unwrap_or_default();
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
        self.echo_seen().into_keys().collect()
    }

    /// How many connections the echo server accepted.
    pub fn echo_connections(&self) -> u64 {
        self.echo_seen().into_values().sum()
    }

    fn echo_seen(&self) -> BTreeMap<Ipv4Addr, u64> {
        self.echo.as_ref().map(EchoServer::seen).unwrap_or_default()
    }

    fn wait_until_they_listen(&mut self) -> Result<()> {
        let Self {
            node,
            serves,
            nginx,
            dnsmasq,
            ..
        } = self;
        let what = format!("the servers of {}", serves.name);
        let ready = poll::until(&what, START, || {
            for (program, process) in [("nginx", &mut *nginx), ("dnsmasq", &mut *dnsmasq)] {
                let Some(process) = process else { continue };
                if let Some(status) = process.ended()? {
                    let words = process::tail(&process.stderr());
                    anyhow::bail!("{program} ended: {status}: {words}");
                }
            }
            let sockets = node.netns.run("ss -Hlntu")?;
            let listens = |protocol: &str, port: Option<u16>| {
                port.is_none_or(|port| {
                    let port = format!(":{port} ");
                    sockets
                        .lines()
                        .any(|line| line.starts_with(protocol) && line.contains(&port))
                })
            };
            let all = listens("tcp", serves.https)
                && listens("tcp", serves.http)
                && listens("udp", serves.dns);
            Ok(all.then_some(()))
        });
        ready.with_context(|| format!("start the servers of {}", serves.name))
    }
}

/// One process in the foreground, and nothing outside the run's folder.
fn nginx_config(serves: &Serves, identity: &Identity, not_ready: &Path) -> String {
    let [key, certificate] = [identity.key(), identity.certificate()].map(|path| path.display());
    let answer = format!(
        r#"location / {{
      return 200 '{{"node":"{}","peer":"$remote_addr:$remote_port"}}\n';
    }}
    location = /readyz {{
      if (-f {}) {{ return 500 'not ok'; }}
      return 200 'ok';
    }}"#,
        serves.name,
        not_ready.display()
    );
    let http2 = if serves.http2 { "http2 " } else { "" };
    let https = serves.https.map(|port| {
        format!(
            "server {{
    listen {port} ssl {http2}backlog=2048;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    {answer}
  }}"
        )
    });
    let http = serves.http.map(|port| {
        format!(
            "server {{
    listen {port} backlog=2048;
    {answer}
  }}"
        )
    });
    let servers: Vec<String> = https.into_iter().chain(http).collect();
    format!(
        r#"daemon off;
master_process off;
user root;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
  log_format peer '$remote_addr:$remote_port $request_uri $server_protocol $ssl_protocol $ssl_server_name';
  access_log access.log peer;
  default_type application/json;
  client_body_temp_path body;
  proxy_temp_path proxy;
  fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  {}
}}
"#,
        servers.join("\n  ")
    )
}

/// Only the records named here; no configuration, hosts or resolver of the machine.
fn dnsmasq_args(host: &Host, name: &str, port: u16) -> Vec<String> {
    let address = host.address;
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
        format!("--port={port}"),
        format!("--listen-address={address}"),
        format!("--txt-record={DNS_NAME},{name}"),
        format!("--address=/api.lab/{VIP}"),
        format!("--address=/node-address.lab/{address}"),
    ])
    .collect()
}
