//! The queues of free flow ids, looked into: the oracle for "no id is lost". And numbers of live flows,
//! made wrong.

use anyhow::{Context as _, Result, ensure};
use aya::maps::{MapData, Queue};
use lb_common::maps::{
    snat::{FIRST_FLOW_PORT, base},
    usage,
};
use lb_user::{
    control::{apply::read_ids, ids::Kind},
    dataplane::{flows::UsageTable, maps::Maps, pins::Pins},
};

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

/// The SNAT port of an id of the first address.
pub fn port(id: u32) -> u16 {
    let offset = id.saturating_sub(base(0));
    FIRST_FLOW_PORT + u16::try_from(offset).unwrap_or_default()
}

/// Ids that a test keeps away from the queue of the first SNAT address, so that the others come round
/// soon. They go back when it is dropped.
pub struct Held {
    maps: Maps,
    ids: Vec<u32>,
}

/// Leaves `count` ids in the queue.
///
/// # Errors
///
/// When the instance is not up, or does not have as many.
pub fn leave(instance: &str, count: usize) -> Result<Held> {
    let maps = Maps::open(&Pins::new(instance).maps())?;
    let mut held = Held {
        maps,
        ids: Vec::new(),
    };
    let mut queue = held.queue()?;
    let left: Vec<u32> = (0..count).map(|_| queue.pop(0)).collect::<Result<_, _>>()?;
    held.ids.extend(std::iter::from_fn(|| queue.pop(0).ok()));
    for id in left {
        queue.push(&id, 0)?;
    }
    Ok(held)
}

impl Held {
    fn queue(&self) -> Result<Queue<MapData, u32>> {
        self.maps
            .free_ids(0)?
            .context("the first SNAT address has no queue")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Ok(mut queue) = self.queue() else { return };
        for id in &self.ids {
            if let Err(error) = queue.push(id, 0) {
                eprintln!("id {id} does not go back: {error}");
            }
        }
    }
}

/// Adds `amount` to the numbers of live flows of a network and of a service, as if so many had ended
/// and nobody had taken them off.
///
/// # Errors
///
/// When the instance is not up, or does not know the names.
pub fn miscount(instance: &str, network: &str, service: &str, amount: i32) -> Result<()> {
    let folder = Pins::new(instance).maps();
    let ids = read_ids(&Maps::open(&folder)?)?;
    let id = |kind, name| -> Result<u16> {
        let id = ids.get(kind, name).context("an unknown name")?;
        Ok(u16::try_from(id)?)
    };
    let table = UsageTable::open(&folder)?;
    table.add(usage::network(id(Kind::Network, network)?), amount);
    table.add(usage::service(id(Kind::Service, service)?), amount);
    Ok(())
}
