//! One tenant, untagged: a tenant LAN with clients and workers, a management LAN with four hub
//! nodes, and the load balancer's host between them.
//!
//! ```text
//!  c1 .50  c2 .51  w1 .101  w2 .102                  n1 .105  n2 .106  n3 .107  n4 .108
//!    |       |       |        |                         |        |        |        |
//!  [ tlan: bridge             ] - eth0 [ lb ] eth1 - [ mlan: bridge                 ]
//!  192.168.203.0/24              no address, ip_forward=0              10.32.96.0/20
//! ```

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    ops::Deref,
};

use anyhow::Result;

use super::{
    Host, LB_PORT, MGMT_NIC, MGMT_PREFIX_BITS, NODES, Routed, Site, Switch, TENANT_NIC,
    TENANT_PREFIX_BITS, join_hosts, router, settle,
};
use crate::{fault::netem::Trouble, netns::Netns};

/// A configuration for exactly this topology.
pub const CONFIG: &str = include_str!("poc.yaml");

/// The address that tenants know.
pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 110);
/// The only address that backends see.
pub const SNAT: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 50);
/// `api-a`: TLS to nginx.
pub const API: SocketAddrV4 = SocketAddrV4::new(VIP, 6443);
/// `dns-a`: UDP to dnsmasq.
pub const DNS: SocketAddrV4 = SocketAddrV4::new(VIP, 53);
/// `echo-a`: TCP to the harness's own server.
pub const ECHO: SocketAddrV4 = SocketAddrV4::new(VIP, 7000);
/// NodePort behind `api-a`.
pub const API_NODE_PORT: u16 = 30918;
/// NodePort behind `dns-a`.
pub const DNS_NODE_PORT: u16 = 30053;
/// NodePort behind `echo-a`.
pub const ECHO_NODE_PORT: u16 = 30700;

const CLIENTS: [(&str, Ipv4Addr); 2] = [
    ("c1", Ipv4Addr::new(192, 168, 203, 50)),
    ("c2", Ipv4Addr::new(192, 168, 203, 51)),
];
const WORKERS: [(&str, Ipv4Addr); 2] = [
    ("w1", Ipv4Addr::new(192, 168, 203, 101)),
    ("w2", Ipv4Addr::new(192, 168, 203, 102)),
];

/// The namespaces of one run; all go with it.
#[derive(Debug)]
pub struct Topology {
    /// Tenant hosts.
    pub clients: Vec<Host>,
    /// Tenant hosts that serve others.
    pub workers: Vec<Host>,
    /// Hub nodes.
    pub nodes: Vec<Host>,
    /// The switch of the tenant LAN.
    pub tenant_lan: Netns,
    /// The switch of the management LAN.
    pub mgmt_lan: Netns,
    ports: Switch,
    site: Site,
}

impl Topology {
    /// Builds two clients, two workers, four nodes, and one load balancer host.
    ///
    /// # Errors
    ///
    /// When a namespace or link cannot be made; what was made is removed.
    pub fn poc() -> Result<Self> {
        let site = Site::new()?;
        let topology = Self {
            tenant_lan: site.switch("tlan")?,
            mgmt_lan: site.switch("mlan")?,
            clients: site.hosts(&CLIENTS)?,
            workers: site.hosts(&WORKERS)?,
            nodes: site.hosts(&NODES)?,
            ports: Switch::load()?,
            site,
        };
        let Self {
            clients,
            workers,
            nodes,
            tenant_lan,
            mgmt_lan,
            ports,
            site,
        } = &topology;
        site.join(tenant_lan, "br0", TENANT_NIC)?;
        site.join(mgmt_lan, "br0", MGMT_NIC)?;
        for lan in [tenant_lan, mgmt_lan] {
            ports.pass(lan, LB_PORT)?;
        }
        join_hosts(tenant_lan, "br0", clients, TENANT_PREFIX_BITS)?;
        join_hosts(tenant_lan, "br0", workers, TENANT_PREFIX_BITS)?;
        join_hosts(mgmt_lan, "br0", nodes, MGMT_PREFIX_BITS)?;
        [tenant_lan, mgmt_lan].into_iter().try_for_each(settle)?;
        Ok(topology)
    }

    /// The first client.
    ///
    /// # Panics
    ///
    /// Never: a topology has two.
    pub fn client(&self) -> &Host {
        self.clients.first().expect("a topology has clients")
    }

