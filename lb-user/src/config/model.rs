//! The validated configuration: what the rest of the control plane sees of the file.
//!
//! It is kept as data of this shape: what a later version adds to it has `#[serde(default)]`, and what one leaves out is
//! no error.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use lb_common::maps::{DEFAULT_HANDED_OVER, MAX_BACKENDS, MAX_POOLS, MAX_SERVICES};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    algorithm::Algorithm,
    discover::{Discover, KubernetesCluster, ServicePort},
    duration,
    health::Health,
    hosted::HostedCluster,
    listen::{Listen, Protocol},
    shared::{SynCookies, Target},
    syslog::Syslog,
};

/// A validated configuration, with every default filled in and every shorthand (`defaults`, `nodes`,
/// `clusters`, `include`) written out. Lists have the order of the files, every name that is
/// referred to exists, and every address lies in a prefix of its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// At least one; unique in name, and in interface and VLAN id.
    pub networks: Vec<Network>,
    /// Unique in name; a pool need not be used by any service.
    pub pools: Vec<Pool>,
    /// Unique in name, and in VIP, port and protocol within a network.
    pub services: Vec<Service>,
    /// Clusters of Kubernetes, unique in name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubernetes: Vec<KubernetesCluster>,
    /// Hosted clusters that were discovered; their pools and services are there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosted: Vec<HostedCluster>,
    /// What the file has as defaults of `clusters`, if hosted clusters are to be discovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_defaults: Option<Value>,
    /// Capacities, fixed at the first start.
    pub limits: Limits,
    /// How long flows may be idle that are not, or no more, in full use.
    pub timeouts: Timeouts,
    /// The file that flows are written to when they begin and end; none: they are not. Absolute.
    pub flow_log: Option<PathBuf>,
    /// The syslog server that gets each event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syslog: Option<Syslog>,
    /// How operators and monitoring reach the control plane.
    #[serde(default, skip_serializing_if = "Admin::is_default")]
    pub admin: Admin,
    /// The boxes that have one service together; none: this one is alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<Ha>,
    /// The file that requests of services with `http` are written to; none: they are not. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_log: Option<PathBuf>,
    /// What the tables of pools are made with beside the names of their backends: 1 to 64 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// The file with the secret of SYN cookies; none: the balancer has one of its own. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syn_cookie_key: Option<PathBuf>,
    /// Whether a change of the files is applied without a request; default no.
    pub watch: bool,
    /// What becomes of the networks when the control plane is stopped.
    pub on_stop: OnStop,
}

/// How operators and monitoring reach the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Admin {
    /// The group whose members may look over the admin socket, by name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Metrics; none: there is no listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http: Option<AdminHttp>,
}

impl Admin {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
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

    /// Whether the connections of a service are accepted in the cell of their network: their ClientHello or
    /// Host is looked at, or their backends get a header of the PROXY protocol.
    #[must_use]
    pub fn is_of_cell(&self, service: &Service) -> bool {
        service.target.pool().is_none_or(|name| {
            let mut pools = self.pools.iter();
            pools.any(|pool| pool.proxy_protocol.is_some() && pool.name == *name)
        })
    }

    /// The SNAT addresses of all networks and boxes.
    #[must_use]
    pub fn snat_addresses(&self) -> usize {
        self.networks.iter().flat_map(Network::all_snat).count()
    }
}

/// The boxes that have one service together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ha {
    /// The name of this box, which is one of `boxes`.
    #[serde(rename = "box")]
    pub box_name: String,
    /// Two, unique in name and address, in the order of the file.
    pub boxes: Vec<HaBox>,
    /// The address that the active box has; no VIP, no SNAT address and none that checks come from.
    pub marker: IpAddr,
    /// The file with the CAs of the boxes' certificates. Absolute.
    pub ca: PathBuf,
    /// The file with this box's certificate. Absolute.
    pub certificate: PathBuf,
    /// The file with its key. Absolute.
    pub key: PathBuf,
}

impl Ha {
    /// This box.
    #[must_use]
    pub fn own(&self) -> Option<&HaBox> {
        self.boxes.iter().find(|one| one.name == self.box_name)
    }

    /// The other box.
    #[must_use]
    pub fn peer(&self) -> Option<&HaBox> {
        self.boxes.iter().find(|one| one.name != self.box_name)
    }
}

/// A box of several with one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaBox {
    /// Lower-case letters, digits and `-`; at most 63 characters.
    pub name: String,
    /// Where the other box reaches it; the port is 1024 or more.
    pub sync: SocketAddr,
}

