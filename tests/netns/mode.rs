//! Native XDP where the driver has it, generic where not, and said so.

use anyhow::Result;
use lb_tests::{
    lb::Lb,
    observe::{self, Xdp},
    peers::{DNS_NAME, Peers},
    topology::{API, CONFIG, DNS, MGMT_NIC, TENANT_NIC, Topology},
    traffic,
};

/// A veth with jumbo frames refuses a program without fragments; the same traffic works in generic
/// mode, and both `lb status` and the log say it.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn an_interface_without_native_xdp_falls_back_to_generic() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    topology
        .lb
        .run(&format!("ip link set dev {MGMT_NIC} mtu 9000"))?;
    topology.mgmt_lan.run("ip link set dev p-lb mtu 9000")?;

    let mut lb = Lb::start(&topology, CONFIG)?;

    let modes: Vec<_> = lb
        .status()?
        .networks
        .into_iter()
        .map(|network| (network.interface, network.mode))
        .collect();
    assert_eq!(
        modes,
        [
            (MGMT_NIC.to_owned(), "generic".to_owned()),
            (TENANT_NIC.to_owned(), "native".to_owned())
        ]
    );
    assert!(matches!(
        observe::link(&topology.lb, MGMT_NIC)?.xdp,
        Some(Xdp { native: false, .. })
    ));
    let log = lb.process().stderr();
    assert!(log.contains("generic mode") && log.contains("MTU"), "{log}");
    for client in &topology.clients {
        traffic::curl(client, peers.certificate(), API)?;
        assert!(!traffic::dig(client, DNS, DNS_NAME, "TXT")?.is_empty());
    }
    Ok(())
}
