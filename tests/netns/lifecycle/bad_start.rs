//! Starts that must fail: one clear message, the right exit code, and nothing half-attached.
//!
//! Exit codes: 1 where this host cannot do what the configuration says, 2 where the command line or
//! the configuration itself is wrong.

use std::path::PathBuf;

use anyhow::Result;
use lb_tests::{
    leftovers::{self, Run},
    oracle::observe::{self, Link},
    product::{
        config::{Config, Keys},
        lb::{Failure, Lb, start_fails, start_fails_without_privileges},
    },
    servers::peers::Peers,
    topology::{CONFIG, ECHO, MGMT_NIC, SNAT, TENANT_NIC, Topology},
    traffic::client,
};

const FAILED: i32 = 1;
const CONFIGURATION: i32 = 2;

#[privileged_test]
fn a_missing_interface_is_named_and_the_other_one_stays_free() -> Result<()> {
    for network in ["tenant-a", "mgmt"] {
        let topology = Topology::poc()?;
        let before = programs(&topology)?;
        let missing = |network: Keys| network.set("interface", "eth9");
        let config = Config::read(CONFIG).network(network, missing);

        let failure = start_fails(&topology, topology.run(), &config)?;

        ensure_one_message(&failure, FAILED, &["eth9"]);
        assert_eq!(programs(&topology)?, before);
        ensure_no_trace(topology.run());
    }
    Ok(())
}

/// XDP would take the host's own traffic, the operator's SSH included.
#[privileged_test]
fn an_address_of_the_host_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    topology
        .lb
        .run(&format!("ip address add {SNAT}/20 dev {MGMT_NIC}"))?;
    let before = programs(&topology)?;

    let failure = start_fails(&topology, topology.run(), CONFIG)?;

    let message = format!("network mgmt: snat: {SNAT} is an address of this host");
    ensure_one_message(&failure, FAILED, &[&message]);
    assert_eq!(programs(&topology)?, before);
    ensure_no_trace(topology.run());
    Ok(())
}

#[privileged_test]
fn a_second_instance_on_the_same_interfaces_leaves_the_first_alone() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let before = programs(&topology)?;
    let second = Run::new()?;

    let failure = start_fails(&topology, second.name(), CONFIG)?;

    // Either NIC may be met first.
    ensure_one_message(&failure, FAILED, &["interface eth"]);
    assert_eq!(programs(&topology)?, before);
    ensure_no_trace(second.name());
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;
    Ok(())
}

/// One NIC is free and one is taken: the free one must be free afterwards, whichever comes first.
#[privileged_test]
fn a_second_instance_on_one_taken_interface_attaches_to_none() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_idle_nic("eth2")?;
    let _peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let before = programs(&topology)?;

    for (network, taken) in [("tenant-a", MGMT_NIC), ("mgmt", TENANT_NIC)] {
        let second = Run::new()?;
        let free = |network: Keys| network.set("interface", "eth2");
        let config = Config::read(CONFIG).network(network, free);

        let failure = start_fails(&topology, second.name(), &config)?;

        ensure_one_message(&failure, FAILED, &[taken]);
        assert_eq!(programs(&topology)?, before);
        ensure_no_trace(second.name());
    }
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;
    Ok(())
}

#[privileged_test]
fn a_second_run_of_the_same_instance_leaves_the_first_alone() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let before = programs(&topology)?;

    let failure = start_fails(&topology, topology.run(), CONFIG)?;

    ensure_one_message(&failure, FAILED, &[topology.run()]);
    assert_eq!(programs(&topology)?, before);
    assert_eq!(lb.status()?.instance, topology.run());
    topology
        .client()
        .netns
        .inside(|| client::who(None, ECHO))??;
    Ok(())
}

#[privileged_test]
fn a_user_without_privileges_is_told_so() -> Result<()> {
    let topology = Topology::poc()?;
    let before = programs(&topology)?;
    let failure = start_fails_without_privileges(&topology, CONFIG)?;

    ensure_one_message(&failure, FAILED, &["CAP_"]);
    assert_eq!(programs(&topology)?, before);
    ensure_no_trace(topology.run());
    Ok(())
}

#[privileged_test]
fn a_wrong_configuration_is_refused_before_anything_is_touched() -> Result<()> {
    let topology = Topology::poc()?;
    let before = programs(&topology)?;
    let config = Config::read(CONFIG).service("api-a", |service| service.pool("kas-b"));

    let failure = start_fails(&topology, topology.run(), &config)?;

    assert_eq!(failure.code, Some(CONFIGURATION), "{failure:?}");
    assert!(failure.stderr.contains("kas-b"), "{failure:?}");
    assert_eq!(programs(&topology)?, before);
    ensure_no_trace(topology.run());
    Ok(())
}

/// The first cell is built when the second one fails: the name of its outer end is taken.
#[privileged_test]
fn a_start_that_fails_half_way_takes_back_what_it_made() -> Result<()> {
    let topology = Topology::poc()?;
    let nic = topology
        .lb
        .run(&format!("ip -o link show dev {TENANT_NIC}"))?;
    let outer = format!("lbc{}", nic.split(':').next().unwrap_or_default());
    topology
        .lb
        .ip_batch(&format!("link add {outer} type bridge\n"))?;
    let before = programs(&topology)?;

    let failure = start_fails(&topology, topology.run(), CONFIG)?;

    ensure_one_message(&failure, FAILED, &[&outer]);
    assert_eq!(programs(&topology)?, before);
    ensure_no_trace(topology.run());
    Ok(())
}

/// The names of all links of the host and the programs on them.
fn programs(topology: &Topology) -> Result<Vec<(String, Option<u64>)>> {
    let links = observe::links(&topology.lb)?.into_iter();
    let program = |link: Link| (link.name, link.xdp.map(|xdp| xdp.program));
    Ok(links.map(program).collect())
}

/// The last line says what is wrong in the words of `about`; no backtrace, no chain of causes.
fn ensure_one_message(failure: &Failure, code: i32, about: &[&str]) {
    assert_eq!(failure.code, Some(code), "{failure:?}");
    assert!(!failure.stdout.contains("ready"), "{failure:?}");
    for words in about {
        assert!(
            failure.message().contains(words),
            "`{words}` is not in: {failure:?}"
        );
    }
    for words in ["panicked", "Caused by", "backtrace"] {
        assert!(
            !failure.stderr.contains(words),
            "`{words}` is in: {failure:?}"
        );
    }
}

fn ensure_no_trace(instance: &str) {
    assert_eq!(leftovers::traces_of(instance), Vec::<PathBuf>::new());
}
