//! The queues of free flow ids, looked into: the oracle for "no id is lost". And numbers of live flows,
//! made wrong.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    addr::Be16,
    maps::snat::{FLOWS_PER_ADDRESS, base},
};
use lb_user::{
    control::apply::read_ids,
    dataplane::{
        flows::{FlowOwners, FlowTable, UsageTable},
        ids::FreeIds,
        maps::Maps,
        pins::Pins,
    },
    model::registry::Kind,
};

/// Every id that waits in a queue of the instance, those of one SNAT address after those of another.
/// They are taken out and put back, so no flow may be opened meanwhile.
///
/// # Errors
///
/// When the instance is not up.
pub fn queued(instance: &str) -> Result<Vec<u32>> {
    let all = by_slot(instance)?.into_values();
    let all: Vec<u32> = all.flatten().collect();
    ensure!(!all.is_empty(), "no SNAT address of {instance} has a queue");
    Ok(all)
}

/// The same by the slot of each SNAT address.
///
/// # Errors
///
/// When the instance is not up.
pub fn by_slot(instance: &str) -> Result<BTreeMap<u16, Vec<u32>>> {
    let maps = Maps::open(&Pins::new(instance).maps())?;
    let mut all = BTreeMap::new();
    for slot in 0..maps.limits().snat_addresses {
        let Some(mut queue) = maps.free_ids(slot)? else {
            continue;
        };
        let ids: Vec<u32> = std::iter::from_fn(|| queue.pop().ok()).collect();
        for id in &ids {
            queue.push(*id)?;
        }
        all.insert(slot, ids);
    }
    Ok(all)
}

/// How many ids each SNAT address has that has a queue: those that wait there, each counted once, and those that
/// a flow holds. And how many wait there more than once.
///
/// # Errors
///
/// When the instance is not up.
pub fn counted(instance: &str) -> Result<Vec<[usize; 2]>> {
    let table = FlowTable::open(&Pins::new(instance).maps())?;
    let count = |(slot, queued): (u16, Vec<u32>)| {
        let ids = base(slot)..base(slot) + u32::from(FLOWS_PER_ADDRESS);
        let held = |id: &u32| table.word(*id).is_some_and(|word| !word.claimable());
        let different: BTreeSet<u32> = queued.iter().copied().collect();
        let again = queued.len() - different.len();
        [different.len() + ids.filter(held).count(), again]
    };
    Ok(by_slot(instance)?.into_iter().map(count).collect())
}

/// The SNAT ports of [`by_slot`], in the same order.
///
/// # Errors
///
/// When the instance is not up.
pub fn ports_by_slot(instance: &str) -> Result<BTreeMap<u16, Vec<u16>>> {
    let table = FlowTable::open(&Pins::new(instance).maps())?;
    let ports = |ids: Vec<u32>| {
        let ports = ids.into_iter().filter_map(|id| table.port(id));
        ports.map(Be16::get).collect()
    };
    let all = by_slot(instance)?.into_iter();
    Ok(all.map(|(slot, ids)| (slot, ports(ids))).collect())
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
    let left: Vec<u32> = (0..count).map(|_| queue.pop()).collect::<Result<_, _>>()?;
    held.ids.extend(std::iter::from_fn(|| queue.pop().ok()));
    for id in left {
        queue.push(id)?;
    }
    Ok(held)
}

impl Held {
    fn queue(&self) -> Result<FreeIds> {
        self.maps
            .free_ids(0)?
            .context("the first SNAT address has no queue")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Ok(mut queue) = self.queue() else { return };
        for id in &self.ids {
            if let Err(error) = queue.push(*id) {
                eprintln!("id {id} does not go back: {error}");
            }
        }
    }
}

/// Adds `amount` to the numbers of live flows of a network and of a service, and of the network on the first SNAT
/// address, as if so many had ended without being taken off.
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
    let (network, service) = (id(Kind::Network, network)?, id(Kind::Service, service)?);
    let owners = FlowOwners {
        network,
        service,
        backend: 0,
    };
    table.count(base(0), &owners, amount);
    Ok(())
}
