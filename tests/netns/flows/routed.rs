//! Clients and backends that are behind routers of their networks.

use std::net::SocketAddrV4;

use anyhow::{Result, ensure};
use lb_tests::{
    product::{config::Config, lb::Lb},
    servers::{
        identity::Identity,
        peers::{DNS_NAME, Peers, Serves},
    },
    topology::{API, CONFIG, DNS, ECHO, ECHO_NODE_PORT, SNAT, Topology},
    traffic::{client, programs},
};

#[privileged_test]
fn a_client_behind_a_tenant_router_is_served() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_client()?;
    let peers = Peers::start(&topology)?;
    {
        // Without the route in the configuration no client may come from there.
        let lb = Lb::start(&topology, CONFIG)?;
        let refused = programs::dig(&far.host, DNS, DNS_NAME, "TXT");
        ensure!(refused.is_err(), "{refused:?}");
        ensure!(lb.dropped("spoofed")? > 0, "{:?}", lb.drops()?);
        lb.down()?;
    }
    let config = Config::read(CONFIG).network("tenant-a", |tenant| tenant.route(&far));
    let _lb = Lb::start(&topology, &config)?;

    for host in [&far.host, topology.client()] {
        let answer = programs::curl(host, peers.certificate(), API)?;
        assert_eq!(*answer.peer.ip(), SNAT, "{}", host.name);
        host.netns.inside(|| client::who(None, ECHO))??;
    }
    let up = far
        .host
        .netns
        .inside(|| client::upload(ECHO, 1 << 20, 1))??;
    assert_eq!(up.sent, up.received);
    Ok(())
}

#[privileged_test]
fn a_backend_behind_a_mgmt_router_serves() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_node()?;
    let identity = Identity::create(&topology, "far", &[])?;
    let serves = Serves {
        name: "far".to_owned(),
        echo: Some(ECHO_NODE_PORT),
        ..Serves::default()
    };
    let peers = Peers::start_on(&topology, identity, [(&far.host, serves)])?;
    let at = SocketAddrV4::new(far.host.address, ECHO_NODE_PORT);
    let config = Config::read(CONFIG)
        .network("mgmt", |mgmt| mgmt.route(&far))
        .pool("echo-a", |pool| pool.backends([at]));
    let _lb = Lb::start(&topology, &config)?;

    for client in &topology.clients {
        let answer = client.netns.inside(|| client::who(None, ECHO))??;
        assert_eq!((answer.node.as_str(), *answer.peer.ip()), ("far", SNAT));
    }
    let client = &topology.client().netns;
    let down = client.inside(|| client::download(ECHO, 1 << 20, 1))??;
    assert_eq!(down.sent, down.received);
    assert_eq!(peers.on(&far.host)?.echo_connections(), 3);
    Ok(())
}
