//! A box that loses its power while it is the active one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_tests::{
    poll,
    servers::keepalived::Keepalived,
    topology::{BoxName, Topology},
};

use super::{
    Boxes, TAKEN_OVER,
    connections::{COUNT, Connections},
};

/// How long keepalived takes to find itself alone.
pub(super) const ALONE: Duration = Duration::from_secs(5);

/// Its links are gone at once, then its process; the other box has all connections.
#[privileged_test]
fn connections_outlive_the_box_that_opened_them() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let connections = Connections::open(&pair)?;
    boxes.wait_for_replicas(BoxName::Lb2, COUNT)?;
    boxes.fail_over()?;
    connections.ensure_alive()?;
    connections.close()
}

/// The same where keepalived moves the marker: what was open goes on, and new connections come.
#[privileged_test]
fn keepalived_has_the_other_box_take_over() -> Result<()> {
    let pair = Topology::pair()?;
    let first = Keepalived::start(&pair, BoxName::Lb1)?;
    poll::until("the marker at lb1", ALONE, || {
        Ok(pair.has_marker(BoxName::Lb1)?.then_some(()))
    })?;
    let second = Keepalived::start(&pair, BoxName::Lb2)?;
    let mut boxes = Boxes::start_beside_marker(&pair)?;
    let connections = Connections::open(&pair)?;
    boxes.wait_for_replicas(BoxName::Lb2, COUNT)?;
    let start = Instant::now();
    pair.power_off(BoxName::Lb1)?;
    boxes.first.kill()?;
    first.kill()?;
    boxes
        .wait_until_served_by(BoxName::Lb2, TAKEN_OVER)
        .with_context(|| second.log())?;
    println!("lb2 has taken over after {:.0?}", start.elapsed());
    connections.ensure_alive()?;
    connections.close()
}
