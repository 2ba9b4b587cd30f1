//! Tagged tenants on one trunk, and what is on it besides: FEATURES A19.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::{
        packet,
        raw::{self, DOT1AD, DOT1Q, RawPort},
    },
    netns::Netns,
    oracle::wire::{self, Wire},
    poll,
    product::{config::Config, lb::Lb},
    servers::peers::{DNS_NAME, Peers},
    topology::{
        API, APPS_HTTPS, CONFIG, DNS, DNS_NODE_PORT, ECHO, LAB_CONFIG, LB_PORT, MGMT_VLAN,
        TENANT_NIC, Topology, Trunk, VIP, mac_of,
    },
    traffic::{client, programs},
};

use crate::oracle::Oracle;

const LIMIT: Duration = Duration::from_secs(10);

/// Another host on the trunk.
const STRANGER: Mac = Mac::new([2, 0, 0, 0, 0x57, 1]);
/// An Ethernet type for experiments (IEEE 802).
const EXPERIMENT: u16 = 0x88b5;

/// A NIC that strips tags would make a tagged frame look untagged: `lb` sees to it, whatever the
/// setting was, and puts back what it found.
#[privileged_test]
fn each_tenant_of_a_trunk_reaches_its_own_control_plane() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let [of_a, of_b] = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    for stripping in ["on", "off"] {
        trunk
            .lb
            .run(&format!("ethtool -K {TENANT_NIC} rxvlan {stripping}"))?;
        assert_eq!(stripping_of(&trunk.lb)?, stripping);
        let lb = Lb::start(&trunk, LAB_CONFIG)?;
        assert_eq!(stripping_of(&trunk.lb)?, "off", "it was {stripping}");

        for (tenant, peers) in [(a, &of_a), (b, &of_b)] {
            for client in tenant.clients.iter().chain(&tenant.workers) {
                let answer = programs::curl(client, peers.certificate(), API)?;
                let own = format!("{}/n", tenant.name);
                assert!(
                    answer.node.starts_with(&own),
                    "{answer:?} to {}",
                    client.name
                );
                let names = programs::dig(client, DNS, DNS_NAME, "TXT")?;
                assert!(names[0].starts_with(&own), "{names:?} to {}", client.name);
            }
        }
        lb.down()?;
        assert_eq!(stripping_of(&trunk.lb)?, stripping, "as it was before");
    }
    Ok(())
}

