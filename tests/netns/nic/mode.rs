//! Native XDP where the driver has it, generic where not, and said so.

use anyhow::Result;
use lb_tests::{
    oracle::observe::{self, Xdp},
    product::lb::Lb,
    servers::peers::{DNS_NAME, Peers},
    topology::{API, CONFIG, DNS, MGMT_NIC, TENANT_NIC, Topology},
    traffic::programs,
};

/// A veth with jumbo frames refuses a program without fragments. A frame that is redirected natively
/// is lost at an interface without native XDP, so everything runs in generic mode: the same traffic
/// works, and both `lb status` and the log say it.
#[privileged_test]
fn an_interface_without_native_xdp_makes_all_of_them_generic() -> Result<()> {
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
            (TENANT_NIC.to_owned(), "generic".to_owned())
        ]
    );
    assert!(matches!(
        observe::link(&topology.lb, MGMT_NIC)?.xdp,
        Some(Xdp { native: false, .. })
    ));
    let log = lb.process().stderr();
    assert!(log.contains("generic mode") && log.contains("MTU"), "{log}");
    assert!(log.contains(&format!("interface=\"{MGMT_NIC}\"")), "{log}");
    for client in &topology.clients {
        programs::curl(client, peers.certificate(), API)?;
        assert!(!programs::dig(client, DNS, DNS_NAME, "TXT")?.is_empty());
    }
    Ok(())
}
