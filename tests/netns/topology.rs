//! The networks themselves, without the product: what a test relies on must be there before it.

use std::{collections::BTreeSet, net::SocketAddrV4, time::Duration};

use anyhow::Result;
use lb_common::addr::Mac;
use lb_tests::{
    frames::raw::{self, DOT1AD, DOT1Q, RawPort},
    oracle::{capture::Capture, observe, wire::Wire},
    servers::peers::{DNS_NAME, Peers},
    topology::{
        ADDRESS, API_NODE_PORT, APPS_HTTP_NODE_PORT, APPS_HTTPS_NODE_PORT, DNS_NODE_PORT,
        ECHO_NODE_PORT, LB_PORT, MGMT_NIC, OneIp, TENANT_NIC, Topology, Trunk, VIP, mac_of,
    },
    traffic::{
        client,
        ping::{Ping, ping},
        programs,
    },
};

const LIMIT: Duration = Duration::from_secs(5);

/// Hosts of one LAN reach each other, hosts of two do not, and none has the VIP.
#[privileged_test]
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

/// Every server of every node answers with its node's name, and knows its client.
#[privileged_test]
fn every_node_answers_its_neighbours() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let from = &topology.nodes[0];
    for node in &topology.nodes {
        let at = |port| SocketAddrV4::new(node.address, port);
        let verified = programs::openssl(from, peers.certificate(), at(API_NODE_PORT))?;
        assert_eq!(verified, "Verification: OK");
        assert_eq!(
            programs::dig(from, at(DNS_NODE_PORT), DNS_NAME, "TXT")?,
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
#[privileged_test]
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

/// Two tenants have the same addresses and never meet; each control plane has its own certificate.
#[privileged_test]
fn tenants_with_the_same_addresses_are_apart() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let [peers_a, peers_b] = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    for (tenant, peers) in [(a, &peers_a), (b, &peers_b)] {
        let worker = tenant.worker();
        let at = |port| SocketAddrV4::new(worker.address, port);
        let own = format!("{}/{}", tenant.name, worker.name);
        // A client and a worker on one bridge; the other tenant's worker has the same address.
        let answer = programs::curl_plain(tenant.client(), at(APPS_HTTP_NODE_PORT))?;
        assert_eq!(answer.node, own);
        assert_eq!(*answer.peer.ip(), tenant.client().address);
        let node = &trunk.nodes[0];
        let api = SocketAddrV4::new(node.address, tenant.ports.api);
        programs::openssl(&trunk.nodes[1], peers.certificate(), api)?;
        assert_eq!(
            ping(&tenant.client().netns, trunk.outsider.address)?,
            Ping::Lost
        );
        assert!(!programs::has_route(tenant.client(), node.address)?);
        assert_eq!(peers.on(worker)?.http_sources()?.len(), 1);
        let https = at(APPS_HTTPS_NODE_PORT);
        programs::openssl(tenant.client(), peers.certificate(), https)?;
    }
    let api = SocketAddrV4::new(trunk.nodes[0].address, a.ports.api);
    let foreign = programs::openssl(&trunk.nodes[1], peers_b.certificate(), api);
    assert!(foreign.is_err(), "{foreign:?}");
    Ok(())
}

/// What leaves a tenant's host arrives on the trunk with the tenant's tag in the frame, what has
/// the tag there arrives without it, and a frame without a tag stays as it is.
#[privileged_test]
fn tags_are_in_the_frame_on_the_trunk_and_nowhere_else() -> Result<()> {
    let trunk = Trunk::build()?;
    let [nic, broadcast] = [trunk.mac(TENANT_NIC)?, Mac::BROADCAST];
    let at_nic = Wire::received(&trunk.lb, TENANT_NIC, "", trunk.dir())?;
    let frame = raw::ethernet(nic, broadcast, 0x88b5, b"a frame of an experiment");

    for tenant in &trunk.tenants {
        let client = tenant.client();
        let from = mac_of(&client.netns, "eth0")?;
        let up = raw::ethernet(from, nic, 0x88b5, client.name.as_bytes());
        RawPort::open(&client.netns, "eth0")?.send(&up)?;
        let wanted = raw::tagged(&up, DOT1Q, tenant.vlan);
        at_nic.wait_for("a tagged frame", 1, LIMIT, |frame| frame == wanted)?;

        let at_client = Wire::received(&client.netns, "eth0", "", trunk.dir())?;
        let down = raw::tagged(&frame, DOT1Q, tenant.vlan);
        RawPort::open(&trunk.lb, TENANT_NIC)?.send(&down)?;
        at_client.wait_for("the frame without its tag", 1, LIMIT, |got| got == frame)?;
        at_client.stop()?;
    }
    let wire = RawPort::open(&trunk.trunk, LB_PORT)?;
    let double = raw::tagged(&raw::tagged(&frame, DOT1Q, 2004), DOT1AD, 2003);
    for frame in [&frame, &double] {
        wire.send(frame)?;
        at_nic.wait_for("the very frame", 1, LIMIT, |got| got == frame)?;
    }
    let outsider = Wire::received(&trunk.outsider.netns, "eth0", "", trunk.dir())?;
    RawPort::open(&trunk.lb, TENANT_NIC)?.send(&frame)?;
    outsider.wait_for("an untagged frame", 1, LIMIT, |got| got == frame)?;
    outsider.stop()?;
    at_nic.stop().map(drop)
}

/// The guests are behind the host's bridge, and a client behind a router reaches the host.
#[privileged_test]
fn a_host_with_one_address_has_guests_behind_it() -> Result<()> {
    let one = OneIp::build()?;
    for client in one.clients.iter().chain([&one.far.host]) {
        assert_eq!(
            ping(&client.netns, ADDRESS)?,
            Ping::Answered,
            "{}",
            client.name
        );
        for backend in &one.backends {
            assert_ne!(ping(&client.netns, backend.address)?, Ping::Answered);
        }
    }
    for backend in &one.backends {
        assert_eq!(ping(&one.lb, backend.address)?, Ping::Answered);
    }
    Ok(())
}

/// A host behind a router reaches the LAN, and the LAN reaches it through the router.
#[privileged_test]
fn routers_forward_to_the_hosts_behind_them() -> Result<()> {
    let topology = Topology::poc()?;
    for (routed, neighbour) in [
        (topology.add_routed_client()?, topology.client()),
        (topology.add_routed_node()?, &topology.nodes[0]),
    ] {
        let route = format!("ip route add {} via {}", routed.to, routed.via);
        neighbour.netns.run(&route)?;
        assert_eq!(ping(&routed.host.netns, neighbour.address)?, Ping::Answered);
        assert_eq!(ping(&neighbour.netns, routed.host.address)?, Ping::Answered);
    }
    Ok(())
}
