//! The lab of `config/poc.yaml`: the three load balancers of one tenant, as one file.

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Write},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_tests::{
    fault::interrupt::Interrupt,
    product::lb::{Lb, binary},
    servers::{
        identity::Identity,
        peers::{Peers, Serves},
    },
    topology::{
        API, API_NODE_PORT, APPS_HTTP, APPS_HTTP_NODE_PORT, APPS_HTTPS, APPS_HTTPS_NODE_PORT, Host,
        POC_CONFIG, SNAT, TENANT_SNAT, Tenant, Trunk, VIP,
    },
    traffic::programs::{self, ApiAnswer},
};

use crate::{
    alert::alert,
    table::{Count, Row, Seen, join, row, table},
};

/// The address of the routes.
const ROUTES: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 111);
const ROUTES_HTTPS: SocketAddrV4 = SocketAddrV4::new(ROUTES, 443);
const ROUTES_HTTP: SocketAddrV4 = SocketAddrV4::new(ROUTES, 80);
/// The router shard on the nodes.
const SHARD_HTTPS_NODE_PORT: u16 = 32488;
const SHARD_HTTP_NODE_PORT: u16 = 32460;

/// The names of the routes.
const NAMES: [&str; 3] = [
    "oauth.tenant-a.example.com",
    "konnectivity.tenant-a.example.com",
    "ignition.tenant-a.example.com",
];
/// The certificate of the shard is for all of them.
const SHARD_NAME: &str = "*.tenant-a.example.com";
const APP: &str = "console.apps.tenant-a.example.com";
/// A name that the shard would answer for, too.
const FOREIGN: &str = "oauth.tenant-b.example.com";

/// Requests of each host.
const REQUESTS: usize = 4;
/// How long a client waits that gets no answer.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What is behind each of the three; an answer begins with its name.
struct Servers<'t> {
    api: Peers<'t>,
    shard: Peers<'t>,
    apps: Peers<'t>,
}

/// Whether everything was proved.
pub(crate) fn run(once: bool, interrupt: &Interrupt, out: &mut impl Write) -> Result<bool> {
    writeln!(
        out,
        "lab: the three load balancers of one tenant on VLAN 2003, and the hub's four nodes"
    )?;
    let trunk = Trunk::build()?;
    interrupt.check()?;
    let [tenant, stranger] = &trunk.tenants;
    let servers = Servers::start(&trunk, tenant)?;
    interrupt.check()?;
    let lb = Lb::start(&trunk, POC_CONFIG)?;
    interrupt.check()?;
    writeln!(
        out,
        "lab: lb runs as instance {}; now the traffic\n",
        trunk.run()
    )?;
    let lab = Lab {
        tenant,
        stranger,
        servers: &servers,
    };
    let rows = lab.collect();
    let holds = rows.iter().all(|row| row.holds);
    writeln!(out, "{}", table(rows))?;
    interrupt.check()?;
    if !once {
        print_what_to_try(&trunk, out)?;
        let signal = interrupt.wait()?;
        writeln!(out, "{signal}: removing the lab")?;
    }
    lb.down().context("remove the data plane")?;
    Ok(holds)
}

impl<'t> Servers<'t> {
    fn start(trunk: &'t Trunk, tenant: &'t Tenant) -> Result<Self> {
        let start = |hosts: &'t [Host], what, identity, https, http| {
            let hosts = hosts.iter().map(|host| {
                let serves = Serves {
                    name: format!("{what}/{}", host.name),
                    https: Some(https),
                    http,
                    ..Serves::default()
                };
                (host, serves)
            });
            Peers::start_on(trunk, identity, hosts)
        };
        let (nodes, workers) = (&trunk.nodes, &tenant.workers);
        let identity = |name, addresses: &[_]| Identity::create(trunk, name, addresses);
        Ok(Self {
            api: start(nodes, "api", identity("api", &[VIP])?, API_NODE_PORT, None)?,
            shard: start(
                nodes,
                "shard",
                identity(SHARD_NAME, &[])?,
                SHARD_HTTPS_NODE_PORT,
                Some(SHARD_HTTP_NODE_PORT),
            )?,
            apps: start(
                workers,
                "apps",
                identity(APP, &[])?,
                APPS_HTTPS_NODE_PORT,
                Some(APPS_HTTP_NODE_PORT),
            )?,
        })
    }
}

struct Lab<'l> {
    tenant: &'l Tenant,
    /// A host of a VLAN that the file does not have.
    stranger: &'l Tenant,
    servers: &'l Servers<'l>,
}

