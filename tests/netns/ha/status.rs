//! What `lb ha status` says on both boxes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb, order::Said},
    topology::{BoxName, Topology},
    traffic::conn_pair::Line,
};
use serde_json::{Value, json};

use super::{Boxes, IDLE, IDLE_PORT, SYNCED};

/// How long a box may take to find that it does not hear the other one.
const UNHEARD: Duration = Duration::from_secs(10);
/// How many flows are opened.
const FLOWS: usize = 10;

/// Both have all flows of the other one, and say so with an exit code; when the sync network is cut they say that they do not.
#[privileged_test]
fn each_box_says_how_it_stands_to_the_other() -> Result<()> {
    let pair = Topology::pair()?;
    let boxes = Boxes::start(&pair)?;
    let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
    let _open = line.open_many(FLOWS)?;
    boxes.wait_for_replicas(BoxName::Lb2, FLOWS)?;
    for name in BoxName::ALL {
        let status = wait(&boxes, name, 0, SYNCED)?;
        let status: Value = serde_json::from_str(&status.stdout)?;
        let is_active = name == BoxName::Lb1;
        for (key, wanted) in [
            ("box", json!(name.name())),
            ("peer", json!(name.other().name())),
            ("active", json!(is_active)),
            ("sync", json!(name.other().sync().to_string())),
        ] {
            ensure!(status[key] == wanted, "{key}: {status}");
        }
        for key in ["only_here", "only_there"] {
            ensure!(status[key] == json!([]), "{key}: {status}");
        }
        let ready = status["receiving"]["ready"].as_u64();
        let ready = usize::try_from(ready.context("a number")?)?;
        ensure!((ready >= FLOWS) == !is_active, "{status}");
    }
    let said = boxes.lb(BoxName::Lb2).tell(&["ha", "status"])?;
    let first = "box lb2: standby: it does not have the marker address 10.32.96.60";
    ensure!(said.stdout.starts_with(first), "{said:?}");

    pair.sync.cut()?;
    for name in BoxName::ALL {
        let status = wait(&boxes, name, 1, UNHEARD)?;
        let status: Value = serde_json::from_str(&status.stdout)?;
        ensure!(
            status["receiving"]["session"]["error"].is_string(),
            "{status}"
        );
    }
    Ok(())
}

/// A box that has no peer says so.
#[privileged_test]
fn a_box_alone_has_no_peer() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &Config::poc())?;
    let said = lb.tell(&["ha", "status"])?;
    ensure!(said.code == Some(2), "{said:?}");
    ensure!(said.stderr.contains("has no peer"), "{said:?}");
    Ok(())
}

/// Waits until the command ends with this code.
fn wait(boxes: &Boxes<'_>, name: BoxName, code: i32, limit: Duration) -> Result<Said> {
    poll::until(
        &format!("`lb ha status` to exit with {code}"),
        limit,
        || {
            let said = boxes.lb(name).tell(&["ha", "status", "-o", "json"])?;
            Ok((said.code == Some(code)).then_some(said))
        },
    )
}
