//! The validated configuration: what the rest of the control plane sees of the file.

use std::{fmt, net::Ipv4Addr};

use ipnet::Ipv4Net;
use lb_common::maps::{DEFAULT_BACKENDS, DEFAULT_POOLS, DEFAULT_SERVICES};
use serde::{Serialize, Serializer};

/// A validated configuration, with every default filled in and every shorthand (`defaults`, `nodes`,
/// `clusters`, `include`) written out. Lists have the order of the files, every name that is
/// referred to exists, and every address lies in a prefix of its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// At least one; unique in name, and in interface and VLAN id.
    pub networks: Vec<Network>,
    /// Unique in name; a pool need not be used by any service.
    pub pools: Vec<Pool>,
    /// Unique in name, and in VIP, port and protocol within a network.
    pub services: Vec<Service>,
    /// Capacities, fixed at the first start.
    pub limits: Limits,
}

impl Config {
    /// The network called `name`.
    #[must_use]
    pub fn network(&self, name: &str) -> Option<&Network> {
        self.networks.iter().find(|network| network.name == name)
    }

    /// The pool called `name`.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// The SNAT addresses of all networks.
    #[must_use]
    pub fn snat_addresses(&self) -> usize {
        self.networks.iter().map(|network| network.snat.len()).sum()
    }
}

/// One layer-2 network that the load balancer is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Lower-case letters, digits and `-`; at most 63 characters.
    pub name: String,
    /// Who is on it.
    pub role: Role,
    /// The physical port, 1 to 15 characters.
    pub interface: String,
    /// The 802.1Q VLAN id of its frames, 1 to 4094; none for untagged ones.
    pub vlan: Option<u16>,
    /// Whether VIPs and SNAT addresses are the host's own addresses: there is no cell then.
    pub host: bool,
    /// The on-link prefixes, at least one, canonical and disjoint.
    #[serde(serialize_with = "as_texts")]
    pub prefixes: Vec<Ipv4Net>,
    /// What is behind gateways; unique in `to`, none inside an on-link prefix.
    pub routes: Vec<Route>,
    /// The addresses that clients may have.
    #[serde(serialize_with = "as_texts")]
    pub sources: Vec<Ipv4Net>,
    /// The addresses that backends may have.
    #[serde(serialize_with = "as_texts")]
    pub backends: Vec<Ipv4Net>,
    /// Where flows to this network's backends come from; at most 16, may be empty.
    pub snat: Vec<Snat>,
}

/// What is on-link, or behind a gateway that is not the default one: the `sources` and `backends` of
/// a network that does not say otherwise.
pub(super) fn reachable(prefixes: &[Ipv4Net], routes: &[Route]) -> Vec<Ipv4Net> {
    let routed = routes.iter().map(|route| route.to);
    let routed = routed.filter(|to| to.prefix_len() > 0);
    prefixes.iter().copied().chain(routed).collect()
}

impl Network {
    /// Where frames to `address` go first: the gateway of its longest route, or itself.
    #[must_use]
    pub fn next_hop(&self, address: Ipv4Addr) -> Ipv4Addr {
        if self.prefixes.iter().any(|prefix| prefix.contains(&address)) {
            return address;
        }
        let routes = self
            .routes
            .iter()
            .filter(|route| route.to.contains(&address));
        let longest = routes.max_by_key(|route| route.to.prefix_len());
        longest.map_or(address, |route| route.via)
    }
}

/// A prefix behind a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Route {
    /// Canonical.
    #[serde(serialize_with = "as_text")]
    pub to: Ipv4Net,
    /// The gateway: an on-link address.
    pub via: Ipv4Addr,
}

/// An address that flows to backends come from, and its ports that belong to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Snat {
    /// A host address in an on-link prefix; unique in its network.
    pub address: Ipv4Addr,
    /// 1024 or more.
    pub first_port: u16,
    /// How many from there on, 1 to 56320: as many flows at a time.
    pub ports: u16,
}

/// Who is on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The nodes of the hub, with the control planes behind their NodePorts.
    Mgmt,
    /// The workers of one tenant.
    Tenant,
    /// Everybody else: a public network, or the users of the site.
    Uplink,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mgmt => "mgmt",
            Self::Tenant => "tenant",
            Self::Uplink => "uplink",
        })
    }
}

/// Backends of one network that serve the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Lower-case letters, digits and `-`; at most 63 characters.
    pub name: String,
    /// The name of the network that the backends are on.
    pub network: String,
    /// Unique in name, and in address and port; may be empty.
    pub backends: Vec<Backend>,
}

/// One place that flows can be sent to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// The name given in the file, or that of the node, or else `address:port`.
    pub name: String,
    /// In a `backends` prefix of the pool's network; no VIP or SNAT address of it.
    pub address: Ipv4Addr,
    /// 1 to 65535, usually a NodePort.
    pub port: u16,
    /// Its share of new flows in relation to the other backends, 1 to 256; default 1.
    pub weight: u16,
}

/// What clients of one network can reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Lower-case letters, digits and `-`; at most 63 characters.
    pub name: String,
    /// The name of the network that the clients are on.
    pub network: String,
    /// At least one.
    pub listen: Vec<Listen>,
    /// The name of the pool that flows are sent to.
    pub pool: String,
    /// Who may use it: the longest prefix that contains the client decides, and a client in none is
    /// denied. Canonical, sorted, unique in prefix. Empty: whoever the network's `sources` let in.
    pub rules: Vec<Rule>,
}

/// Whether clients with addresses in one prefix may use a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Rule {
    /// Canonical.
    #[serde(serialize_with = "as_text")]
    pub prefix: Ipv4Net,
    /// Or else denied.
    pub allow: bool,
}

/// A VIP with port and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Listen {
    /// The VIP: a host address in a prefix of the service's network; no SNAT address,
    /// unless it is the host's own.
    pub address: Ipv4Addr,
    /// 1 to 65535.
    pub port: u16,
    /// The transport protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.address, self.port, self.protocol)
    }
}

/// The transport protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// How much the maps can hold. The memory is taken at the first start, used or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// SNAT addresses of all networks, 1 to 128; default 8. Each takes 4 MB and holds
    /// [`FLOWS_PER_ADDRESS`](lb_common::maps::snat::FLOWS_PER_ADDRESS) flows.
    pub snat_addresses: u16,
    /// `listen` entries of all services, 1 to 65535; default 1024.
    pub services: u32,
    /// Backends of all pools, 1 to 65535; default 4096.
    pub backends: u32,
    /// Pools, 1 to 4096; default 256.
    pub pools: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            snat_addresses: 8,
            services: DEFAULT_SERVICES,
            backends: DEFAULT_BACKENDS,
            pools: DEFAULT_POOLS,
        }
    }
}

/// Prefixes as everybody writes them; `ipnet` alone would need one more feature for that.
fn as_texts<S: Serializer>(prefixes: &[Ipv4Net], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(prefixes.iter().map(Ipv4Net::to_string))
}

fn as_text<S: Serializer>(prefix: &Ipv4Net, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(prefix)
}
