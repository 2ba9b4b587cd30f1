//! What becomes of the networks when the control plane is stopped: FEATURES H9.

use std::{net::TcpStream, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::observe::ip_in_receives,
    poll,
    product::lb::Lb,
    topology::{ECHO, Topology, VIP},
};

use crate::flows::life::{LIMIT, config, line, only_flow, send_without_service};

/// Whether a host answers where the VIP is.
fn is_there(topology: &Topology) -> Result<bool> {
    let client = &topology.client().netns;
    client.run("ip neigh flush dev eth0")?;
    send_without_service(topology, 1)?;
    poll::until("an answer, or none", LIMIT, || {
        let entry = client.run(&format!("ip neigh show {VIP} dev eth0"))?;
        Ok(
            match (entry.contains("REACHABLE"), entry.contains("FAILED")) {
                (false, false) => None,
                (is_there, _) => Some(is_there),
            },
        )
    })
}

/// Whether a connection opens within two seconds.
fn opens(topology: &Topology) -> Result<bool> {
    topology
        .client()
        .netns
        .inside(|| TcpStream::connect_timeout(&ECHO.into(), Duration::from_secs(2)).is_ok())
}

/// With `drop`, a stopped control plane takes everything along, counted by its own reason, and ARP for the
/// VIP is a standby's to answer; the next start opens again, and what is still known goes on. One that is
/// killed, or gives way to the next one, stops nothing.
#[privileged_test]
fn h9_a_stop_drops_if_that_is_configured() -> Result<()> {
    let topology = Topology::poc()?;
    let drops = config().set("on_stop", "drop");
    let line = line(&topology)?;
    let mut lb = Lb::start(&topology, &drops)?;
    let pair = line.open()?;
    lb.kill()?;
    pair.talk().context("after a kill")?;
    lb.restart(&drops)?;
    let before = lb.take_over(&drops)?;
    pair.talk().context("after a take-over")?;
    drop(before);
    assert_eq!(lb.dropped("stopped")?, 0);
    ensure!(lb.status()?.networks.iter().all(|network| !network.stopped));

    lb.process().stop()?;
    let said = lb.process().stderr();
    ensure!(
        said.contains("stopped; everything is dropped until the next start (on_stop: drop)"),
        "{said}"
    );
    let at_host = ip_in_receives(&topology.lb)?;
    ensure!(!opens(&topology)?);
    ensure!(!is_there(&topology)?);
    ensure!(lb.dropped("stopped")? > 2);
    assert_eq!(ip_in_receives(&topology.lb)?, at_host);
    ensure!(lb.status()?.networks.iter().all(|network| network.stopped));
    let status = lb.tell(&["status"])?.done()?;
    for network in ["mgmt", "tenant-a"] {
        let line = format!(
            "stopped: network {network} drops everything until the next `lb run` (on_stop: drop)"
        );
        ensure!(status.contains(&line), "{status}");
    }
    only_flow(&lb)?;

    lb.restart(&drops)?;
    topology.client().netns.run("ip neigh flush dev eth0")?;
    pair.talk().context("after the next start")?;
    ensure!(is_there(&topology)?);
    line.open()?.talk()?;
    let dropped = lb.dropped("stopped")?;
    ensure!(lb.status()?.networks.iter().all(|network| !network.stopped));

    // A reload says what the next stop does.
    lb.reload(&config())?;
    lb.process().stop()?;
    pair.talk().context("after a stop that goes on")?;
    assert_eq!(lb.dropped("stopped")?, dropped);
    Ok(())
}
