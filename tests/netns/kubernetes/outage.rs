//! The API is away, and comes back.

use std::time::Duration;

use anyhow::Result;
use lb_tests::{poll, product::lb::Lb, topology::Topology};

use super::{FOLLOWED, Hub, PORTS, events};

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
    poll::until("an event", Duration::from_secs(30), || {
        let words = "its API does not answer";
        Ok(events(&lb)?
            .iter()
            .any(|event| event.contains(words))
            .then_some(()))
    })?;
    assert_eq!(hub.answers()?, both);
    lb.kill()?;
    lb.restart(&config)?;
    assert_eq!(hub.answers()?, both, "right after the start");
    hub.api.restart()?;
    hub.publish(PORTS[1], "Cluster")?;
    hub.wait_for(&["n1:31000", "n2:31000"], Duration::from_secs(10))
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
    hub.api.kubectl(&["delete", "node", "n1", "n2"])?;
    poll::until("an event", FOLLOWED, || {
        let words = "backends stay until their checks fail";
        Ok(events(&lb)?
            .iter()
            .any(|event| event.contains(words))
            .then_some(()))
    })?;
    // They go one after the other, and of two the one that is left is no reason to hold the first.
    assert_eq!(hub.answers()?, both[1..]);
    Ok(())
}
