//! A host that is not on a LAN but behind a router of it.

use std::net::Ipv4Addr;

use anyhow::Result;

use super::{Host, MGMT_PREFIX_BITS, OFFLOADS, Site, TENANT_PREFIX_BITS, plug, set, settle};
use crate::netns::Netns;

/// A router on a LAN, and the host behind it.
#[derive(Debug)]
pub struct Routed {
    /// The host; it knows no other way than the router.
    pub host: Host,
    /// Forwards between the LAN and the host.
    pub router: Netns,
    /// The router's address on the LAN.
    pub via: Ipv4Addr,
    /// The prefix behind the router, as a configuration names it.
    pub to: &'static str,
}

/// A client 172.16.5.10 behind the tenant router 192.168.203.1.
pub(super) fn tenant(site: &Site, lan: &Netns) -> Result<Routed> {
    let via = Ipv4Addr::new(192, 168, 203, 1);
    let host = site.host("c-far", Ipv4Addr::new(172, 16, 5, 10))?;
    let router = Netns::create(format!("{}-tr", site.run()))?;
    let routed = Routed {
        host,
        router,
        via,
        to: "172.16.5.0/24",
    };
    routed.connect(lan, "p-tr", TENANT_PREFIX_BITS)?;
    Ok(routed)
}

/// A node 10.77.0.10 behind the mgmt router 10.32.96.1.
pub(super) fn mgmt(site: &Site, lan: &Netns) -> Result<Routed> {
    let via = Ipv4Addr::new(10, 32, 96, 1);
    let host = site.host("n-far", Ipv4Addr::new(10, 77, 0, 10))?;
    let router = Netns::create(format!("{}-mr", site.run()))?;
    let routed = Routed {
        host,
        router,
        via,
        to: "10.77.0.0/24",
    };
    routed.connect(lan, "p-mr", MGMT_PREFIX_BITS)?;
    Ok(routed)
}

/// A client 198.51.100.10 behind the router 203.0.113.1 of an uplink.
pub(super) fn uplink(site: &Site, lan: &Netns) -> Result<Routed> {
    let via = Ipv4Addr::new(203, 0, 113, 1);
    let host = site.host("c-far", Ipv4Addr::new(198, 51, 100, 10))?;
    let router = Netns::create(format!("{}-ur", site.run()))?;
    let routed = Routed {
        host,
        router,
        via,
        to: "198.51.100.0/24",
    };
    routed.connect(lan, "p-ur", TENANT_PREFIX_BITS)?;
    Ok(routed)
}

impl Routed {
    /// `eth0` of the router is on the LAN, `eth1` faces the host as the first address of its /24.
    fn connect(&self, lan: &Netns, port: &str, prefix_bits: u8) -> Result<()> {
        let Self {
            host,
            router,
            via,
            to: _,
        } = self;
        plug(lan, "br0", port, router, "eth0", 1)?;
        let [a, b, c, _] = host.address.octets();
        let gateway = Ipv4Addr::new(a, b, c, 1);
        router.set_sysctl("ipv4/ip_forward", "1")?;
        router.ip_batch(&format!(
            "link add eth1 type veth peer name eth0 netns {}\n\
             addr add {via}/{prefix_bits} dev eth0\naddr add {gateway}/24 dev eth1\n\
             link set eth0 up\nlink set eth1 up\n",
            host.netns.name(),
        ))?;
        set(router, "eth1", &OFFLOADS)?;
        set(&host.netns, "eth0", &OFFLOADS)?;
        host.netns.ip_batch(&format!(
            "addr add {}/24 dev eth0\nlink set eth0 up\nroute add default via {gateway}\n",
            host.address,
        ))?;
        settle(lan)
    }
}
