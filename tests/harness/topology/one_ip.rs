//! One host whose only address serves several clusters that run behind a bridge on it.
//!
//! ```text
//!  c1 .50  c2 .51  ur .1 -- c-far 198.51.100.10
//!    |       |       |
//!  [ ulan: bridge    ] -- eth0 203.0.113.10 [ lb ] virbr0 192.168.126.1 -- b1 .11  b2 .12  b3 .13
//! ```

use std::{net::Ipv4Addr, ops::Deref};

use anyhow::Result;

use super::{
    Host, LB_PORT, Routed, Site, Switch, TENANT_NIC, TENANT_PREFIX_BITS, add_bridge, join_hosts,
    router, settle,
};
use crate::netns::Netns;

/// The host's only outside address, and the VIP.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
/// The bridge on the host.
pub const BRIDGE: &str = "virbr0";
/// The host's address on the bridge.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 126, 1);

const CLIENTS: [(&str, Ipv4Addr); 2] = [
    ("c1", Ipv4Addr::new(203, 0, 113, 50)),
    ("c2", Ipv4Addr::new(203, 0, 113, 51)),
];
const BACKENDS: [(&str, Ipv4Addr); 3] = [
    ("b1", Ipv4Addr::new(192, 168, 126, 11)),
    ("b2", Ipv4Addr::new(192, 168, 126, 12)),
    ("b3", Ipv4Addr::new(192, 168, 126, 13)),
];

/// The namespaces of one run; all go with it.
#[derive(Debug)]
pub struct OneIp {
    /// On the uplink.
    pub clients: Vec<Host>,
    /// Behind a router of the uplink.
    pub far: Routed,
    /// Guests of the load balancer's host.
    pub backends: Vec<Host>,
    /// The switch of the uplink.
    pub uplink_lan: Netns,
    _ports: Switch,
    site: Site,
}

impl OneIp {
    /// Builds two clients, one behind a router, and a host with three guests.
    ///
    /// # Errors
    ///
    /// When a namespace or link cannot be made; what was made is removed.
    pub fn build() -> Result<Self> {
        let site = Site::new()?;
        let ports = Switch::load()?;
        let uplink_lan = site.switch("ulan")?;
        site.join(&uplink_lan, "br0", TENANT_NIC)?;
        ports.pass(&uplink_lan, LB_PORT)?;
        let clients = site.hosts(&CLIENTS)?;
        join_hosts(&uplink_lan, "br0", &clients, TENANT_PREFIX_BITS)?;
        let far = router::uplink(&site, &uplink_lan)?;
        add_bridge(&site.lb, BRIDGE)?;
        let backends = site.hosts(&BACKENDS)?;
        join_hosts(&site.lb, BRIDGE, &backends, TENANT_PREFIX_BITS)?;
        site.lb.ip_batch(&format!(
            "addr add {ADDRESS}/24 dev {TENANT_NIC}\naddr add {GATEWAY}/24 dev {BRIDGE}\n\
             route add default via {}\n",
            far.via,
        ))?;
        for backend in &backends {
            backend
                .netns
                .ip_batch(&format!("route add default via {GATEWAY}\n"))?;
        }
        [&uplink_lan, &site.lb].into_iter().try_for_each(settle)?;
        Ok(Self {
            clients,
            far,
            backends,
            uplink_lan,
            _ports: ports,
            site,
        })
    }
}

impl Deref for OneIp {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}
