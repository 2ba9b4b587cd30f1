//! Two tenants with the same addresses on one trunk, and the hub that runs their control planes.
//!
//! ```text
//!  VLAN 2003, tenant-a: c1 .50  c2 .51  w1 .101  w2 .102
//!  VLAN 2004, tenant-b: the same   |
//!  untagged: x .200            [ trunk ] -- eth0 [ lb ] eth1 -- [ mlan ] n1 .105 ... n4 .108
//!                         192.168.203.0/24                      10.32.96.0/20
//! ```
//!
//! The tags are put on and taken off by the programs of `tests/switch`.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    ops::Deref,
};

use anyhow::Result;

use super::{
    GRO, Host, LB_PORT, MGMT_NIC, MGMT_PREFIX_BITS, NODES, OFFLOADS, Site, Switch, TENANT_NIC,
    TENANT_PREFIX_BITS, add_bridge, join_hosts, set, settle,
};
use crate::netns::Netns;

/// The configuration that the lab ships, for exactly this topology.
pub const LAB_CONFIG: &str = include_str!("../../../config/lab.yaml");
/// The configuration of one tenant's three load balancers: this topology without `tenant-b`.
pub const POC_CONFIG: &str = include_str!("../../../config/poc.yaml");

/// The second address that tenants know, for what their own workers serve.
pub const APPS: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 112);
/// `apps-https-a`: TLS to nginx on the tenant's own workers.
pub const APPS_HTTPS: SocketAddrV4 = SocketAddrV4::new(APPS, 443);
/// `apps-http-a`: HTTP to the same.
pub const APPS_HTTP: SocketAddrV4 = SocketAddrV4::new(APPS, 80);
/// NodePort behind `apps-https-a`.
pub const APPS_HTTPS_NODE_PORT: u16 = 30190;
/// NodePort behind `apps-http-a`.
pub const APPS_HTTP_NODE_PORT: u16 = 30282;
/// The only address that a tenant's workers see.
pub const TENANT_SNAT: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 9);

/// The VLAN id of the management LAN where it is on the trunk.
pub const MGMT_VLAN: u16 = 96;

const OUTSIDER: (&str, Ipv4Addr) = ("x", Ipv4Addr::new(192, 168, 203, 200));

/// The NodePorts of a tenant's hosted control plane on the nodes of the hub.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodePorts {
    /// TLS.
    pub api: u16,
    /// UDP.
    pub dns: u16,
    /// The harness's own server.
    pub echo: u16,
}

/// The hosts of one tenant.
#[derive(Debug)]
pub struct Tenant {
    /// Its name in the configuration.
    pub name: &'static str,
    /// Its VLAN id on the trunk.
    pub vlan: u16,
    /// Where its control plane listens on the nodes.
    pub ports: NodePorts,
    /// Those who use.
    pub clients: Vec<Host>,
    /// Those who also serve.
    pub workers: Vec<Host>,
}

impl Tenant {
    /// The first client.
    ///
    /// # Panics
    ///
    /// Never: a tenant has two.
    pub fn client(&self) -> &Host {
        self.clients.first().expect("a tenant has clients")
    }

    /// The first worker.
    ///
    /// # Panics
    ///
    /// Never: a tenant has two.
    pub fn worker(&self) -> &Host {
        self.workers.first().expect("a tenant has workers")
    }
}

/// Where the management LAN of a trunk is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Hub {
    /// On a NIC of its own, untagged.
    OwnNic,
    /// On the same trunk as the tenants, with the tag [`MGMT_VLAN`].
    SameNic,
}

/// The namespaces of one run; all go with it.
#[derive(Debug)]
pub struct Trunk {
    /// `tenant-a` and `tenant-b`.
    pub tenants: [Tenant; 2],
    /// Hub nodes.
    pub nodes: Vec<Host>,
    /// A host on the trunk without a tag.
    pub outsider: Host,
    /// The switch of the trunk.
    pub trunk: Netns,
    /// The switch of the management LAN, where that is not on the trunk as well.
    pub mgmt_lan: Netns,
    _ports: Switch,
    site: Site,
}

impl Trunk {
    /// Builds two tenants of four hosts each, four nodes, and one load balancer host.
    ///
    /// # Errors
    ///
    /// When a namespace or link cannot be made; what was made is removed.
    pub fn build() -> Result<Self> {
        Self::with(Hub::OwnNic)
    }

