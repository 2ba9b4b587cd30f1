//! What operators do to one box while the other one serves.

use anyhow::{Context as _, Result};
use lb_tests::{
    topology::{BoxName, Topology},
    traffic::conn_pair::{Line, Pair},
};

use super::{
    Boxes, IDLE, IDLE_PORT, config,
    connections::{COUNT, Connections},
    sync_cut::wait_until_equal,
};

/// Connections that are there before a box goes out, of which every other one closes meanwhile, and as many come.
const OPEN: usize = 40;

/// The standby is upgraded, then the active box; then the roles change, and the same again. Every connection goes on, and stands ready
/// on the other box after each step.
#[privileged_test]
fn both_boxes_are_upgraded() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let configs = BoxName::ALL.map(|name| boxes.group.config(config(&pair), name));
    let connections = Connections::open(&pair)?;
    for active in BoxName::ALL {
        let standby = active.other();
        for name in [standby, active] {
            let [first, second] = &configs;
            let before = match name {
                BoxName::Lb1 => boxes.first.take_over(first)?,
                BoxName::Lb2 => boxes.second.take_over(second)?,
            };
            let context = || format!("{} upgraded, {} active", name.name(), active.name());
            boxes
                .wait_for_replicas(standby, COUNT)
                .with_context(context)?;
            connections.ensure_alive().with_context(context)?;
            drop(before);
        }
        boxes.move_to(standby)?;
        connections.ensure_alive()?;
        boxes.wait_for_replicas(active, COUNT)?;
    }
    connections.close()
}

/// A box that was out has the flows of the other one again, those that have begun meanwhile and no ended one: with its tables of before, and
/// with new ones as after a reboot. Some of the flows have ports that it gives out itself.
#[privileged_test]
fn a_box_that_was_out_has_all_flows_again() -> Result<()> {
    for is_reboot in [false, true] {
        let pair = Topology::pair()?;
        let mut boxes = Boxes::start(&pair)?;
        let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
        let mut open = line.open_many(OPEN / 2)?;
        wait_until_equal(&boxes, &open)?;
        boxes.move_to(BoxName::Lb2)?;
        open.extend(line.open_many(OPEN / 2)?);
        wait_until_equal(&boxes, &open)?;
        boxes.move_to(BoxName::Lb1)?;
        let context = || format!("reboot: {is_reboot}");

        boxes.second.kill()?;
        if is_reboot {
            boxes.second.tell(&["down"])?.done()?;
        }
        let mut is_kept = false;
        open.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
        open.extend(line.open_many(OPEN / 2)?);
        let config = boxes.group.config(config(&pair), BoxName::Lb2);
        boxes.second.restart(&config)?;
        wait_until_equal(&boxes, &open).with_context(context)?;
        boxes.move_to(BoxName::Lb2)?;
        open.iter().try_for_each(Pair::talk).with_context(context)?;
        // Its own ports are given to new ones, and to no flow that lives.
        open.extend(line.open_many(OPEN)?);
        open.iter().try_for_each(Pair::talk).with_context(context)?;
        wait_until_equal(&boxes, &open).with_context(context)?;
    }
    Ok(())
}
