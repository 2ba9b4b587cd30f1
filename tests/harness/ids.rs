//! The queue of free flow ids, looked into: the oracle for "no id is lost".

use anyhow::{Context as _, Result};
use lb_user::dataplane::{maps::Maps, pins::Pins};

/// Every id that waits in the queue of the instance's first SNAT address, in order. They are taken
/// out and put back, so nobody may open a flow meanwhile.
///
/// # Errors
///
/// When the instance is not up.
pub fn queued(instance: &str) -> Result<Vec<u32>> {
    let maps = Maps::open(&Pins::new(instance).maps())?;
    let mut queue = maps
        .free_ids(0)?
        .context("the first SNAT address has no queue")?;
    let ids: Vec<u32> = std::iter::from_fn(|| queue.pop(0).ok()).collect();
    for id in &ids {
        queue.push(id, 0)?;
    }
    Ok(ids)
}
