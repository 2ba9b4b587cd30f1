//! The tenant is part of every key: FEATURES A20 and A21.

use std::net::SocketAddrV4;

use anyhow::{Result, ensure};
use lb_tests::{
    product::{config::Config, lb::Lb},
    servers::peers::Peers,
    topology::{CONFIG, ECHO, LAB_CONFIG, Tenant, Topology, Trunk},
    traffic::secret::SecretFlow,
};

const ROUNDS: u16 = 200;
/// A fixed port below the ephemeral ones, so that no other connection has it.
const PORT: u16 = 20_000;

/// Two tenants whose clients have the same address and port reach the same VIP at the same time, and
/// each gets its own cluster.
#[privileged_test]
fn the_same_client_tuple_in_two_tenants_is_two_flows() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let [of_a, of_b] = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    let lb = Lb::start(&trunk, LAB_CONFIG)?;

    let mut first = pair(&trunk, PORT)?;
    let [one, other] = &first;
    assert_eq!(one.local()?, other.local()?, "the same tuple");
    assert_ne!(one.peer(), other.peer(), "two SNAT ports");
    for round in 1..=ROUNDS {
        let mut second = pair(&trunk, PORT + round)?;
        for flow in first.iter_mut().chain(&mut second) {
            flow.round()?;
        }
    }

    let tuple = first[0].local()?;
    let flows = lb.flows()?;
    let ours: Vec<_> = flows.iter().filter(|flow| flow.client == tuple).collect();
    assert_eq!(ours.len(), 2, "{flows:?}");
    for peers in [of_a, of_b] {
        assert_eq!(peers.mixed_up(), Vec::<String>::new());
    }
    Ok(())
}

/// One connection from the same address and port in each tenant, answered by its own cluster.
fn pair(trunk: &Trunk, port: u16) -> Result<[SecretFlow; 2]> {
    let open = |tenant: &Tenant| {
        let client = tenant.client();
        let from = SocketAddrV4::new(client.address, port);
        let flow = SecretFlow::open(&client.netns, Some(from), ECHO)?;
        let own = flow.server().starts_with(&format!("{}/", tenant.name));
        ensure!(own, "{} got {}", tenant.name, flow.server());
        Ok(flow)
    };
    let [a, b] = &trunk.tenants;
    Ok([open(a)?, open(b)?])
}

/// Two VIPs with one NodePort behind both: the client's port alone does not tell the flows apart.
#[privileged_test]
fn two_vips_with_one_node_port_are_two_flows() -> Result<()> {
    const EACH: usize = 5_000;
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let other = SocketAddrV4::new([192, 168, 203, 111].into(), ECHO.port());
    let config = Config::read(CONFIG)
        .mgmt_pool("echo-a", ["10.32.96.105:30700"])
        .tcp_service_to("echo-2", other, "echo-a");
    let _lb = Lb::start(&topology, &config)?;
    let client = topology.client();
    let from = SocketAddrV4::new(client.address, PORT);

    let mut flows = [ECHO, other]
        .into_iter()
        .map(|to| SecretFlow::open(&client.netns, Some(from), to))
        .collect::<Result<Vec<_>>>()?;

    assert_eq!(flows[0].local()?, flows[1].local()?);
    assert_eq!([flows[0].server(), flows[1].server()], ["n1", "n1"]);
    assert_ne!(flows[0].peer(), flows[1].peer());
    for _ in 0..EACH {
        flows.iter_mut().try_for_each(SecretFlow::round)?;
    }
    assert_eq!(peers.mixed_up(), Vec::<String>::new());
    Ok(())
}
