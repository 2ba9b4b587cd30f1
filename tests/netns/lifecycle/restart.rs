//! What an earlier process left is adopted, as far as it still fits.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    leftovers,
    oracle::observe,
    process,
    product::{
        config::{Config, Keys},
        lb::{Lb, binary, start_fails},
    },
    servers::peers::Peers,
    topology::{CONFIG, ECHO, TENANT_NIC, Topology},
    traffic::client,
};

/// A NIC that was removed and came back is another one: its cell gets a new pair of veths.
#[privileged_test]
fn a_nic_that_was_replaced_is_taken_again() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let mut lb = Lb::start(&topology, CONFIG)?;
    lb.process().stop()?;
    topology.replace_tenant_nic()?;
    // The client still knows the old NIC's MAC.
    topology.client().netns.run("ip neigh flush dev eth0")?;

    lb.restart(CONFIG)?;

    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;
    Ok(())
}

/// Neither its program nor its cell stays behind a network that is not configured any more.
#[privileged_test]
fn a_network_that_was_removed_is_left_alone() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, CONFIG)?;
    lb.process().stop()?;
    let services = ["api-a", "dns-a", "echo-a"].into_iter();
    let config = Config::read(CONFIG).without("networks", "tenant-a");
    let without = services.fold(config, |config, name| config.without("services", name));

    lb.restart(&without)?;

    assert!(observe::link(&topology.lb, TENANT_NIC)?.xdp.is_none());
    let cell = PathBuf::from(format!("/run/netns/lb.{}.tenant-a", topology.run()));
    assert!(!leftovers::traces_of(topology.run()).contains(&cell));
    Ok(())
}

/// An instance whose name is the beginning of another's is another instance.
#[privileged_test]
fn down_takes_nothing_of_another_instance() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let traces = leftovers::traces_of(topology.run());
    let (beginning, _) = topology
        .run()
        .split_once('-')
        .context("a run has two parts")?;

    let mut down = topology.lb.command(binary("LB_BIN", "lb")?);
    process::succeed(down.args(["down", "--instance", beginning]))?;

    assert_eq!(leftovers::traces_of(topology.run()), traces);
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;
    Ok(())
}

/// With a file that cannot be used, what was applied last goes on, and it is said so.
#[privileged_test]
fn a_file_that_is_wrong_leaves_what_was_applied() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let mut lb = Lb::start(&topology, CONFIG)?;
    let who = || topology.client().netns.inside(|| client::who(None, ECHO))?;
    lb.process().stop()?;
    lb.restart("version: [")?;
    who()?;
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains("stale: "), "{status}");
    ensure!(
        lb.process().stderr().contains("what was applied goes on"),
        "{}",
        lb.process().stderr()
    );
    let before = lb.maps()?;
    lb.reload(CONFIG)?;
    assert_eq!(lb.maps()?, before);
    let status = lb.tell(&["status"])?.done()?;
    ensure!(!status.contains("stale"), "{status}");
    who()?;
    // Where nothing was applied there is nothing to go on with.
    lb.process().stop()?;
    lb.down()?;
    let failure = start_fails(&topology, topology.run(), "version: [")?;
    assert_eq!(failure.code, Some(2));
    Ok(())
}

/// A file that the host refuses is answered like one that cannot be read: what was applied goes on.
#[privileged_test]
fn a_file_that_the_host_refuses_leaves_what_was_applied() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let mut lb = Lb::start(&topology, CONFIG)?;
    let who = || topology.client().netns.inside(|| client::who(None, ECHO))?;
    let more = |more: Keys| more.nic("tenant", "eth9", "10.9.0.0/24");
    let edited = Config::read(CONFIG).network("more", more);
    lb.kill()?;
    lb.restart(&edited)?;
    who()?;
    let status = lb.tell(&["status"])?.done()?;
    let words = "stale: network more: there is no interface eth9";
    ensure!(status.contains(words), "{status}");
    lb.reload(CONFIG)?;
    let status = lb.tell(&["status"])?.done()?;
    ensure!(!status.contains("stale"), "{status}");
    who().map(drop)
}
