//! What the load balancer's host is, and what it is not: FEATURES A2 and A5.

use std::{
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_tests::{
    leftovers,
    netns::Netns,
    oracle::{
        capture::Capture,
        observe::{self, Xdp},
    },
    poll,
    product::lb::Lb,
    servers::peers::{DNS_NAME, Peers},
    topology::{
        API, CONFIG, DNS, ECHO, ECHO_NODE_PORT, Host, MGMT_NIC, SNAT, TENANT_NIC, Topology, VIP,
    },
    traffic::{
        client,
        ping::{Ping, ping},
        programs,
    },
};

/// A2: it is done in XDP in the driver, and nothing else of the kernel takes part.
#[privileged_test]
fn it_is_done_in_native_xdp_without_a_packet_filter() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;

    programs::curl(topology.client(), peers.certificate(), API)?;

    for nic in [TENANT_NIC, MGMT_NIC] {
        let link = observe::link(&topology.lb, nic)?;
        assert!(
            matches!(link.xdp, Some(Xdp { native: true, .. })),
            "{link:?}"
        );
    }
    assert_eq!(observe::nft_rules(&topology.lb)?, "");
    let status = lb.status()?;
    assert_eq!(status.instance, topology.run());
    assert_eq!(status.networks.len(), 2);
    for network in status.networks {
        assert_eq!(network.mode, "native", "{network:?}");
        let cell = format!("lb.{}.{}", topology.run(), network.name);
        assert_eq!(network.cell, Some(cell));
    }
    assert_eq!(lb.services()?.len(), 3);
    Ok(())
}

/// A2 and DESIGN section 3: no packet of a tenant reaches the host's own stack.
#[privileged_test]
fn the_hosts_own_stack_sees_no_tenant_packet() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let before = observe::ip_in_receives(&topology.lb)?;
    let handled = lb.status()?.verdicts.nic.forwarded;

    for client in &topology.clients {
        programs::curl(client, peers.certificate(), API)?;
        programs::dig(client, DNS, DNS_NAME, "TXT")?;
        client.netns.inside(|| client::who(None, ECHO))??;
        // Neither does what is not configured: other ports, other addresses, ICMP.
        let closed = SocketAddrV4::new(VIP, 22);
        assert!(
            !connects(&client.netns, closed)?,
            "{closed} is not configured"
        );
        ping(&client.netns, VIP)?;
    }

    assert_eq!(observe::ip_in_receives(&topology.lb)?, before);
    assert_eq!(observe::addresses(&topology.lb)?, Vec::<String>::new());
    let verdicts = lb.status()?.verdicts;
    assert!(verdicts.nic.forwarded > handled, "{verdicts:?}");
    assert_eq!(verdicts.nic.sum(), verdicts.nic.total, "{verdicts:?}");
    Ok(())
}

/// A5: the VIP is the only way. Neither side reaches the other, even with a route through the
/// addresses that `lb` answers for.
#[privileged_test]
fn there_is_no_way_around_the_vip() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    programs::curl(client, peers.certificate(), API)?;
    let at_node = capture_from(node, client.address, &topology)?;
    let at_client = capture_from(client, node.address, &topology)?;

    assert_eq!(topology.lb.sysctl("ipv4/ip_forward")?, "0");
    assert!(!programs::has_route(client, node.address)?);
    assert_eq!(ping(&client.netns, node.address)?, Ping::NoRoute);

    client
        .netns
        .run(&format!("ip route add 10.32.96.0/20 via {VIP}"))?;
    assert_eq!(
        ping(&client.netns, node.address)?,
        Ping::Lost,
        "routed through the VIP"
    );
    node.netns
        .run(&format!("ip route add 192.168.203.0/24 via {SNAT}"))?;
    assert_eq!(
        ping(&node.netns, client.address)?,
        Ping::Lost,
        "routed through the SNAT address"
    );
    let direct = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    assert!(
        !connects(&client.netns, direct)?,
        "a node port answers a tenant directly"
    );

    programs::curl(client, peers.certificate(), API)?;
    for capture in [at_node, at_client] {
        assert_eq!(capture.stop()?, []);
    }
    Ok(())
}

/// Stopping keeps the data plane; only `lb down` ends it, and then nothing of it is left.
#[privileged_test]
fn stopping_keeps_forwarding_and_down_removes_everything() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let mut lb = Lb::start(&topology, CONFIG)?;
    let client = &topology.client().netns;
    client.inside(|| client::who(None, ECHO))??;

    let status = lb.process().stop()?;
    assert_eq!(status.code(), Some(0), "{status}");
    client.inside(|| client::who(None, ECHO))??;
    assert!(!leftovers::traces_of(topology.run()).is_empty());

    lb.down()?;
    // The kernel takes the links of a removed namespace away a moment later.
    poll::until("a host without links of lb", Duration::from_secs(5), || {
        Ok(ensure_untouched(&topology.lb).is_ok().then_some(()))
    })?;
    assert_eq!(leftovers::traces_of(topology.run()), Vec::<PathBuf>::new());
    Ok(())
}

/// Fails unless the host is as it was before the product came.
fn ensure_untouched(host: &Netns) -> Result<()> {
    for link in observe::links(host)? {
        ensure!(link.xdp.is_none(), "{link:?}");
        ensure!(
            ["lo", TENANT_NIC, MGMT_NIC].contains(&link.name.as_str()),
            "{link:?}"
        );
    }
    ensure!(observe::nft_rules(host)?.is_empty(), "rules are left");
    Ok(())
}

/// Whether a socket accepts a connection to `to` within a second.
fn connects(from: &Netns, to: SocketAddrV4) -> Result<bool> {
    let second = Duration::from_secs(1);
    Ok(from
        .inside(|| TcpStream::connect_timeout(&to.into(), second))?
        .is_ok())
}

fn capture_from(host: &Host, source: Ipv4Addr, topology: &Topology) -> Result<Capture> {
    Capture::start(
        &host.netns,
        "eth0",
        &format!("ip src host {source}"),
        topology.dir(),
    )
}