/// Metrics by HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminHttp {
    /// An address and port of the host.
    pub listen: SocketAddr,
    /// Further names that requests may have in `Host`, in lower case, without a port.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// The file with the token that requests must have; none only for a loopback address. Absolute.
    pub token_file: Option<PathBuf>,
    /// Whether clients may reach the address.
    #[serde(default)]
    pub allow_tenant: bool,
}

/// What becomes of the networks when the control plane is stopped, and no other process has taken over from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// The data plane goes on without it.
    #[default]
    Forward,
    /// No client is served until the next start: a standby may take the addresses.
    Drop,
}

/// One layer-2 network that the load balancer is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Lower-case letters, digits and `-`; at most 63 characters.
    pub name: String,
    /// What hosts are on it.
    pub role: Role,
    /// The physical port, 1 to 15 characters.
    pub interface: String,
    /// The 802.1Q VLAN id of its frames, 1 to 4094; none for untagged ones.
    pub vlan: Option<u16>,
    /// Whether VIPs and SNAT addresses are the host's own addresses: there is no cell then.
    pub host: bool,
    /// The on-link prefixes, at least one, canonical and disjoint.
    pub prefixes: Vec<IpNet>,
    /// What is behind gateways; unique in `to`, none inside an on-link prefix.
    pub routes: Vec<Route>,
    /// The addresses that clients may have.
    pub sources: Vec<IpNet>,
    /// The addresses that backends may have.
    pub backends: Vec<IpNet>,
    /// Where flows to this network's backends come from, of this box; at most 16, may be empty.
    pub snat: Vec<Snat>,
    /// Those of other boxes, whose flows this one carries where it takes over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_snat: Vec<Snat>,
    /// The addresses of this box that stay with it where boxes take over from each other: its checks of backends come from
    /// there. At most one of each family; none of a box alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks_from: Vec<IpAddr>,
    /// Those of other boxes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_checks_from: Vec<IpAddr>,
    /// Whether clients that send to a port of a VIP without a service are answered, instead of silence.
    pub reject: bool,
    /// The most flows of its clients at a time, at least 1; none: of the SNAT ports that other networks use
    /// too its part ([`super::quotas`]), and of others as many as there are.
    pub max_flows: Option<u32>,
    /// Places for half-open TCP flows of its clients, 64 to 65536; default a quarter of that part, and at most
    /// 8192.
    pub half_open: u32,
    /// Places for their UDP flows, as [`Self::half_open`].
    pub udp_flows: u32,
    /// The most bytes of data in a TCP segment to or from it, 64 to 65495, with IPv6 20 less; none: as many
    /// as the MTU of its interface has room for.
    pub mss: Option<u16>,
    /// When its backends get the second segment of a hello.
    #[serde(default)]
    pub second_segment: SecondSegment,
}

/// When the data plane sends the second segment of a hello, which makes a connection to a shared VIP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecondSegment {
    /// With the first one: the kernel copies the frame that both are made of.
    #[default]
    AtOnce,
    /// When the backend has acknowledged the first one.
    OnAck,
}

/// Bytes of the headers of IPv4 and TCP without options, which stand before the data of a segment.
pub(crate) const TCP_IP_BYTES: u16 = 40;

/// Every address there is, as prefixes.
pub(super) fn any() -> [IpNet; 2] {
    [Ipv4Net::default().into(), Ipv6Net::default().into()]
}

/// What is on-link, or behind a gateway that is not the default one: the `sources` and `backends` of
/// a network that does not say otherwise.
pub(super) fn reachable(prefixes: &[IpNet], routes: &[Route]) -> Vec<IpNet> {
    let routed = routes.iter().map(|route| route.to);
    let routed = routed.filter(|to| to.prefix_len() > 0);
    prefixes.iter().copied().chain(routed).collect()
}

/// Whether one of them is of IPv6.
pub(super) fn has_ipv6(prefixes: &[IpNet]) -> bool {
    prefixes.iter().any(|prefix| prefix.addr().is_ipv6())
}

impl Network {
    /// Whether it has IPv6.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        has_ipv6(&self.prefixes)
    }

    /// Its SNAT addresses, those of other boxes last.
    pub fn all_snat(&self) -> impl Iterator<Item = &Snat> {
        self.snat.iter().chain(&self.peer_snat)
    }

    /// Where checks come from, of all boxes.
    pub fn all_checks_from(&self) -> impl Iterator<Item = IpAddr> {
        self.checks_from
            .iter()
            .chain(&self.peer_checks_from)
            .copied()
    }

    /// Where frames to `address` go first: the gateway of its longest route, or itself.
    #[must_use]
    pub fn next_hop(&self, address: IpAddr) -> IpAddr {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Canonical.
    pub to: IpNet,
    /// The gateway, of the same family: an on-link address, or a link-local one of IPv6.
    pub via: IpAddr,
}

