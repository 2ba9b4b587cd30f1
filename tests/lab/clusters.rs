//! The lab of `config/three-clusters.yaml`: three clusters behind one address.

use std::{collections::BTreeSet, io::Write, net::SocketAddrV4, path::PathBuf};

use anyhow::{Context as _, Result};
use lb_tests::{
    fault::interrupt::Interrupt,
    product::lb::{Lb, binary},
    servers::{
        identity::Identity,
        peers::{Peers, Serves},
    },
    topology::{CLUSTERS_CONFIG, Cluster, Clusters, Host, ONE_ADDRESS, ONE_SNAT},
    traffic::programs,
};

use crate::{
    alert::alert,
    table::{Row, Seen, join, row, table},
};

const API: SocketAddrV4 = SocketAddrV4::new(ONE_ADDRESS, 6443);
const HTTPS: SocketAddrV4 = SocketAddrV4::new(ONE_ADDRESS, 443);
const HTTP: SocketAddrV4 = SocketAddrV4::new(ONE_ADDRESS, 80);
/// Requests for each name.
const REQUESTS: usize = 6;
/// A name that no cluster has.
const UNKNOWN: &str = "api.unknown.linuxera.lab";

/// The servers of a cluster, and the certificates to trust for it.
struct Servers<'c> {
    cluster: &'c Cluster,
    api: Peers<'c>,
    apps: Peers<'c>,
}

/// Whether everything was proved.
pub(crate) fn run(once: bool, interrupt: &Interrupt, out: &mut impl Write) -> Result<bool> {
    writeln!(
        out,
        "lab: three clusters behind {ONE_ADDRESS}, distinguished by name"
    )?;
    let site = Clusters::build()?;
    interrupt.check()?;
    let servers = site
        .clusters
        .iter()
        .map(|cluster| Servers::start(&site, cluster));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    interrupt.check()?;
    let lb = Lb::start(&site, CLUSTERS_CONFIG)?;
    interrupt.check()?;
    writeln!(
        out,
        "lab: lb runs as instance {}; now the traffic\n",
        site.run()
    )?;
    let rows = collect(&site, &servers);
    let holds = rows.iter().all(|row| row.holds);
    writeln!(out, "{}", table(rows))?;
    interrupt.check()?;
    if !once {
        print_what_to_try(&site, out)?;
        let signal = interrupt.wait()?;
        writeln!(out, "{signal}: removing the lab")?;
    }
    lb.down().context("remove the data plane")?;
    Ok(holds)
}

fn api_name(cluster: &Cluster) -> String {
    format!("api.{}.linuxera.lab", cluster.name)
}

fn app_name(cluster: &Cluster) -> String {
    format!("console.apps.{}.linuxera.lab", cluster.name)
}

impl<'c> Servers<'c> {
    fn start(site: &Clusters, cluster: &'c Cluster) -> Result<Self> {
        let start = |host: &'c Host, name: &str, https, http| {
            let identity = Identity::create(site, name, &[])?;
            let serves = Serves {
                name: format!("{}/{}", cluster.name, host.name),
                https: Some(https),
                http,
                ..Serves::default()
            };
            Peers::start_on(site, identity, [(host, serves)])
        };
        Ok(Self {
            cluster,
            api: start(&cluster.control_plane, &api_name(cluster), 6443, None)?,
            apps: start(&cluster.compute, &app_name(cluster), 443, Some(80))?,
        })
    }
}

/// Drives the traffic and observes; a failure is a line that does not hold.
fn collect(site: &Clusters, servers: &[Servers<'_>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for one in servers {
        let Servers { cluster, api, apps } = one;
        let (api_name, app_name) = (api_name(cluster), app_name(cluster));
        for (peers, scheme, name, to) in [
            (api, "https", &api_name, API),
            (apps, "https", &app_name, HTTPS),
            (apps, "http", &app_name, HTTP),
        ] {
            rows.push(row(
                &format!("curl {scheme}://{name}:{}", to.port()),
                &format!("{} alone", cluster.name),
                answers(site, cluster, peers, (scheme, name), to),
            ));
        }
        rows.push(row(
            &format!("sources at {}", cluster.name),
            &format!("{ONE_SNAT} only"),
            sources(one),
        ));
    }
    rows.push(row(
        &format!("openssl -servername {UNKNOWN}"),
        "alert: unrecognized name",
        alert(&site.client, API, Some(UNKNOWN)),
    ));
    rows
}

/// The server that answers for a name.
fn answers(
    site: &Clusters,
    cluster: &Cluster,
    peers: &Peers<'_>,
    (scheme, name): (&str, &str),
    to: SocketAddrV4,
) -> Seen {
    let mut nodes = BTreeSet::new();
    for _ in 0..REQUESTS {
        let certificate = peers.certificate();
        nodes.insert(programs::curl_name(&site.client, certificate, (scheme, name), to)?.node);
    }
    let own = format!("{}/", cluster.name);
    let holds = nodes.iter().all(|node| node.starts_with(&own));
    Ok((join(&nodes), holds))
}

fn sources(servers: &Servers<'_>) -> Seen {
    let mut sources = servers.api.sources()?;
    sources.extend(servers.apps.sources()?);
    Ok((join(&sources), sources == BTreeSet::from([ONE_SNAT])))
}

fn print_what_to_try(site: &Clusters, out: &mut impl Write) -> Result<()> {
    let lb: PathBuf = binary("LB_BIN", "lb")?;
    let (lb, run) = (lb.display(), site.run());
    writeln!(
        out,
        "\nTry in another terminal, as root:\n\
         \n  nsenter --net=/run/netns/{run}-c1 curl -k --resolve api.managed1.linuxera.lab:6443:{ONE_ADDRESS} \
         https://api.managed1.linuxera.lab:6443/version\
         \n  nsenter --net=/run/netns/{run}-c1 openssl s_client -connect {HTTPS} -servername console.apps.hub-cluster.linuxera.lab\
         \n  nsenter --net=/run/netns/{run}-c1 curl -H 'Host: console.apps.managed2.linuxera.lab' http://{HTTP}/version\
         \n  {lb} status --instance {run}\
         \n  {lb} flows --instance {run}\n",
    )?;
    writeln!(out, "Ctrl-C ends the lab and removes everything.")?;
    Ok(())
}
