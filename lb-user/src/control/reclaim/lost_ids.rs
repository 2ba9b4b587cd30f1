//! Free ids that were lost: what ends a flow puts its id back afterwards, and a process that is killed in
//! between does not.

use anyhow::Result;
use lb_common::conntrack::{FlowState, State};

use crate::{
    dataplane::{flows::FlowTable, grace, ids::Met, maps::Maps, object::Object},
    model::snat::SnatSlot,
};

/// Puts back every id of a SNAT address that no flow has and that is not in the queue of free ids,
/// while the data plane goes on taking and returning ids. Returns how many there were.
///
/// The queue is turned around once, id by id inside of the kernel: so it is never empty for a new flow,
/// keeps its order, and a kill loses none. An id is lost if it was free before the turn, is so still under
/// the same word (no packet had taken it from the queue), and was not met in the turn, nor in a second one
/// after a grace period: by then every packet that was just returning it has done so. To be called when no
/// other process or thread ends flows.
///
/// # Errors
///
/// If the kernel refuses a look-up, a turn or a push.
pub fn recover(maps: &Maps, object: &Object, table: &FlowTable, slot: &SnatSlot) -> Result<usize> {
    let Some(mut queue) = maps.free_ids(slot.slot)? else {
        return Ok(0);
    };
    let ids = slot.flow_ids();
    let before: Vec<(u32, FlowState)> = ids
        .filter_map(|id| Some((id, table.word(id).filter(|word| is_free(*word))?)))
        .collect();
    let mut lost = missing(&before, &object.turn(slot.slot)?, table);
    if !lost.is_empty() {
        grace::wait();
        lost = missing(&lost, &object.turn(slot.slot)?, table);
    }
    for (id, _) in &lost {
        queue.push(*id)?;
    }
    Ok(lost.len())
}

/// Whether an entry with this word belongs to no flow: its id belongs into the queue.
const fn is_free(word: FlowState) -> bool {
    matches!(word.state(), State::Free | State::Closed | State::Ended)
}

/// Those of `free` that are not in `queued` and have the same word still.
fn missing(free: &[(u32, FlowState)], queued: &Met, table: &FlowTable) -> Vec<(u32, FlowState)> {
    let missing =
        |(id, word): &&(u32, FlowState)| !queued.contains(*id) && table.word(*id) == Some(*word);
    free.iter().filter(missing).copied().collect()
}