/// An address that flows to backends come from, and its ports that belong to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snat {
    /// A host address in an on-link prefix; unique in its network.
    pub address: IpAddr,
    /// 1024 or more.
    pub first_port: u16,
    /// How many from there on, 1 to 56320: as many flows at a time.
    pub ports: u16,
}

/// What hosts are on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The nodes of the hub, with the control planes behind their NodePorts.
    Mgmt,
    /// The workers of one tenant.
    Tenant,
    /// All other clients: a public network, or the users of the site.
    Uplink,
}

/// Backends of one network that serve the same thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Lower-case letters, digits and `-`; at most 63 characters.
    pub name: String,
    /// The name of the network that the backends are on.
    pub network: String,
    /// Unique in name, and in address and port, all of one family; may be empty.
    pub backends: Vec<Backend>,
    /// What clusters of Kubernetes are asked for; what they have said is among `backends`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discover: Vec<Discover>,
    /// The hosted cluster that it is of, in words; none: it is of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosted: Option<String>,
    /// How new flows are divided among them.
    #[serde(default, skip_serializing_if = "Algorithm::is_default")]
    pub balance: Algorithm,
    /// How long after its last new flow a client keeps the backend that it has had; none: it goes by the hash alone. Only
    /// with [`Algorithm::Source`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "duration::as_text_or_null"
    )]
    pub source_timeout: Option<Duration>,
    /// The most connections of each backend at a time; none: there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u16>,
    /// The header that announces the client of a connection to its backend; none: there is no header.
    /// With one no UDP goes to the backend.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// How its backends are checked; none: they count as up.
    pub health: Option<Health>,
    /// How long the flows of a backend may go on that was drained, or taken out of the file: then
    /// they are reset. None: for ever. Default [`DRAIN_TIMEOUT`].
    #[serde(with = "duration::as_text_or_never")]
    pub drain_timeout: Option<Duration>,
    /// How long a backend that comes back takes to have its full share of new flows; default 0.
    #[serde(with = "duration::as_text")]
    pub slow_start: Duration,
    /// The part of the backends, in percent, that must be up for the pool to go on as usual; default 0.
    /// With none up it never does.
    pub min_up: u8,
    /// What the pool does below that.
    pub below_min_up: BelowMinUp,
}

impl Pool {
    /// [`Self::source_timeout`] in whole seconds; 0 where there is none.
    pub fn source_timeout_seconds(&self) -> u32 {
        let timeout = self.source_timeout.unwrap_or_default();
        u32::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(u32::MAX >> 8)
    }
}

/// What each connection to a backend begins with, before the client's own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// The binary header of HAProxy's PROXY protocol, version 2.
    V2,
}

/// How long a drained backend's flows may go on: more than the 70 s that an API server takes to shut
/// down, and what other balancers wait.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);

/// What a pool does that has too few backends up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BelowMinUp {
    /// New flows are refused at once.
    #[default]
    Refuse,
    /// New flows go to all backends that the operator has not taken out, whatever their checks find.
    All,
}

/// One place that flows can be sent to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    /// The name given in the file, or that of the node, or else `address:port`.
    pub name: String,
    /// In a `backends` prefix of the pool's network; no VIP or SNAT address of it.
    pub address: IpAddr,
    /// 1 to 65535, usually a NodePort.
    pub port: u16,
    /// Its share of new flows in relation to the other backends, 1 to 256; default 1.
    pub weight: u16,
    /// Whether it gets new flows only as long as too few of the others are up; not in a configuration of before.
    #[serde(default)]
    pub backup: bool,
    /// What it was discovered for; none of one that the file has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovered: Option<ServicePort>,
}

/// What clients of one network can reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Lower-case letters, digits and `-`; at most 63 characters.
    pub name: String,
    /// The name of the network that the clients are on.
    pub network: String,
    /// The hosted cluster that it is of, in words; none: it is of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosted: Option<String>,
    /// At least one, all of the family of the pool's backends.
    pub listen: Vec<Listen>,
    /// Where flows are sent to.
    #[serde(flatten)]
    pub target: Target,
    /// The clients that may use it: the longest prefix that contains the client decides, and a client in none
    /// is denied. Canonical, sorted, unique in prefix. Empty: all that the network's `sources` let in.
    pub rules: Vec<Rule>,
    /// How long a flow in full use may be idle: a TCP flow that is established, or a UDP flow that
    /// was replied to if all listeners are UDP. None: for ever, which only TCP flows may. 100 ms to
    /// 30 days; default [`TCP_IDLE`], or [`UDP_IDLE`] if all listeners are UDP.
    #[serde(with = "duration::as_text_or_never")]
    pub idle_timeout: Option<Duration>,
    /// As [`Self::idle_timeout`], for the UDP flows of a service that may have both; default
    /// [`UDP_IDLE`].
    #[serde(with = "duration::as_text")]
    pub udp_idle_timeout: Duration,
    /// How long an established TCP flow may be idle before both its ends are probed, less than
    /// [`Self::idle_timeout`]; none: they are not probed.
    #[serde(with = "duration::as_text_or_null")]
    pub keepalive: Option<Duration>,
    /// Whether clients that the rules deny are answered, instead of silence.
    pub reject: bool,
    /// When its SYNs are answered by cookies; only with [`Target::Pool`], and over IPv4.
    #[serde(
        default = "SynCookies::auto",
        skip_serializing_if = "SynCookies::is_auto"
    )]
    pub syn_cookies: SynCookies,
    /// The most flows at a time, at least 1; none: as many as its network may have.
    pub max_flows: Option<u32>,
}