    /// The same on one NIC: the nodes are on the trunk, with the tag [`MGMT_VLAN`].
    ///
    /// # Errors
    ///
    /// As for [`Self::build`].
    pub fn on_one_nic() -> Result<Self> {
        Self::with(Hub::SameNic)
    }

    fn with(hub: Hub) -> Result<Self> {
        let site = Site::new()?;
        let ports = Switch::load()?;
        let trunk = site.switch("trunk")?;
        let mgmt_lan = site.switch("mlan")?;
        site.join(&trunk, "br0", TENANT_NIC)?;
        site.join(&mgmt_lan, "br0", MGMT_NIC)?;
        // No other program on this end could see to it; a real NIC polls anyway.
        set(&site.lb, TENANT_NIC, &GRO)?;
        ports.trunk(&trunk, LB_PORT)?;
        ports.pass(&mgmt_lan, LB_PORT)?;
        let tenants = [
            Tenant {
                name: "tenant-a",
                vlan: 2003,
                ports: NodePorts {
                    api: 30918,
                    dns: 30053,
                    echo: 30700,
                },
                clients: site.hosts(&numbered(["a-c1", "a-c2"], 50))?,
                workers: site.hosts(&numbered(["a-w1", "a-w2"], 101))?,
            },
            Tenant {
                name: "tenant-b",
                vlan: 2004,
                ports: NodePorts {
                    api: 30919,
                    dns: 30054,
                    echo: 30701,
                },
                clients: site.hosts(&numbered(["b-c1", "b-c2"], 50))?,
                workers: site.hosts(&numbered(["b-w1", "b-w2"], 101))?,
            },
        ];
        for tenant in &tenants {
            let bridge = add_vlan(&ports, &trunk, tenant.vlan)?;
            join_hosts(&trunk, &bridge, &tenant.clients, TENANT_PREFIX_BITS)?;
            join_hosts(&trunk, &bridge, &tenant.workers, TENANT_PREFIX_BITS)?;
        }
        let (name, address) = OUTSIDER;
        let outsider = site.host(name, address)?;
        let nodes = site.hosts(&NODES)?;
        join_hosts(
            &trunk,
            "br0",
            std::slice::from_ref(&outsider),
            TENANT_PREFIX_BITS,
        )?;
        match hub {
            Hub::OwnNic => join_hosts(&mgmt_lan, "br0", &nodes, MGMT_PREFIX_BITS)?,
            Hub::SameNic => {
                let bridge = add_vlan(&ports, &trunk, MGMT_VLAN)?;
                join_hosts(&trunk, &bridge, &nodes, MGMT_PREFIX_BITS)?;
            }
        }
        [&trunk, &mgmt_lan].into_iter().try_for_each(settle)?;
        Ok(Self {
            tenants,
            nodes,
            outsider,
            trunk,
            mgmt_lan,
            _ports: ports,
            site,
        })
    }
}

impl Deref for Trunk {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

/// A bridge for the VLAN, behind an access port of the trunk.
fn add_vlan(ports: &Switch, trunk: &Netns, vlan: u16) -> Result<String> {
    let [bridge, uplink, access] = ["br", "up", "access"].map(|kind| format!("{kind}{vlan}"));
    add_bridge(trunk, &bridge)?;
    trunk.ip_batch(&format!(
        "link add {uplink} type veth peer name {access}\nlink set {uplink} master {bridge}\n\
         link set {uplink} up\nlink set {access} up\n"
    ))?;
    for end in [&uplink, &access] {
        set(trunk, end, &OFFLOADS)?;
    }
    set(trunk, &uplink, &GRO)?;
    ports.pass(trunk, &uplink)?;
    ports.access(trunk, &access, vlan, LB_PORT)?;
    Ok(bridge)
}

/// Two hosts of 192.168.203.0/24, the first one with this last octet.
const fn numbered([first, second]: [&'static str; 2], octet: u8) -> [(&'static str, Ipv4Addr); 2] {
    [
        (first, Ipv4Addr::new(192, 168, 203, octet)),
        (second, Ipv4Addr::new(192, 168, 203, octet + 1)),
    ]
}
