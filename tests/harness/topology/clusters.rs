//! Three clusters and their clients on one LAN, behind one address of the load balancer.
//!
//! ```text
//!  c1 .50   hub .20-.22  managed1 .30-.32  managed2 .40-.42   (control planes, three addresses each)
//!    |           hub .23-.25  managed1 .33-.35  managed2 .43-.45   (compute nodes)
//!    |            |
//!  [ lan: bridge      ] -- eth0 [ lb ] 192.168.125.10
//! ```

use std::{net::Ipv4Addr, ops::Deref};

use anyhow::Result;

use super::{Host, LB_PORT, Site, Switch, TENANT_NIC, TENANT_PREFIX_BITS, join_hosts, settle};
use crate::netns::Netns;

/// The configuration that an operator starts from.
pub const CLUSTERS_CONFIG: &str = include_str!("../../../config/three-clusters.yaml");
/// The one address.
pub const ONE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 125, 10);
/// What backends see.
pub const ONE_SNAT: Ipv4Addr = Ipv4Addr::new(192, 168, 125, 9);

const CLIENTS: [(&str, Ipv4Addr); 1] = [("c1", Ipv4Addr::new(192, 168, 125, 50))];
/// Each with its name, and the last bytes of the first of its three addresses.
const CLUSTERS: [(&str, [(&str, u8); 2]); 3] = [
    ("hub-cluster", [("cp-hub", 20), ("co-hub", 23)]),
    ("managed1", [("cp-1", 30), ("co-1", 33)]),
    ("managed2", [("cp-2", 40), ("co-2", 43)]),
];

/// The namespaces of one run; all go with it.
#[derive(Debug)]
pub struct Clusters {
    /// Sends the requests.
    pub client: Host,
    /// The clusters.
    pub clusters: Vec<Cluster>,
    /// The switch.
    pub lan: Netns,
    _ports: Switch,
    site: Site,
}

/// A cluster: each host stands for three that have the same to say.
#[derive(Debug)]
pub struct Cluster {
    /// Its name in its domain.
    pub name: &'static str,
    /// Where its API is.
    pub control_plane: Host,
    /// Where its applications are.
    pub compute: Host,
}

impl Clusters {
    /// Builds a client, three clusters and one load balancer host.
    ///
    /// # Errors
    ///
    /// When a namespace or link cannot be made; what was made is removed.
    pub fn build() -> Result<Self> {
        let site = Site::new()?;
        let ports = Switch::load()?;
        let lan = site.switch("lan")?;
        site.join(&lan, "br0", TENANT_NIC)?;
        ports.pass(&lan, LB_PORT)?;
        let mut clients = site.hosts(&CLIENTS)?;
        join_hosts(&lan, "br0", &clients, TENANT_PREFIX_BITS)?;
        let clusters = CLUSTERS.iter().map(|(name, hosts)| {
            let [control_plane, compute] =
                hosts.map(|(host, first)| three_in_one(&site, &lan, host, first));
            Ok(Cluster {
                name,
                control_plane: control_plane?,
                compute: compute?,
            })
        });
        let clusters = clusters.collect::<Result<_>>()?;
        settle(&lan)?;
        Ok(Self {
            client: clients.remove(0),
            clusters,
            lan,
            _ports: ports,
            site,
        })
    }
}

/// A host with three addresses.
fn three_in_one(site: &Site, lan: &Netns, name: &'static str, first: u8) -> Result<Host> {
    let address = |last| Ipv4Addr::new(192, 168, 125, last);
    let mut hosts = site.hosts(&[(name, address(first))])?;
    join_hosts(lan, "br0", &hosts, TENANT_PREFIX_BITS)?;
    let host = hosts.remove(0);
    for more in [first + 1, first + 2] {
        let line = format!("addr add {}/{TENANT_PREFIX_BITS} dev eth0\n", address(more));
        host.netns.ip_batch(&line)?;
    }
    Ok(host)
}

impl Deref for Clusters {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}