/// How long an established TCP flow may be idle. RFC 5382 REQ-5: not less than 2 hours 4 minutes.
pub const TCP_IDLE: Duration = Duration::from_secs((2 * 60 + 10) * 60);

/// How long a UDP flow that was replied to may be idle. RFC 4787 REQ-5: not less than 2 minutes.
pub const UDP_IDLE: Duration = Duration::from_secs(120);

impl Service {
    /// How long a flow in full use may be idle; none: for ever.
    #[must_use]
    pub fn idle(&self, protocol: Protocol) -> Option<Duration> {
        match protocol {
            Protocol::Tcp => self.idle_timeout,
            Protocol::Udp => Some(self.udp_idle_timeout),
        }
    }

    /// Whether it listens for this protocol.
    #[must_use]
    pub fn listens(&self, protocol: Protocol) -> bool {
        self.listen.iter().any(|listen| listen.protocol == protocol)
    }
}

/// Whether clients with addresses in one prefix may use a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rule {
    /// Canonical.
    pub prefix: IpNet,
    /// Or else denied.
    pub allow: bool,
}

/// How much there may be. What flows take is as large from the first start on as these say; of names there may be as many,
/// and a data plane has [room](Self::room) for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// SNAT addresses of all networks and boxes, 1 to 128; default 8. Each takes 7 MB and holds
    /// [`FLOWS_PER_ADDRESS`](lb_common::maps::snat::FLOWS_PER_ADDRESS) flows.
    pub snat_addresses: u16,
    /// `listen` entries of all services, 1 to 65535; default 16,384.
    pub services: u32,
    /// Backends of all pools, 1 to 65535; default 32,768.
    pub backends: u32,
    /// Pools, 1 to 4096; default 2048.
    pub pools: u32,
    /// Connections that are handed over at a time, 1 to 1,000,000; default 65,536.
    #[serde(default = "handed_over")]
    pub handed_over: u32,
}

impl Limits {
    /// What a data plane gets room for at its first start: for all names that there may ever be, which take hardly any
    /// memory before they are there.
    pub const fn room(self) -> Self {
        Self {
            services: MAX_SERVICES,
            backends: MAX_BACKENDS,
            pools: MAX_POOLS,
            ..self
        }
    }

    /// These, as far as a data plane has `room` for them.
    pub fn within(self, room: Self) -> Self {
        Self {
            services: self.services.min(room.services),
            backends: self.backends.min(room.backends),
            pools: self.pools.min(room.pools),
            ..room
        }
    }
}

/// Of a configuration that an earlier `lb` has applied.
const fn handed_over() -> u32 {
    DEFAULT_HANDED_OVER
}

/// How long flows may be idle that are not, or no more, in full use; each 100 ms to 30 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// TCP, not established yet; default 30 s.
    #[serde(with = "duration::as_text")]
    pub half_open: Duration,
    /// TCP, closed by one of its ends; default 2 minutes.
    #[serde(with = "duration::as_text")]
    pub half_closed: Duration,
    /// UDP, not replied to yet; default 30 s.
    #[serde(with = "duration::as_text")]
    pub udp: Duration,
}

#[cfg(test)]
impl Default for Limits {
    fn default() -> Self {
        Self {
            snat_addresses: 8,
            services: lb_common::maps::DEFAULT_SERVICES,
            backends: lb_common::maps::DEFAULT_BACKENDS,
            pools: lb_common::maps::DEFAULT_POOLS,
            handed_over: DEFAULT_HANDED_OVER,
        }
    }
}

#[cfg(test)]
impl Default for Timeouts {
    fn default() -> Self {
        Self {
            half_open: Duration::from_secs(30),
            half_closed: Duration::from_secs(120),
            udp: Duration::from_secs(30),
        }
    }
}
