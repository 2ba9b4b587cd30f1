//! Hellos of one segment and of two to backends of several NICs, behind a tag, and at a NIC that comes back as another one: see
//! [`bind_two`](super::bind_two).

use std::{net::SocketAddrV4, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    netns::Netns,
    oracle::observe::{self, segments_repeated},
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{self, Teller},
    topology::{Host, MGMT_NIC, MGMT_VLAN, TENANT_NIC, TENANT_SNAT, Topology, Trunk, VIP},
    traffic::{
        conn_pair::Line,
        hello::{CAPTURED_NAME, captured_of, named},
    },
};
use serde_json::json;

use crate::proxy::{
    bind::ensure_all_bound,
    guard,
    sni::{PORT, SHARED},
};

/// A VIP whose backends are in the network of its clients.
const OWN: SocketAddrV4 = SocketAddrV4::new(VIP, 444);
/// Connections of each kind.
const EACH: usize = 10;
/// How long a NIC that has come back may take until it has our program.
const TAKEN_IN: Duration = Duration::from_secs(5);

/// Two VIPs of the first tenant for the same name: one with a backend at the hub, one with a backend in its own network.
fn config(trunk: &Trunk) -> Config {
    let at = |host: &Host| [SocketAddrV4::new(host.address, PORT)];
    let worker = trunk.tenants[0].worker();
    Config::new()
        .mgmt()
        .network("tenant-a", |tenant| {
            tenant.tenant(2003, "192.168.203.0/24").snat([TENANT_SNAT])
        })
        .mgmt_pool("hub", at(&trunk.nodes[0]))
        .pool("own", |own| own.on("tenant-a").backends(at(worker)))
        .service("at-hub", |service| {
            shared(service, SHARED, (CAPTURED_NAME, "hub"))
        })
        .service("of-own", |service| {
            shared(service, OWN, (CAPTURED_NAME, "own"))
        })
}

/// A shared VIP where this name leads to this pool.
fn shared(service: Keys, vip: SocketAddrV4, (name, pool): (&str, &str)) -> Keys {
    let routes = json!([{ "names": [name], "pool": pool }]);
    let service = service.on("tenant-a").tcp(vip);
    service
        .set("sni.late_binding", "always")
        .set("sni.routes", routes)
}

/// Hellos of one segment and of two, to these VIPs with the names that their backends have.
fn ask_each(client: &Netns, vips: &[(SocketAddrV4, &str)]) -> Result<()> {
    let long = captured_of("like-chrome131")?.bytes;
    for hello in [named(CAPTURED_NAME.as_bytes()), long] {
        for (vip, name) in vips.iter().cycle().take(vips.len() * EACH) {
            let ask = || teller::ask(*vip, &[&hello], Duration::ZERO);
            let reached = client.inside(ask)?.with_context(|| vip.to_string())?;
            ensure!(reached.as_deref() == Some(*name), "{vip}: {reached:?}");
        }
    }
    Ok(())
}

/// Copies go to the NIC of the backend's network, with the tag that it has there, and no client has to repeat what was lost.
fn both_networks(trunk: &Trunk, config: &Config) -> Result<()> {
    let worker = trunk.tenants[0].worker();
    let serve = |host: &Host, name| {
        let at = SocketAddrV4::new(host.address, PORT);
        Teller::start(&host.netns, at, name)
    };
    let _servers = [serve(&trunk.nodes[0], "hub")?, serve(worker, "own")?];
    let lb = Lb::start(trunk, config)?;
    let client = &trunk.tenants[0].client().netns;
    let before = segments_repeated(client)?;
    let vips = [(SHARED, "hub"), (OWN, "own")];
    ask_each(client, &vips)?;
    let repeated = segments_repeated(client)? - before;
    println!("{repeated} segments repeated");
    ensure_all_bound(&lb, 2 * vips.len() * EACH)?;
    // Without copies each of the long ones would be.
    ensure!(repeated < u64::try_from(EACH)?, "{repeated} repeated");
    Ok(())
}

/// Backends of two networks, each on a NIC of its own, one of them with a tag.
#[privileged_test]
fn backends_of_two_networks_get_both_segments() -> Result<()> {
    let trunk = Trunk::build()?;
    both_networks(&trunk, &config(&trunk))
}

/// The same on one NIC: which tag a copy has is its backend's network.
#[privileged_test]
fn backends_of_two_networks_on_one_nic_get_both_segments() -> Result<()> {
    let trunk = Trunk::on_one_nic()?;
    let config = config(&trunk).network("mgmt", |mgmt| {
        mgmt.set("interface", TENANT_NIC).set("vlan", MGMT_VLAN)
    });
    both_networks(&trunk, &config)
}

/// The backends' NIC is pulled out and another one put in: what is bound goes on, and new connections are bound by that.
#[privileged_test]
fn a_nic_of_backends_comes_back() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = guard::tellers(&topology)?;
    let (client, node) = (topology.client(), &topology.nodes[1]);
    let line = Line::new(client, OWN, node, PORT)?.saying(named(b"line.lab"));
    let config = guard::config(&topology, "late_binding: always")
        .mgmt_pool("line", [SocketAddrV4::new(node.address, PORT)])
        .service("line", |service| shared(service, OWN, ("line.lab", "line")));
    let lb = Lb::start(&topology, &config)?;
    let vips = [(SHARED, "a")];
    ask_each(&client.netns, &vips)?;
    let pair = line.open()?;
    for round in 1..=2 {
        topology.unplug(MGMT_NIC)?;
        topology.plug(MGMT_NIC)?;
        poll::until("our program on the new NIC", TAKEN_IN, || {
            Ok(observe::link(&topology.lb, MGMT_NIC)?.xdp)
        })?;
        let before = segments_repeated(&client.netns)?;
        ask_each(&client.netns, &vips).with_context(|| format!("round {round}"))?;
        line.open()?.talk()?;
        pair.talk().with_context(|| format!("round {round}"))?;
        let repeated = segments_repeated(&client.netns)? - before;
        println!("round {round}: {repeated} segments repeated");
    }
    ensure_all_bound(&lb, 3 * (2 * EACH + 1))
}
