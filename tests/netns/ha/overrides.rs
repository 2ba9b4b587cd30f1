//! What operators set for backends at the active box holds at both.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::lb::Lb,
    topology::{BoxName, Topology},
};

use super::{Boxes, SYNCED, config};

/// A pool without flows of the test's own.
const POOL: &str = "busy";

/// Whether the one backend of the pool is drained.
fn is_drained(lb: &Lb<'_>) -> Result<bool> {
    let table = lb.tell(&["backends"])?.done()?;
    let line = table.lines().find(|line| line.contains(POOL));
    Ok(line.context("the pool")?.contains("drained"))
}

fn wait_until_drained(lb: &Lb<'_>, wanted: bool) -> Result<()> {
    poll::until("the override of the other box", SYNCED, || {
        Ok((is_drained(lb)? == wanted).then_some(()))
    })
}

/// An override goes over to the standby, which has it when it is active; and from there to the first box, which had another
/// one when it lost its power.
#[privileged_test]
fn an_override_outlives_its_box() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let health = boxes.first.health()?;
    let backend = health.iter().find(|backend| backend.pool == POOL);
    let name = format!("{POOL}/{}", backend.context("a backend")?.name);
    boxes.first.tell(&["backend", "drain", &name])?.done()?;
    wait_until_drained(&boxes.second, true)?;

    let refused = boxes.second.tell(&["backend", "enable", &name])?;
    ensure!(
        refused.code == Some(2) && refused.stderr.contains("set it at lb1"),
        "{refused:?}"
    );
    boxes.second.kill()?;
    let config = |name| boxes.group.config(config(&pair), name);
    let configs = BoxName::ALL.map(config);
    boxes.second.restart(&configs[1])?;
    ensure!(is_drained(&boxes.second)?, "after a restart");

    boxes.fail_over()?;
    ensure!(is_drained(&boxes.second)?, "at the active box");
    boxes.second.tell(&["backend", "enable", &name])?.done()?;
    pair.power_on(BoxName::Lb1)?;
    boxes.first.restart(&configs[0])?;
    wait_until_drained(&boxes.first, false)
}
