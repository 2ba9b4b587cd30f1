//! The validated configuration: what the rest of the control plane sees of the file.

use std::{fmt, net::Ipv4Addr};

use ipnet::Ipv4Net;
use lb_common::maps::{DEFAULT_BACKENDS, DEFAULT_POOLS, DEFAULT_SERVICES};
use serde::{Serialize, Serializer};

/// A validated configuration. Every list has the order of the file, every name that is referred to
/// exists, and every address lies in a prefix of its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// At least one; unique in name and in interface.
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
    /// Lower-case letters, digits and `-`; at most 32 characters.
    pub name: String,
    /// Who is on it.
    pub role: Role,
    /// The physical port, 1 to 15 characters.
    pub interface: String,
    /// The on-link prefixes, at least one, canonical and disjoint.
    #[serde(serialize_with = "as_text")]
    pub prefixes: Vec<Ipv4Net>,
    /// The addresses that flows to this network's backends come from; at most 16, may be empty.
    pub snat: Vec<Ipv4Addr>,
}

/// Who is on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The nodes of the hub, with the control planes behind their NodePorts.
    Mgmt,
    /// The workers of one tenant.
    Tenant,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mgmt => "mgmt",
            Self::Tenant => "tenant",
        })
    }
}

/// Backends of one network that serve the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Lower-case letters, digits and `-`; at most 32 characters.
    pub name: String,
    /// The name of the network that the backends are on.
    pub network: String,
    /// Unique in name, and in address and port; may be empty.
    pub backends: Vec<Backend>,
}

/// One place that flows can be sent to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backend {
    /// The name given in the file, or else `address:port`.
    pub name: String,
    /// A host address in a prefix of the pool's network; no VIP or SNAT address.
    pub address: Ipv4Addr,
    /// 1 to 65535, usually a NodePort.
    pub port: u16,
    /// Its share of new flows in relation to the other backends, 1 to 256; default 1.
    pub weight: u16,
}

/// What clients of one network can reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Lower-case letters, digits and `-`; at most 32 characters.
    pub name: String,
    /// The name of the network that the clients are on.
    pub network: String,
    /// At least one.
    pub listen: Vec<Listen>,
    /// The name of the pool that flows are sent to.
    pub pool: String,
}

/// A VIP with port and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Listen {
    /// The VIP: a host address in a prefix of the service's network; no SNAT address.
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
    /// SNAT addresses of all networks, 1 to 32; default 8. Each takes 4 MB and holds
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
fn as_text<S: Serializer>(prefixes: &[Ipv4Net], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(prefixes.iter().map(Ipv4Net::to_string))
}
