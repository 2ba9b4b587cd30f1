//! Cells: the kernel's stack, locked in (DESIGN section 3).

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};
use lb_tests::{
    poll, process,
    product::lb::Lb,
    servers::peers::Peers,
    topology::{CONFIG, ECHO, MGMT_NIC, SNAT, Site, TENANT_NIC, Topology, VIP},
    traffic::client,
};

/// A backend that changes its MAC in silence is found again in this time.
const MOVED: Duration = Duration::from_secs(10);

#[privileged_test]
fn a_cell_holds_its_networks_addresses_and_forwards_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, CONFIG)?;
    // A cell that is adopted has been changed by another process, as the host may have been before the start.
    lb.process().stop()?;
    for network in ["mgmt", "tenant-a"] {
        for place in ["all", "cell"] {
            for key in ["arp_accept", "drop_gratuitous_arp"] {
                let line = format!("sysctl -q -w net.ipv4.conf.{place}.{key}=1");
                inside(&topology, network, &line)?;
            }
        }
        inside(
            &topology,
            network,
            "sysctl -q -w net.ipv6.conf.all.forwarding=1",
        )?;
    }
    lb.restart(CONFIG)?;

    for (network, nic, address) in [("mgmt", MGMT_NIC, SNAT), ("tenant-a", TENANT_NIC, VIP)] {
        let addresses = inside(&topology, network, "ip -o -4 address show dev cell")?;
        assert!(
            addresses.contains(&format!(" {address}/32 ")),
            "{addresses}"
        );
        let mac = mac_of(&topology, nic)?;
        let links = inside(&topology, network, "ip -o link show dev cell")?;
        assert!(
            links.contains(&mac),
            "{links} has not the MAC {mac} of {nic}"
        );
        for (key, value) in [
            ("net.ipv4.ip_forward", "0"),
            ("net.ipv6.conf.all.forwarding", "0"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.all.arp_ignore", "1"),
            ("net.ipv4.conf.all.accept_redirects", "0"),
            ("net.ipv4.ip_local_port_range", "64512\t65535"),
            ("net.ipv4.tcp_syncookies", "1"),
            ("net.ipv6.conf.all.disable_ipv6", "1"),
            ("net.ipv4.conf.default.rp_filter", "0"),
            ("net.ipv4.conf.all.arp_announce", "2"),
            ("net.ipv4.conf.default.accept_redirects", "0"),
            ("net.ipv4.conf.all.send_redirects", "0"),
            ("net.ipv4.conf.default.send_redirects", "0"),
            ("net.ipv4.conf.all.accept_source_route", "0"),
            ("net.ipv6.conf.default.disable_ipv6", "1"),
            ("net.ipv4.conf.all.arp_accept", "0"),
            ("net.ipv4.conf.cell.arp_accept", "0"),
            ("net.ipv4.conf.all.drop_gratuitous_arp", "0"),
            ("net.ipv4.conf.cell.drop_gratuitous_arp", "0"),
            ("net.ipv4.neigh.cell.base_reachable_time_ms", "600"),
            ("net.ipv4.neigh.cell.delay_first_probe_time", "0"),
            ("net.ipv4.neigh.cell.retrans_time_ms", "300"),
            ("net.ipv4.neigh.cell.ucast_solicit", "2"),
            ("net.ipv4.neigh.cell.mcast_resolicit", "1"),
            ("net.ipv4.neigh.cell.mcast_solicit", "1"),
        ] {
            let found = inside(&topology, network, &format!("sysctl -n {key}"))?;
            assert_eq!(found.trim(), value, "{network}: {key}");
        }
        let routes = inside(&topology, network, "ip -4 route show default")?;
        assert_eq!(routes, "", "a cell has no default route");
    }
    Ok(())
}

/// The client's kernel has asked on the tenant's wire, and the cell's has answered.
#[privileged_test]
fn arp_for_the_vip_is_answered_with_the_nics_mac() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();

    client.netns.inside(|| client::who(None, ECHO))??;

    let mac = mac_of(&topology, TENANT_NIC)?;
    let neighbour = client.netns.run(&format!("ip neigh show {VIP}"))?;
    assert!(neighbour.contains(&mac), "{neighbour} has not {mac}");
    Ok(())
}

/// DATA-PLANE-RULES 19: nothing but the cell's own probes tells that a backend has moved.
#[privileged_test]
fn a_backend_that_changes_its_mac_is_found_again() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let moved = "02:00:00:00:77:01";

    topology.nodes[0]
        .netns
        .run(&format!("ip link set dev eth0 address {moved}"))?;

    poll::until("the new MAC of the first node", MOVED, || {
        let backends = lb.backends()?;
        let hop = backends
            .into_iter()
            .find_map(|backend| backend.next_hop.filter(|hop| hop == moved));
        Ok(hop)
    })?;
    for _ in 0..20 {
        topology
            .client()
            .netns
            .inside(|| client::who(None, ECHO))??;
    }
    Ok(())
}

/// Output of a command in the cell of `network`.
pub(crate) fn inside(site: &Site, network: &str, line: &str) -> Result<String> {
    let cell = format!("--net=/run/netns/lb.{}.{network}", site.run());
    let mut command = Command::new("nsenter");
    process::succeed(command.arg(cell).arg("--").args(line.split(' ')))
}

fn mac_of(topology: &Topology, nic: &str) -> Result<String> {
    let link = topology.lb.run(&format!("ip -o link show dev {nic}"))?;
    let mut words = link
        .split_ascii_whitespace()
        .skip_while(|word| *word != "link/ether");
    words.nth(1).map(str::to_owned).context("the NIC has a MAC")
}