/// Tags that are not configured, service tags, and link control are the host's, byte by byte.
#[privileged_test]
fn what_belongs_to_no_network_passes_untouched() -> Result<()> {
    let trunk = Trunk::build()?;
    let lb = Lb::start(&trunk, LAB_CONFIG)?;
    let nic = trunk.mac(TENANT_NIC)?;
    let host = Wire::received(&trunk.lb, TENANT_NIC, "", trunk.dir())?;
    let port = RawPort::open(&trunk.trunk, LB_PORT)?;
    let syn = packet::tcp("192.168.203.50:40000", "192.168.203.110:6443", 2)
        .between(STRANGER, nic)
        .bytes();
    let plain = |to: Mac| raw::ethernet(STRANGER, to, EXPERIMENT, b"an experiment");
    let group = |last: u8| Mac::new([1, 0x80, 0xc2, 0, 0, last]);
    let frames = [
        ("an undeclared VLAN", raw::tagged(&syn, DOT1Q, 2099)),
        (
            "an undeclared VLAN with priority",
            raw::tagged(&syn, DOT1Q, 0xe833),
        ),
        ("a service tag", raw::tagged(&syn, DOT1AD, 2003)),
        (
            "a service tag in front of ours",
            raw::tagged(&raw::tagged(&syn, DOT1Q, 2003), DOT1AD, 100),
        ),
        (
            "two undeclared tags",
            raw::tagged(&raw::tagged(&syn, DOT1Q, 2003), DOT1Q, 2099),
        ),
        (
            "a broadcast on an undeclared VLAN",
            raw::tagged(&plain(Mac::BROADCAST), DOT1Q, 2098),
        ),
        (
            "a frame for another station",
            plain(Mac::new([2, 0, 0, 0, 0x57, 2])),
        ),
        (
            "LLDP",
            raw::ethernet(
                STRANGER,
                group(0x0e),
                0x88cc,
                &[2, 7, 4, 2, 0, 0, 0, 0x57, 1],
            ),
        ),
        (
            "LACP",
            raw::ethernet(STRANGER, group(2), 0x8809, &[1, 1, 1, 0x14]),
        ),
        (
            "a pause frame",
            raw::ethernet(STRANGER, group(1), 0x8808, &[0, 1, 0, 0]),
        ),
        (
            "EAPOL",
            raw::ethernet(STRANGER, group(3), 0x888e, &[2, 1, 0, 0]),
        ),
    ];
    let before = lb.status()?.verdicts.nic;
    for (what, frame) in &frames {
        port.send(frame)?;
        host.wait_for(what, 1, LIMIT, |got| got == frame)?;
    }

    let sent = u64::try_from(frames.len())?;
    let after = lb.status()?.verdicts.nic;
    assert_eq!(after.passed - before.passed, sent);
    assert_eq!(after.dropped, before.dropped);
    let received = host.stop()?;
    for (what, frame) in &frames {
        let times = received.iter().filter(|got| *got == frame).count();
        assert_eq!(times, 1, "{what}");
    }
    Ok(())
}

/// The hub on the tenants' own trunk: everything goes out of the NIC it came from, and what belongs to
/// the host keeps its tag.
#[privileged_test]
fn the_hub_may_be_on_the_same_trunk() -> Result<()> {
    let trunk = Trunk::on_one_nic()?;
    let peers = trunk
        .tenants
        .each_ref()
        .map(|tenant| Peers::start_tenant(&trunk, tenant));
    let config = Config::read(LAB_CONFIG).network("mgmt", |mgmt| {
        mgmt.set("interface", TENANT_NIC).set("vlan", MGMT_VLAN)
    });
    let lb = Lb::start(&trunk, &config)?;

    for (tenant, peers) in trunk.tenants.iter().zip(peers) {
        let peers = peers?;
        for host in [tenant.client(), tenant.worker()] {
            for to in [API, APPS_HTTPS] {
                let answer = programs::curl(host, peers.certificate(), to)?;
                assert!(answer.node.starts_with(tenant.name), "{answer:?}");
            }
            let names = programs::dig(host, DNS, DNS_NAME, "TXT")?;
            assert!(names[0].starts_with(tenant.name), "{names:?}");
        }
        let client = &tenant.client().netns;
        let up = client.inside(|| client::upload(ECHO, 4 << 20, 1))??;
        assert_eq!(up.sent, up.received);
        assert_eq!(peers.mixed_up(), Vec::<String>::new());
    }
    let verdicts = lb.status()?.verdicts.nic;
    assert!(verdicts.transmitted > 1000, "{verdicts:?}");
    assert_eq!(verdicts.forwarded, 0, "{verdicts:?}");

    let host = Wire::received(&trunk.lb, TENANT_NIC, "", trunk.dir())?;
    let node = &trunk.nodes[0];
    let hops = [mac_of(&node.netns, "eth0")?, trunk.mac(TENANT_NIC)?];
    let [own, foreign] = [[10, 32, 96, 10], [10, 32, 96, 200]].map(Ipv4Addr::from);
    for (frame, control) in [
        (raw::echo_request(hops, node.address, own), MGMT_VLAN),
        (
            raw::ethernet(hops[0], hops[1], EXPERIMENT, b"plain"),
            MGMT_VLAN | 0xa000,
        ),
        (
            raw::ethernet(hops[0], Mac::BROADCAST, EXPERIMENT, b"all"),
            MGMT_VLAN,
        ),
        (
            packet::arp(1, hops[0], "10.32.96.105", Mac::default(), "10.32.96.10"),
            MGMT_VLAN,
        ),
        (raw::echo_request(hops, foreign, own), MGMT_VLAN),
    ] {
        let wanted = raw::tagged(&frame, DOT1Q, control);
        RawPort::open(&trunk.trunk, LB_PORT)?.send(&wanted)?;
        host.wait_for("the host's own, with its tag", 1, LIMIT, |got| {
            got == wanted
        })?;
    }
    host.stop().map(drop)
}

