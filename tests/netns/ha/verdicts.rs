//! Backends that the checks of one box alone find down: both boxes name them, and the service is not moved to the box that finds
//! them down.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::{
    poll, process,
    servers::keepalived::Keepalived,
    topology::{BoxName, Host, Topology},
};
use serde_json::Value;

use super::{Boxes, FIRST, SYNCED};

/// How long keepalived takes to move the marker.
const MOVED: Duration = Duration::from_secs(15);

/// nft, at a node.
fn nft(node: &Host, rule: &str) -> Result<()> {
    process::succeed(node.netns.command("nft").arg(rule)).map(drop)
}

/// Waits until a box names so many backends under `key`.
fn wait_for(boxes: &Boxes<'_>, name: BoxName, key: &str, count: usize) -> Result<Vec<String>> {
    poll::until("the verdicts of both boxes", SYNCED, || {
        let (status, _) = boxes.ha_status(name)?;
        let names = status[key].as_array().into_iter().flatten();
        let names: Vec<_> = names.filter_map(Value::as_str).map(str::to_owned).collect();
        Ok((names.len() == count).then_some(names))
    })
}

/// A node that drops what the standby sends it, as an allow-list without the address of its checks.
#[privileged_test]
fn the_service_does_not_move_to_a_box_that_reaches_less() -> Result<()> {
    let pair = Topology::pair()?;
    let boxes = Boxes::start(&pair)?;
    pair.take_marker(BoxName::Lb1)?;
    let _first = Keepalived::start_beside_lb(&pair, BoxName::Lb1)?;
    boxes.wait_until_served_by(BoxName::Lb1, FIRST)?;
    let _second = Keepalived::start_beside_lb(&pair, BoxName::Lb2)?;
    let node = &pair.nodes[0];
    let from = BoxName::Lb2.checks_from();
    nft(node, "add table ip lacks")?;
    nft(
        node,
        "add chain ip lacks in { type filter hook input priority 0 ; }",
    )?;
    nft(node, &format!("add rule ip lacks in ip saddr {from} drop"))?;

    let pools = boxes.first.health()?.len();
    let names = wait_for(&boxes, BoxName::Lb1, "down_only_there", pools)?;
    ensure!(
        names.iter().any(|name| name.starts_with("idle/")),
        "{names:?}"
    );
    assert_eq!(
        wait_for(&boxes, BoxName::Lb2, "down_only_here", pools)?,
        names
    );
    let said = boxes.first.tell(&["ha", "status"])?.done()?;
    ensure!(said.contains("down at the peer alone: idle/"), "{said}");
    let refused = boxes.first.tell(&["ha", "move", "--timeout", "1s"])?;
    ensure!(
        refused.code == Some(1)
            && refused
                .stderr
                .contains("backends down that this one finds up"),
        "{refused:?}"
    );
    ensure!(pair.has_marker(BoxName::Lb1)?);

    nft(node, "delete table ip lacks")?;
    wait_for(&boxes, BoxName::Lb1, "down_only_there", 0)?;
    boxes.first.tell(&["ha", "move"])?.done()?;
    boxes.wait_until_served_by(BoxName::Lb2, MOVED).map(drop)
}
