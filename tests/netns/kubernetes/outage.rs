//! The API is away, and comes back.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::{poll, product::lb::Lb, topology::Topology};

use super::{FOLLOWED, Hub, PORTS, wait_for_event};

/// D10: without the API everything goes on, also over a kill and a start of `lb`; what changed meanwhile is followed when
/// it is back.
#[privileged_test]
fn d10_without_the_api_backends_stay() -> Result<()> {
    let topology = Topology::poc()?;
    let mut hub = Hub::new(&topology)?;
    let config = hub.config()?;
    let mut lb = Lb::start(&topology, &config)?;
    let both = ["n1:30918", "n2:30918"];
    hub.wait_for(&both, FOLLOWED)?;
    hub.api.kill()?;
    wait_for_event(&lb, "its API does not answer", Duration::from_secs(30))?;
    assert_eq!(hub.answers()?, both);
    let stale = "stale: cluster hub of Kubernetes has not answered for ";
    let status = lb.tell(&["status"])?.done()?;
    ensure!(status.contains(stale), "{status}");
    lb.kill()?;
    lb.restart(&config)?;
    assert_eq!(hub.answers()?, both, "right after the start");
    hub.api.restart()?;
    hub.publish(PORTS[1], "Cluster")?;
    hub.wait_for(&["n1:31000", "n2:31000"], Duration::from_secs(10))?;
    let followed = "cluster hub of Kubernetes: followed";
    poll::until("a status", Duration::from_secs(10), || {
        let status = lb.tell(&["status"])?.done()?;
        Ok(status.contains(followed).then_some(()))
    })
}

/// An API that has lost its nodes is believed when checks agree, and not before.
#[privileged_test]
fn d10_an_empty_list_is_held() -> Result<()> {
    let topology = Topology::poc()?;
    let hub = Hub::new(&topology)?;
    let config = hub.config()?;
    let config = config.pool("kas", |pool| {
        pool.set("health.tcp", serde_json::json!({}))
            .set("health.interval", "200ms")
            .set("health.timeout", "200ms")
    });
    let lb = Lb::start(&topology, &config)?;
    let both = ["n1:30918", "n2:30918"];
    hub.wait_for(&both, FOLLOWED)?;
    // Of two the one that is left is no reason to hold the first.
    hub.api.kubectl(&["delete", "node", "n1"])?;
    hub.wait_for(&both[1..], FOLLOWED)?;
    hub.api.kubectl(&["delete", "node", "n2"])?;
    wait_for_event(&lb, "backends stay until their checks fail", FOLLOWED)?;
    assert_eq!(hub.answers()?, both[1..]);
    Ok(())
}
