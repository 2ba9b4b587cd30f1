//! The load balancer's host as a router, whose kernel forwards.

use anyhow::Result;
use lb_tests::topology::{
    mac_of,
    path::{self, ENDS, NICS, Path, six},
};

use super::configurations::{BACKENDS, VIP};

/// The kernel forwards, knows everyone's MAC, and has both addresses of a load balancer. Clients of a stream
/// are behind the client's own address.
pub(crate) fn as_router(path: &Path) -> Result<()> {
    path.route(true)?;
    let mut lines = format!("addr add {VIP}/16 dev {}\n", NICS[0].0);
    let ends = [&path.client.netns, &path.server.netns, &path.server.netns];
    for (network, end) in ends.into_iter().enumerate() {
        let mac = mac_of(end, ENDS[network].1)?;
        let last = if network == 0 { 1 } else { BACKENDS };
        for last in 1..=last {
            let (address, nic) = (path::address(network, 1, last), NICS[network].0);
            lines += &format!("neigh replace {address} lladdr {mac} dev {nic}\n");
        }
        // Without NAPI a veth does not take what XDP sends to it.
        path.lb
            .run(&format!("ethtool -K {} gro on", NICS[network].0))?;
    }
    let (clients, client) = (path::address(0, 64, 0), path::address(0, 1, 1));
    lines += &format!("route add {clients}/18 via {client}\n");
    path.lb.ip_batch(&lines)?;
    for (nic, _) in NICS {
        path.lb
            .set_sysctl(&format!("ipv4/conf/{nic}/rp_filter"), "0")?;
    }
    // So that those which a round has opened are gone in the next one.
    path.lb
        .set_sysctl("netfilter/nf_conntrack_tcp_timeout_syn_sent", "2")
        .or(Ok(()))
}

/// The same by IPv6, in a path whose ends have their addresses of it.
pub(super) fn as_router6(path: &Path) -> Result<()> {
    let ends = [&path.client.netns, &path.server.netns, &path.server.netns];
    let mut lines = String::new();
    for (network, end) in ends.into_iter().enumerate() {
        let ((nic, _), mac) = (NICS[network], mac_of(end, ENDS[network].1)?);
        let own = six(path::address(network, 0, 1));
        path.lb.add_ipv6(nic, &[format!("{own}/64")])?;
        let last = if network == 0 { 1 } else { BACKENDS };
        for last in 1..=last {
            let address = six(path::address(network, 1, last));
            lines += &format!("neigh replace {address} lladdr {mac} dev {nic}\n");
        }
    }
    let [clients, client] = [path::address(0, 64, 0), path::address(0, 1, 1)].map(six);
    lines += &format!("route add {clients}/114 via {client}\n");
    path.lb.ip_batch(&lines)?;
    path.lb.set_sysctl("ipv6/conf/all/forwarding", "1")
}
