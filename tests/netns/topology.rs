//! The networks themselves, without the product: what a test relies on must be there before it.

use std::{collections::BTreeSet, net::SocketAddrV4, time::Duration};

use anyhow::Result;
use lb_tests::{
    capture::Capture,
    client, observe,
    peers::{DNS_NAME, Peers},
    ping::{Ping, ping},
    topology::{API_NODE_PORT, DNS_NODE_PORT, ECHO_NODE_PORT, MGMT_NIC, TENANT_NIC, Topology, VIP},
    traffic,
};

/// Hosts of one LAN reach each other, hosts of two do not, and nobody has the VIP.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn without_lb_the_networks_are_apart() -> Result<()> {
    let topology = Topology::poc()?;
    let [c1, c2] = [&topology.clients[0], &topology.clients[1]];
    let [n1, n4] = [&topology.nodes[0], &topology.nodes[3]];

    assert_eq!(ping(&c1.netns, c2.address)?, Ping::Answered);
    assert_eq!(ping(&n1.netns, n4.address)?, Ping::Answered);
    assert_eq!(ping(&c1.netns, n1.address)?, Ping::NoRoute);
    assert_eq!(ping(&n1.netns, c1.address)?, Ping::NoRoute);
    assert_eq!(ping(&c1.netns, VIP)?, Ping::Lost);

    assert_eq!(topology.lb.sysctl("ipv4/ip_forward")?, "0");
    assert_eq!(observe::addresses(&topology.lb)?, Vec::<String>::new());
    assert_eq!(observe::ip_in_receives(&topology.lb)?, 0);
    for nic in [TENANT_NIC, MGMT_NIC] {
        assert_eq!(observe::link(&topology.lb, nic)?.xdp, None);
    }
    Ok(())
}

/// Every server of every node answers with its node's name, and knows whom it answered.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn every_node_answers_its_neighbours() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let from = &topology.nodes[0];
    for node in &topology.nodes {
        let at = |port| SocketAddrV4::new(node.address, port);
        let verified = traffic::openssl(from, peers.certificate(), at(API_NODE_PORT))?;
        assert_eq!(verified, "Verification: OK");
        assert_eq!(
            traffic::dig(from, at(DNS_NODE_PORT), DNS_NAME, "TXT")?,
            [node.name]
        );
        let echo = at(ECHO_NODE_PORT);
        let answer = from
            .netns
            .inside(|| client::who(Some(from.address), echo))??;
        assert_eq!(
            (answer.node.as_str(), *answer.peer.ip()),
            (node.name, from.address)
        );
        assert_eq!(from.netns.inside(|| client::echo(echo, "hello"))??, "hello");
    }
    assert_eq!(peers.sources()?, BTreeSet::from([from.address]));
    Ok(())
}

/// Frames cross the switches at most one MTU long, and bulk data stays intact.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn frames_arrive_as_on_a_wire() -> Result<()> {
    const BYTES: u64 = 8 << 20;
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let [from, to] = [&topology.nodes[0], &topology.nodes[1]];
    let echo = SocketAddrV4::new(to.address, ECHO_NODE_PORT);
    let longer = Capture::start(&to.netns, "eth0", "greater 1515", topology.dir())?;
    let all = Capture::start(&from.netns, "eth0", "tcp", topology.dir())?;

    let up = from.netns.inside(|| client::upload(echo, BYTES, 1))??;
    assert_eq!(up.sent, up.received);
    let down = from.netns.inside(|| client::download(echo, BYTES, 2))??;
    assert_eq!(down.sent, down.received);

    all.wait_for(100, Duration::from_secs(5))?;
    all.stop()?;
    assert_eq!(longer.stop()?, []);
    Ok(())
}