    /// Plugs both NICs of another load balancer's host into the LANs, at ports of this name.
    pub(super) fn join_beside(&self, site: &Site, port: &str) -> Result<()> {
        for (lan, nic) in [(&self.tenant_lan, TENANT_NIC), (&self.mgmt_lan, MGMT_NIC)] {
            site.join_at(lan, "br0", port, nic, 1)?;
            self.ports.pass(lan, port)?;
            settle(lan)?;
        }
        Ok(())
    }

    /// Adds a client behind a router of the tenant LAN.
    ///
    /// # Errors
    ///
    /// When there is one already.
    pub fn add_routed_client(&self) -> Result<Routed> {
        router::tenant(&self.site, &self.tenant_lan)
    }

    /// Adds a node behind a router of the management LAN.
    ///
    /// # Errors
    ///
    /// When there is one already.
    pub fn add_routed_node(&self) -> Result<Routed> {
        router::mgmt(&self.site, &self.mgmt_lan)
    }

    /// Gives the load balancer's host one more NIC, connected to nothing that talks.
    ///
    /// # Errors
    ///
    /// When the name is taken.
    pub fn add_idle_nic(&self, name: &str) -> Result<()> {
        self.lb.ip_batch(&format!(
            "link add {name} type veth peer name p-{name} netns {}\nlink set {name} up\n",
            self.tenant_lan.name(),
        ))?;
        self.tenant_lan.ip_batch(&format!("link set p-{name} up\n"))
    }

    /// Takes the tenant NIC out of the load balancer's host and puts a new one in its place.
    ///
    /// # Errors
    ///
    /// When the old one is gone already.
    pub fn replace_tenant_nic(&self) -> Result<()> {
        self.unplug(TENANT_NIC)?;
        self.plug(TENANT_NIC)
    }

    /// Takes a NIC out of the load balancer's host.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn unplug(&self, nic: &str) -> Result<()> {
        self.lb.ip_batch(&format!("link del {nic}\n"))
    }

    /// Gives the load balancer's host a new NIC with the name of one that was taken out.
    ///
    /// # Errors
    ///
    /// When that one is still there.
    pub fn plug(&self, nic: &str) -> Result<()> {
        let lan = match nic {
            TENANT_NIC => &self.tenant_lan,
            _ => &self.mgmt_lan,
        };
        self.site.join(lan, "br0", nic)?;
        self.ports.pass(lan, LB_PORT)?;
        settle(lan)
    }

    /// Makes trouble on both LANs with one IPv4 frame out of so many, wherever it comes from.
    ///
    /// # Errors
    ///
    /// When there is trouble already.
    pub fn trouble(&self, out_of: u32) -> Result<[Trouble; 2]> {
        let hosts = ports(&self.clients);
        let of_clients = Trouble::begin(&self.ports, &self.tenant_lan, &hosts, out_of)?;
        Ok([of_clients, self.trouble_of_nodes(out_of)?])
    }

    /// The same on the LAN of the nodes alone.
    ///
    /// # Errors
    ///
    /// As for [`Self::trouble`].
    pub fn trouble_of_nodes(&self, out_of: u32) -> Result<Trouble> {
        Trouble::begin(&self.ports, &self.mgmt_lan, &ports(&self.nodes), out_of)
    }

    /// Gives both NICs of the load balancer a queue for each of these CPUs: what a CPU sends into the
    /// switch port, it receives itself on the other side.
    ///
    /// # Errors
    ///
    /// When the kernel cannot steer by CPU.
    pub fn split_nics(&self, cpus: [usize; 2]) -> Result<()> {
        for (lan, nic) in [(&self.tenant_lan, TENANT_NIC), (&self.mgmt_lan, MGMT_NIC)] {
            self.lb.ip_batch(&format!("link del {nic}\n"))?;
            self.site.join_by_queues(lan, "br0", nic, cpus.len())?;
            self.ports.pass(lan, LB_PORT)?;
            for (queue, cpu) in cpus.into_iter().enumerate() {
                lan.steer(LB_PORT, queue, cpu)?;
            }
            settle(lan)?;
        }
        Ok(())
    }
}

/// The ports of a LAN with these hosts.
fn ports(hosts: &[Host]) -> Vec<String> {
    let hosts = hosts.iter().map(|host| format!("p-{}", host.name));
    hosts.chain([LB_PORT.to_owned()]).collect()
}

impl Deref for Topology {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}
