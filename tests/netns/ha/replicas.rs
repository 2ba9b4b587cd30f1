//! Connections that go on when the other box becomes the active one, and when the first one does again.

use anyhow::{Context as _, Result};
use lb_tests::topology::{BoxName, Topology};

use super::{
    Boxes,
    connections::{COUNT, Connections},
};

/// The marker moves and comes back: each time every connection goes on.
#[privileged_test]
fn connections_go_on_through_a_move_and_back() -> Result<()> {
    let pair = Topology::pair()?;
    let boxes = Boxes::start(&pair)?;
    let connections = Connections::open(&pair)?;
    for to in [BoxName::Lb2, BoxName::Lb1] {
        boxes.wait_for_replicas(to, COUNT)?;
        boxes.move_to(to)?;
        connections.ensure_alive().with_context(|| to.name())?;
    }
    connections.close()
}
