//! The MACs of IPv6 addresses of ours are asked for by real kernels, and by stations that are made up.

use std::{net::Ipv6Addr, thread};

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::{
        raw::RawPort,
        six::discovery::{OVERRIDE, SOLICITED, advertisement, group_mac, solicitation},
    },
    netns::Netns,
    oracle::wire::Wire,
    poll,
    product::lb::Lb,
    topology::{MGMT_NIC, TENANT_NIC, VIP6, mac_of},
};

use super::given::{config, open, topology};
use crate::{
    flows::life::LIMIT,
    nic::{
        cell::inside,
        resolve::{NEIGHBOURS, PACE, neighbours},
    },
};

/// A /64 has any number of stations: the kernel of the cell gets to know none of those that a host makes up.
#[privileged_test]
fn stations_that_a_tenant_makes_up_are_no_neighbours_of_its_cell() -> Result<()> {
    let topology = topology()?;
    let lb = Lb::start(&topology, &config())?;
    let client = topology.client();
    let before = neighbours(&topology, "tenant-a")?;
    let (mac, nic) = (mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?);
    let port = RawPort::open(&client.netns, "eth0")?;
    let all = (group_mac("ff02::1".parse()?), "ff02::1");
    let vip = VIP6.to_string();
    let wire = Wire::received(&client.netns, "eth0", "icmp6[0] == 136", topology.dir())?;
    for number in 0..NEIGHBOURS {
        let [high, low] = [u16::try_from(number >> 8)?, u16::try_from(number & 0xff)?];
        for first in [0xfd00, 0xfe80, 0x2001] {
            let second = if first == 0xfd00 { 0x203 } else { 0 };
            let sender = Ipv6Addr::new(first, second, 0, 0, 7, 7, high, low).to_string();
            port.send(&solicitation(mac, &sender, &vip).bytes())?;
            let flags = SOLICITED | OVERRIDE;
            port.send(&advertisement(mac, &sender, &sender, (nic, &vip), flags).bytes())?;
            port.send(&advertisement(mac, &sender, &sender, all, OVERRIDE).bytes())?;
        }
        thread::sleep(PACE);
    }
    wire.wait_for("answers", 2 * usize::try_from(NEIGHBOURS)?, LIMIT, |_| true)?;
    let after = neighbours(&topology, "tenant-a")?;
    ensure!(after <= before + 1, "{before} neighbours, then {after}");
    assert_eq!(lb.dropped("neighbour_forged")?, u64::from(NEIGHBOURS));
    Ok(())
}

/// What a kernel does with neighbour discovery: it asks, looks whether a neighbour is still there, and whether an
/// address that it is given is in use. Natively, in generic mode, and with the cell gone.
#[privileged_test]
fn a_kernel_finds_the_vip_by_neighbour_discovery() -> Result<()> {
    for is_generic in [false, true] {
        let topology = topology()?;
        if is_generic {
            let line = format!("ip link set dev {MGMT_NIC} mtu 9000");
            topology.lb.run(&line)?;
            topology.mgmt_lan.run("ip link set dev p-lb mtu 9000")?;
        }
        let lb = Lb::start(&topology, &config())?;
        let mode = lb
            .status()?
            .networks
            .into_iter()
            .next()
            .context("a network")?;
        assert_eq!(mode.mode, if is_generic { "generic" } else { "native" });
        let client = &topology.client().netns;
        let mac = mac_of(&topology.lb, TENANT_NIC)?;
        for is_there in [true, false] {
            if !is_there {
                inside(&topology, "tenant-a", "ip link del dev cell")?;
            }
            client.run("ip -6 neigh flush all")?;
            let words = || format!("generic {is_generic}, cell {is_there}");
            open(&topology).with_context(words)?;
            is_reachable(client, mac).with_context(words)?;
            let probe = format!("ip -6 neigh change {VIP6} dev eth0 lladdr {mac} nud probe");
            client.run(&probe)?;
            is_reachable(client, mac).with_context(words)?;
        }
        // Last of all: the address stays there, tentative for ever.
        client.set_sysctl("ipv6/conf/eth0/dad_transmits", "1")?;
        client.set_sysctl("ipv6/conf/eth0/accept_dad", "1")?;
        client.run(&format!("ip -6 address add {VIP6}/64 dev eth0"))?;
        poll::until("the address in use", LIMIT, || {
            let found = client.run("ip -6 address show dev eth0")?;
            Ok(found.contains("dadfailed").then_some(()))
        })
        .with_context(|| format!("generic {is_generic}"))?;
    }
    Ok(())
}

/// Waits until the client's kernel has had an answer of the VIP.
fn is_reachable(client: &Netns, mac: Mac) -> Result<()> {
    poll::until("the VIP in reach", LIMIT, || {
        let found = client.run(&format!("ip -6 neigh show {VIP6}"))?;
        let is_found = found.contains(&mac.to_string()) && found.contains("REACHABLE");
        Ok(is_found.then_some(()))
    })
}
