//! The MACs of our addresses are asked for by real kernels, and by stations that want to fill the one neighbour
//! table that all namespaces of a kernel share.

use std::{net::Ipv4Addr, thread, time::Duration};

use anyhow::{Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::{packet::arp, raw::RawPort},
    oracle::wire::Wire,
    product::lb::Lb,
    servers::peers::Peers,
    topology::{CONFIG, ECHO, LAB_CONFIG, Site, TENANT_NIC, Topology, Trunk, VIP, mac_of},
    traffic::client,
};

use crate::{flows::life::LIMIT, nic::cell::inside};

const ASK: u8 = 1;
const ANSWER: u8 = 2;
/// Far more than a cell has neighbours, and not enough to harm the other tests of this machine.
pub(crate) const NEIGHBOURS: u32 = 300;
/// Frames of each kind are spread over this time.
pub(crate) const PACE: Duration = Duration::from_millis(1);

/// How many neighbours the kernel of a tenant's cell has, in any state.
pub(crate) fn neighbours(site: &Site, network: &str) -> Result<usize> {
    let all = inside(site, network, "ip neigh show nud all dev cell")?;
    let ours = all.lines().filter(|line| !line.contains("NOARP"));
    Ok(ours.count())
}

/// The tenant's cell is gone, and with it the kernel that has its addresses: clients find the VIP, and what the
/// data plane forwards goes on.
#[privileged_test]
fn a_vip_is_found_with_its_cell_gone() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    inside(&topology, "tenant-a", "ip link del dev cell")?;
    for client in &topology.clients {
        client.netns.run("ip neigh flush all")?;
        client.netns.inside(|| client::who(None, ECHO))??;
        let found = client.netns.run(&format!("ip neigh show {VIP}"))?;
        let mac = mac_of(&topology.lb, TENANT_NIC)?.to_string();
        ensure!(found.contains(&mac), "{found} is not {mac}");
    }
    Ok(())
}

/// A kernel that wants the VIP for itself hears that it is taken (RFC 5227 section 2.1.1).
#[privileged_test]
fn a_probe_for_the_vip_hears_that_it_is_in_use() -> Result<()> {
    let topology = Topology::poc()?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();
    let mac = mac_of(&client.netns, "eth0")?;
    let wire = Wire::received(&client.netns, "eth0", "arp", topology.dir())?;
    let port = RawPort::open(&client.netns, "eth0")?;
    port.send(&arp(ASK, mac, "0.0.0.0", Mac::default(), &VIP.to_string()))?;
    let nic = mac_of(&topology.lb, TENANT_NIC)?;
    let wanted = arp(ANSWER, nic, &VIP.to_string(), mac, "0.0.0.0");
    wire.wait_for("an answer", 1, LIMIT, |frame| frame.starts_with(&wanted))
}

/// A host of one tenant pretends to be many stations that ask, answer and announce: the kernel of its cell gets
/// to know none of them, and the other tenant, whose clients know nothing any more, connects.
#[privileged_test]
fn stations_that_a_tenant_makes_up_are_no_neighbours_of_its_cell() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let [_of_a, _of_b] = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    let lb = Lb::start(&trunk, LAB_CONFIG)?;
    let flooder = a.client();
    flooder.netns.inside(|| client::who(None, ECHO))??;
    let before = neighbours(&trunk, "tenant-a")?;
    let (mac, nic) = (mac_of(&flooder.netns, "eth0")?, trunk.mac(TENANT_NIC)?);
    let wire = Wire::received(&flooder.netns, "eth0", "arp", trunk.dir())?;
    let port = RawPort::open(&flooder.netns, "eth0")?;
    let vip = VIP.to_string();
    for number in 0..NEIGHBOURS {
        // None of them is there.
        let inside = u8::try_from(120 + number % 100)?;
        let outside = Ipv4Addr::from(0x0102_0000 + number);
        for sender in [Ipv4Addr::new(192, 168, 203, inside), outside] {
            let sender = sender.to_string();
            port.send(&arp(ASK, mac, &sender, Mac::default(), &vip))?;
            port.send(&arp(ANSWER, mac, &sender, nic, &vip))?;
            port.send(&arp(ASK, mac, &sender, Mac::BROADCAST, &sender))?;
        }
        thread::sleep(PACE);
    }
    // Those that the network may have are answered, each of them.
    let answers = usize::try_from(NEIGHBOURS)?;
    wire.wait_for("answers", answers, LIMIT, |frame| {
        frame.get(21) == Some(&ANSWER)
    })?;
    let after = neighbours(&trunk, "tenant-a")?;
    ensure!(after <= before + 1, "{before} neighbours, then {after}");
    let forged = lb.dropped("neighbour_forged")?;
    assert_eq!(forged, u64::from(3 * NEIGHBOURS));
    for client in &b.clients {
        client.netns.run("ip neigh flush all")?;
        client.netns.inside(|| client::who(None, ECHO))??;
    }
    Ok(())
}
