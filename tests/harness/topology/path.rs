//! The path of the bench: what is sent on one side of the load balancer arrives on the other, and a
//! namespace between stands for the wire, so that frames reach its NICs as a wire would bring them.
//!
//! ```text
//!                  wire                                          wire
//!  client c0 --- wc : w0 --- eth0 [ lb ] eth1 --- w1 : ws1 --- s1 server
//!  10.200.0.0/16                         eth2 --- w2 : ws2 --- s2
//!                                             10.201.0.0/16, 10.202.0.0/16
//! ```
//!
//! The ports of the wire are joined by XDP programs, which the bench attaches: where a frame is counted, made
//! or only passed on is for it to say.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    ops::Deref,
};

use anyhow::Result;

use super::{GRO, Host, OFFLOADS, Site, mac_of, set};
use crate::netns::Netns;

/// NICs of the load balancer, and the wire's port of each.
pub const NICS: [(&str, &str); 3] = [("eth0", "w0"), ("eth1", "w1"), ("eth2", "w2")];
/// Ports of the wire that the ends are on, opposite to those of the NICs, with the interfaces of the ends.
pub const ENDS: [(&str, &str); 3] = [("wc", "c0"), ("ws1", "s1"), ("ws2", "s2")];
/// The network of each NIC, `/16`.
pub const NETWORKS: [Ipv4Addr; 3] = [
    Ipv4Addr::new(10, 200, 0, 0),
    Ipv4Addr::new(10, 201, 0, 0),
    Ipv4Addr::new(10, 202, 0, 0),
];
const PREFIX_BITS: u8 = 16;
/// Bits of a network of IPv6, see [`six`].
const PREFIX_BITS6: u8 = 64;

/// An address of one of the [`NETWORKS`].
pub const fn address(network: usize, third: u8, fourth: u8) -> Ipv4Addr {
    let [first, second, ..] = NETWORKS[network].octets();
    Ipv4Addr::new(first, second, third, fourth)
}

/// The address of IPv6 that a host has beside one of the [`NETWORKS`]: of `10.N.x.y` it is `fd00:0:0:N::10.N.x.y`.
pub const fn six(address: Ipv4Addr) -> Ipv6Addr {
    let [a, network, c, d] = address.octets();
    let high = u16::from_be_bytes([a, network]);
    let low = u16::from_be_bytes([c, d]);
    Ipv6Addr::new(0xfd00, 0, 0, network as u16, 0, 0, high, low)
}

/// The namespaces of one run; all go with it.
#[derive(Debug)]
pub struct Path {
    /// Sends the requests.
    pub client: Host,
    /// Answers them, in both networks behind the load balancer.
    pub server: Host,
    /// What is between them and the load balancer.
    pub wire: Netns,
    site: Site,
}

impl Path {
    /// Builds the namespaces and links; nothing passes the wire yet.
    ///
    /// # Errors
    ///
    /// When a namespace or link cannot be made; what was made is removed.
    pub fn build() -> Result<Self> {
        Self::with_queues(1)
    }

    /// The same with so many queues at each end of each link, of which a CPU uses the one with its number.
    ///
    /// # Errors
    ///
    /// As for [`Self::build`].
    pub fn with_queues(queues: usize) -> Result<Self> {
        let site = Site::new()?;
        let path = Self {
            client: site.host("client", address(0, 1, 1))?,
            server: site.host("server", address(1, 1, 1))?,
            wire: Netns::create(format!("{}-wire", site.run()))?,
            site,
        };
        for (nic, port) in NICS {
            link(&path.wire, port, &path.site.lb, nic, queues)?;
        }
        let ends = [&path.client, &path.server, &path.server];
        for ((port, end), host) in ENDS.into_iter().zip(ends) {
            link(&path.wire, port, &host.netns, end, queues)?;
            // Without NAPI a veth does not take what XDP sends to it.
            set(&host.netns, end, &GRO)?;
        }
        for ((network, (_, end)), host) in (0..).zip(ENDS).zip(ends) {
            let address = address(network, 1, 1);
            let line = format!("addr add {address}/{PREFIX_BITS} dev {end}\n");
            host.netns.ip_batch(&line)?;
        }
        Ok(path)
    }

    /// Gives the server this many addresses in a row, from `.1.1` on, in both of its networks.
    ///
    /// # Errors
    ///
    /// When it has one of them already, but the first.
    pub fn add_backends(&self, count: u8) -> Result<()> {
        for (network, (_, end)) in [1, 2].into_iter().zip(&ENDS[1..]) {
            let more = (2..=count).map(|last| {
                let address = address(network, 1, last);
                format!("addr add {address}/{PREFIX_BITS} dev {end}\n")
            });
            self.server.netns.ip_batch(&more.collect::<String>())?;
        }
        Ok(())
    }

    /// Gives both ends their addresses of IPv6, and of the server's the first so many.
    ///
    /// # Errors
    ///
    /// When one has them already.
    pub fn add_ipv6(&self, backends: u8) -> Result<()> {
        let ends = [&self.client, &self.server, &self.server];
        for ((network, (_, end)), host) in (0..).zip(ENDS).zip(ends) {
            let count = if network == 0 { 1 } else { backends };
            let addresses = (1..=count).map(|last| {
                let address = six(address(network, 1, last));
                format!("{address}/{PREFIX_BITS6}")
            });
            host.netns.add_ipv6(end, &addresses.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Makes the load balancer's host the router of both sides, who know its MACs without asking: with
    /// `forward`, its kernel forwards.
    ///
    /// # Errors
    ///
    /// When an address or route is there already.
    pub fn route(&self, forward: bool) -> Result<()> {
        let mut router = String::new();
        for (network, (nic, _)) in (0..).zip(NICS) {
            let address = address(network, 0, 1);
            router += &format!("addr add {address}/{PREFIX_BITS} dev {nic}\n");
        }
        self.lb.ip_batch(&router)?;
        self.lb
            .set_sysctl("ipv4/ip_forward", if forward { "1" } else { "0" })?;
        self.know_the_router()
    }

    /// Both sides send to each other through the load balancer's host, whatever it does with that.
    ///
    /// # Errors
    ///
    /// When a route is there already.
    pub fn know_the_router(&self) -> Result<()> {
        let hosts = [&self.client, &self.server, &self.server];
        for (network, host) in hosts.into_iter().enumerate() {
            let ((nic, _), (_, end)) = (NICS[network], ENDS[network]);
            let (router, mac) = (address(network, 0, 1), mac_of(&self.lb, nic)?);
            host.netns
                .ip_batch(&format!("neigh replace {router} lladdr {mac} dev {end}\n"))?;
        }
        let [router, first, _] = [0, 1, 2].map(|network| address(network, 0, 1));
        self.client
            .netns
            .ip_batch(&format!("route add default via {router}\n"))?;
        self.server
            .netns
            .ip_batch(&format!("route add default via {first}\n"))
    }
}

/// A veth pair between the wire and a namespace, with both ends up.
fn link(wire: &Netns, port: &str, netns: &Netns, device: &str, queues: usize) -> Result<()> {
    let name = netns.name();
    let each = format!("numtxqueues {queues} numrxqueues {queues}");
    wire.ip_batch(&format!(
        "link add {port} {each} type veth peer name {device} netns {name} {each}\nlink set {port} up\n"
    ))?;
    netns.ip_batch(&format!("link set {device} up\n"))?;
    set(wire, port, &OFFLOADS)?;
    set(netns, device, &OFFLOADS)
}

impl Deref for Path {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}