/// RELIABILITY 21: VLAN id 0 is only a priority, and the frame belongs to the untagged network. Any
/// other tag, or two of them, is no way to a VIP of it, whether or not the NIC would strip tags.
#[privileged_test]
fn reliability_21_only_a_priority_tag_is_looked_through() -> Result<()> {
    for stripping in ["on", "off"] {
        let topology = Topology::poc()?;
        topology
            .lb
            .run(&format!("ethtool -K {TENANT_NIC} rxvlan {stripping}"))?;
        let _peers = Peers::start(&topology)?;
        let lb = Lb::start(&topology, CONFIG)?;
        let client = topology.client();
        let [mac, nic] = [mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?];
        let oracle = Oracle::start(&topology.mgmt_lan, topology.dir(), client, DNS_NODE_PORT)?;
        let query = packet::udp(&format!("{}:5353", client.address), &DNS.to_string())
            .between(mac, nic)
            .payload(&txt_query(DNS_NAME))
            .bytes();
        let port = RawPort::open(&topology.tenant_lan, LB_PORT)?;
        let status = lb.status()?.verdicts.nic;
        for (what, frame) in [
            ("a tag", raw::tagged(&query, DOT1Q, 2003)),
            ("a service tag", raw::tagged(&query, DOT1AD, 2003)),
            (
                "two tags",
                raw::tagged(&raw::tagged(&query, DOT1Q, 2004), DOT1Q, 2003),
            ),
            (
                "a priority tag in a service tag",
                raw::tagged(&raw::tagged(&query, DOT1Q, 0), DOT1AD, 2003),
            ),
        ] {
            let passed = lb.status()?.verdicts.nic.passed;
            port.send(&frame)?;
            poll::until(what, LIMIT, || {
                Ok((lb.status()?.verdicts.nic.passed == passed + 1).then_some(()))
            })?;
        }
        let stacked = raw::tagged(&raw::tagged(&query, DOT1Q, 2003), DOT1Q, 0xa000);
        port.send(&stacked)?;
        poll::until("a tag behind a priority tag", LIMIT, || {
            Ok((lb.dropped("stacked_tag")? == 1).then_some(()))
        })?;
        assert_eq!(lb.status()?.verdicts.nic.dropped, status.dropped + 1);
        oracle.saw_nothing_else()?;

        let at_client = Wire::received(&client.netns, "eth0", "udp src port 53", topology.dir())?;
        port.send(&raw::tagged(&query, DOT1Q, 0xa000))?;
        at_client.wait_for("an answer without a tag", 1, LIMIT, |frame| {
            wire::ipv4(frame) == Some((VIP, client.address))
        })?;
        at_client.stop()?;
    }
    Ok(())
}

/// `on` or `off`, as the NIC of the trunk has it.
fn stripping_of(host: &Netns) -> Result<String> {
    let features = host.run(&format!("ethtool -k {TENANT_NIC}"))?;
    let line = features
        .lines()
        .find_map(|line| line.strip_prefix("rx-vlan-offload: "))
        .context("ethtool names the feature")?;
    ensure!(!line.contains("fixed"), "the NIC cannot change it: {line}");
    Ok(line.trim().to_owned())
}

/// A DNS query for the TXT records of `name`.
fn txt_query(name: &str) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).expect("a short label"));
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 16, 0, 1]);
    query
}
