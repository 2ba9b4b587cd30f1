//! The host's own traffic on mgmt is none of our business: FEATURES A26.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::raw::{self, RawPort},
    oracle::wire::Wire,
    poll,
    product::lb::Lb,
    servers::{echo::EchoServer, peers::Peers},
    topology::{CONFIG, ECHO, LB_PORT, MGMT_NIC, Topology},
    traffic::{
        client,
        ping::{Ping, ping},
        secret::SecretFlow,
    },
};

/// The operator's way in.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 10);
const SSH: u16 = 22;
const ROUNDS: usize = 2_000;
const PINGS: usize = 50;
/// Connections that are made meanwhile, at least.
const LOAD: u64 = 100;
const LIMIT: Duration = Duration::from_secs(10);

/// A session like SSH, pings, ARP and LLDP while connections go through the same NIC.
#[privileged_test]
fn the_hosts_own_traffic_passes_under_load() -> Result<()> {
    let topology = Topology::poc()?;
    topology
        .lb
        .run(&format!("ip address add {HOST}/20 dev {MGMT_NIC}"))?;
    let _peers = Peers::start(&topology)?;
    let ssh = SocketAddrV4::new(HOST, SSH);
    let server = EchoServer::start(&topology.lb, ssh, "host")?;
    let admin = &topology.nodes[0];
    let mut early = SecretFlow::open(&admin.netns, None, ssh)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let lldp = Wire::received(&topology.lb, MGMT_NIC, "ether proto 0x88cc", topology.dir())?;

    client::under_load(topology.client(), ECHO, |made| {
        let mut late = SecretFlow::open(&admin.netns, None, ssh)?;
        for _ in 0..ROUNDS {
            early.round()?;
            late.round()?;
        }
        for _ in 0..PINGS {
            ensure!(
                ping(&admin.netns, HOST)? == Ping::Answered,
                "a ping is lost"
            );
            ensure!(
                ping(&topology.lb, admin.address)? == Ping::Answered,
                "to the node"
            );
        }
        // Both have to ask again who has the address.
        admin.netns.run("ip neigh flush dev eth0")?;
        topology.lb.run(&format!("ip neigh flush dev {MGMT_NIC}"))?;
        late.round()?;
        early.round()?;

        let group = Mac::new([1, 0x80, 0xc2, 0, 0, 0x0e]);
        let source = Mac::new([2, 0, 0, 0, 0x57, 1]);
        let frame = raw::ethernet(source, group, 0x88cc, &[2, 7, 4, 2, 0, 0, 0, 0x57, 1]);
        RawPort::open(&topology.mgmt_lan, LB_PORT)?.send(&frame)?;
        lldp.wait_for("LLDP at a packet socket", 1, LIMIT, |got| got == frame)?;
        poll::until("a load worth the name", LIMIT, || {
            late.round()?;
            early.round()?;
            Ok((made.load(Ordering::Relaxed) > LOAD).then_some(()))
        })
    })?;

    assert_eq!(server.mixed_up(), Vec::<String>::new());
    assert_eq!(lb.status()?.flows.live, 0);
    Ok(())
}