impl Lab<'_> {
    /// Drives the traffic and observes; a failure is a line that does not hold.
    fn collect(&self) -> Vec<Row> {
        let Servers { api, shard, apps } = self.servers;
        let mut rows = vec![row(
            &format!("curl https://{API}"),
            &several("api", VIP),
            self.answers("api", |host| programs::curl(host, api.certificate(), API)),
        )];
        for (scheme, to) in [("https", ROUTES_HTTPS), ("http", ROUTES_HTTP)] {
            rows.extend(NAMES.map(|name| self.by_name(("shard", shard), (scheme, name), to)));
        }
        for (scheme, to) in [("https", APPS_HTTPS), ("http", APPS_HTTP)] {
            rows.push(self.by_name(("apps", apps), (scheme, APP), to));
        }
        rows.extend(self.refusals());
        rows.extend(self.sources());
        rows
    }

    fn by_name(
        &self,
        (what, peers): (&str, &Peers<'_>),
        (scheme, name): (&str, &str),
        to: SocketAddrV4,
    ) -> Row {
        row(
            &format!("curl {scheme}://{name}"),
            &several(what, *to.ip()),
            self.answers(what, |host| {
                programs::curl_name(host, peers.certificate(), (scheme, name), to)
            }),
        )
    }

    /// What no client gets.
    fn refusals(&self) -> [Row; 4] {
        let client = self.tenant.client();
        [
            row(
                &format!("openssl -servername {FOREIGN}"),
                "alert: unrecognized name",
                alert(client, ROUTES_HTTPS, Some(FOREIGN)),
            ),
            row(
                "openssl -noservername",
                "alert: unrecognized name",
                alert(client, ROUTES_HTTPS, None),
            ),
            row(
                &format!("curl http://{FOREIGN}"),
                "421: an unknown Host",
                self.misdirected(client),
            ),
            row(
                &format!("VLAN {}: connect to {API}", self.stranger.vlan),
                "silence: no such network",
                self.stranger(),
            ),
        ]
    }

    fn sources(&self) -> [Row; 2] {
        let Servers { api, shard, apps } = self.servers;
        [
            row(
                "sources at the hub's nodes",
                &format!("{SNAT} only"),
                only(SNAT, &[api, shard]),
            ),
            row(
                "sources at the workers",
                &format!("{TENANT_SNAT} only"),
                only(TENANT_SNAT, &[apps]),
            ),
        ]
    }

    /// The hosts that answer clients and workers: several of those that are expected there, and no others.
    fn answers(&self, what: &str, ask: impl Fn(&Host) -> Result<ApiAnswer>) -> Seen {
        let mut answers = Count::default();
        for host in self.tenant.clients.iter().chain(&self.tenant.workers) {
            for _ in 0..REQUESTS {
                answers.add(ask(host)?.node);
            }
        }
        let own = format!("{what}/");
        let is_own = answers.words().all(|name| name.starts_with(&own));
        let seen = answers.to_string().replace(&own, "");
        Ok((seen, is_own && answers.kinds() > 1))
    }

    fn misdirected(&self, client: &Host) -> Seen {
        let certificate = self.servers.shard.certificate();
        let answer = programs::curl_name(client, certificate, ("http", FOREIGN), ROUTES_HTTP);
        Ok(match answer {
            Ok(answer) => (format!("answered by {}", answer.node), false),
            Err(error) => {
                let words = format!("{error:#}");
                let is_refused = words.contains("error: 421");
                (
                    if is_refused { "421".to_owned() } else { words },
                    is_refused,
                )
            }
        })
    }

    fn stranger(&self) -> Seen {
        let client = self.stranger.client();
        let connected = client
            .netns
            .inside(|| TcpStream::connect_timeout(&API.into(), TIMEOUT))?;
        Ok(match connected {
            Ok(_) => ("connected".to_owned(), false),
            Err(error) if error.kind() == ErrorKind::TimedOut => ("nothing".to_owned(), true),
            Err(error) => (error.to_string(), false),
        })
    }
}

/// The hosts that are expected to answer, short enough for the names of the others.
fn several(what: &str, vip: Ipv4Addr) -> String {
    let [.., last] = vip.octets();
    format!("several of {what}, by .{last}")
}

/// The peers that servers saw, checks included.
fn only(snat: Ipv4Addr, peers: &[&Peers<'_>]) -> Seen {
    let mut sources = BTreeSet::new();
    for peers in peers {
        sources.extend(peers.sources()?);
    }
    Ok((join(&sources), sources == BTreeSet::from([snat])))
}

fn print_what_to_try(trunk: &Trunk, out: &mut impl Write) -> Result<()> {
    let lb = binary("LB_BIN", "lb")?;
    let (lb, run) = (lb.display(), trunk.run());
    let [oauth, ..] = NAMES;
    writeln!(
        out,
        "\nTry in another terminal, as root:\n\
         \n  nsenter --net=/run/netns/{run}-a-c1 curl -k https://{API}/version\
         \n  nsenter --net=/run/netns/{run}-a-c1 curl -k --resolve {oauth}:443:{ROUTES} https://{oauth}/version\
         \n  nsenter --net=/run/netns/{run}-a-c1 openssl s_client -connect {ROUTES_HTTPS} -servername {FOREIGN}\
         \n  nsenter --net=/run/netns/{run}-a-w1 curl http://{APPS_HTTP}/\
         \n  nsenter --net=/run/netns/{run}-n1 tcpdump -ni eth0\
         \n  {lb} backends --instance {run}\
         \n  {lb} flows --instance {run}\n",
    )?;
    writeln!(out, "Ctrl-C ends the lab and removes everything.")?;
    Ok(())
}
