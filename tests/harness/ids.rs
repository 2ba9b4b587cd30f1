//! The queues of free flow ids, looked into: the oracle for "no id is lost".

use anyhow::{Result, ensure};
use lb_user::dataplane::{maps::Maps, pins::Pins};

/// Every id that waits in a queue of the instance, those of one SNAT address after those of another.
/// They are taken out and put back, so nobody may open a flow meanwhile.
///
/// # Errors
///
/// When the instance is not up.
pub fn queued(instance: &str) -> Result<Vec<u32>> {
    let maps = Maps::open(&Pins::new(instance).maps())?;
    let mut all = Vec::new();
    for slot in 0..u32::from(maps.limits().snat_addresses) {
        let Some(mut queue) = maps.free_ids(slot)? else {
            continue;
        };
        let ids: Vec<u32> = std::iter::from_fn(|| queue.pop(0).ok()).collect();
        for id in &ids {
            queue.push(id, 0)?;
        }
        all.extend(ids);
    }
    ensure!(!all.is_empty(), "no SNAT address of {instance} has a queue");
    Ok(all)
}
