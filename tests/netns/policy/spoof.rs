//! A source that may not come from its network: FEATURES C10, RELIABILITY 43.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use lb_common::{addr::Mac, wire::header::SYN};
use lb_tests::{
    frames::{
        packet,
        raw::{self, RawPort},
    },
    oracle::wire::Wire,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::peers::Peers,
    topology::{
        CONFIG, DNS_NODE_PORT, ECHO, Host, LAB_CONFIG, MGMT_NIC, SNAT, Site, TENANT_NIC,
        TENANT_SNAT, Topology, Trunk, VIP, mac_of,
    },
};

use crate::oracle::{self, Oracle};

const PORT: u16 = 20_000;

/// Another tenant's prefix, and our own addresses, from a tenant's VLAN.
#[privileged_test]
fn a_source_of_another_network_opens_no_flow() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let of_a = Peers::start_tenant(&trunk, a)?;
    // The tenants' prefixes overlap, but a has one more.
    let more = |tenant: Keys| tenant.push("prefixes", "192.168.7.0/24");
    let config = Config::read(LAB_CONFIG).network("tenant-a", more);
    let lb = Lb::start(&trunk, &config)?;
    let oracle = Oracle::start(&trunk.mgmt_lan, trunk.dir(), a.client(), a.ports.dns)?;
    let at_a = Wire::received(&a.client().netns, "eth0", "ip", trunk.dir())?;

    let sources = [[192, 168, 7, 50], VIP.octets(), TENANT_SNAT.octets()].map(Ipv4Addr::from);
    let sent = send_opens(&trunk, b.client(), &sources, ECHO)?;

    oracle.saw_nothing_else()?;
    assert_eq!(lb.dropped("spoofed")?, sent);
    let answers = at_a.stop()?;
    assert_eq!(oracle::of(&answers, sources[0]), Vec::<&Vec<u8>>::new());
    drop(of_a);
    Ok(())
}

/// Addresses that no host can have are no source anywhere, not even where `sources` is `any`.
#[privileged_test]
fn a_bogon_opens_no_flow() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let any = |tenant: Keys| tenant.set("sources", "any");
    let config = Config::read(CONFIG).network("tenant-a", any);
    let lb = Lb::start(&topology, &config)?;
    let client = topology.client();
    let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), client, DNS_NODE_PORT)?;

    let bogons = [
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [127, 0, 0, 1],
        [169, 254, 169, 254],
        [224, 0, 0, 1],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
    ];
    let sent = send_opens(&topology, client, &bogons.map(Ipv4Addr::from), ECHO)?;
    // The network's own first and last address are no host's either.
    let edges = [[192, 168, 203, 0], [192, 168, 203, 255]].map(Ipv4Addr::from);
    let edges_sent = send_opens(&topology, client, &edges, ECHO)?;

    oracle.saw_nothing_else()?;
    assert_eq!(lb.dropped("bogon")?, sent);
    assert_eq!(lb.dropped("spoofed")?, edges_sent);
    Ok(())
}

/// RELIABILITY 43: a tenant in the guise of the hub.
#[privileged_test]
fn reliability_43_a_source_of_the_hub_from_a_tenant_is_dropped() -> Result<()> {
    let host = Ipv4Addr::new(10, 32, 96, 10);
    let topology = Topology::poc()?;
    topology
        .lb
        .run(&format!("ip address add {host}/20 dev {MGMT_NIC}"))?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();
    let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), client, DNS_NODE_PORT)?;

    let mut sources: Vec<Ipv4Addr> = topology.nodes.iter().map(|node| node.address).collect();
    sources.extend([SNAT, host, Ipv4Addr::new(10, 32, 96, 200)]);
    let to_vip = send_opens(&topology, client, &sources, ECHO)?;
    // Neither do they get past the VIP: to a node, to a SNAT port, to the host.
    let port = RawPort::open(&client.netns, "eth0")?;
    let hops = hops(&topology, client)?;
    for &source in &sources {
        for to in [topology.nodes[1].address, SNAT, host] {
            port.send(&raw::echo_request(hops, source, to))?;
            send_opens(&topology, client, &[source], SocketAddrV4::new(to, 30_700))?;
            send_opens(&topology, client, &[source], SocketAddrV4::new(to, 1024))?;
        }
    }

    oracle.saw_nothing_else()?;
    assert_eq!(lb.dropped("spoofed")?, to_vip);
    assert_eq!(
        lb.flows()?
            .iter()
            .filter(|flow| flow.protocol == "tcp")
            .count(),
        0
    );
    Ok(())
}

/// A SYN from each source, sent by `from` to `to`; how many.
fn send_opens(site: &Site, from: &Host, sources: &[Ipv4Addr], to: SocketAddrV4) -> Result<u64> {
    let port = RawPort::open(&from.netns, "eth0")?;
    let [mac, nic] = hops(site, from)?;
    for &source in sources {
        let source = SocketAddrV4::new(source, PORT).to_string();
        let syn = packet::tcp(&source, &to.to_string(), SYN).between(mac, nic);
        port.send(&syn.bytes())?;
    }
    Ok(u64::try_from(sources.len())?)
}

fn hops(site: &Site, from: &Host) -> Result<[Mac; 2]> {
    Ok([mac_of(&from.netns, "eth0")?, site.mac(TENANT_NIC)?])
}
