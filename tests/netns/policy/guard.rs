//! A configuration may only program backends that belong where it says: FEATURES C11.

use anyhow::Result;
use lb_tests::{
    product::{
        config::{Config, Keys},
        lb::check,
    },
    topology::LAB_CONFIG,
};

const CONFIGURATION: i32 = 2;

/// The file as it is shipped is right: what follows is refused for what is wrong in it.
#[test]
#[ignore = "needs the binary of lb: cargo xtask test"]
fn the_labs_configuration_is_accepted() -> Result<()> {
    let checked = check(LAB_CONFIG)?;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    Ok(())
}

#[test]
#[ignore = "needs the binary of lb: cargo xtask test"]
fn a_backend_that_is_not_of_its_network_is_refused() -> Result<()> {
    for (what, backend) in [
        ("the host itself", "127.0.0.1:30918"),
        ("the host by another name", "127.8.8.8:30918"),
        ("a worker of a tenant", "192.168.203.101:30918"),
        ("the world", "198.51.100.7:30918"),
        ("nowhere", "0.0.0.0:30918"),
        ("link-local", "169.254.169.254:80"),
        ("a group", "224.0.0.1:30918"),
        ("the network itself", "10.32.96.0:30918"),
        ("every host", "10.32.111.255:30918"),
        ("every host anywhere", "255.255.255.255:30918"),
        ("our own SNAT address", "10.32.96.50:30918"),
        ("no port", "10.32.96.105:0"),
        ("a name", "node-1:30918"),
    ] {
        let config = with_backend(Config::read(LAB_CONFIG), backend);
        ensure_refused(what, &config, "kas-a.backends")?;
    }
    Ok(())
}

/// A worker's address on the right tenant network is its own; a VIP there would be a loop.
#[test]
#[ignore = "needs the binary of lb: cargo xtask test"]
fn a_backend_that_is_a_vip_is_refused() -> Result<()> {
    let vip = |pool: Keys| pool.backends(["192.168.203.110:6443"]);
    let config = Config::read(LAB_CONFIG).pool("apps-https-a", vip);
    ensure_refused("a VIP", &config, "apps-https-a.backends")
}

/// `backends` of a network narrows what may be programmed.
#[test]
#[ignore = "needs the binary of lb: cargo xtask test"]
fn a_backend_outside_of_the_declared_prefixes_is_refused() -> Result<()> {
    let narrow =
        Config::read(LAB_CONFIG).network("mgmt", |mgmt| mgmt.set("backends", ["10.32.96.104/29"]));
    let checked = check(&narrow)?;
    assert_eq!(checked.code, Some(0), "{checked:?}");

    let config = with_backend(narrow, "10.32.96.112:30918");
    ensure_refused("a neighbour of the nodes", &config, "kas-a.backends")
}

fn with_backend(config: Config, backend: &str) -> Config {
    config.pool("kas-a", |pool| pool.backends([backend]))
}

fn ensure_refused(what: &str, config: &str, key: &str) -> Result<()> {
    let failure = check(config)?;
    assert_eq!(failure.code, Some(CONFIGURATION), "{what}: {failure:?}");
    assert!(failure.stderr.contains(key), "{what}: {failure:?}");
    Ok(())
}
