//! The backend of a new flow, from its service's Maglev table; and the next one, where that does not answer.

use lb_common::{
    conntrack::Attempt,
    maglev,
    maps::{backend::Backend, flow::FlowKey, service::Service},
    verdict::DropReason,
};

use crate::maps::{BACKENDS, MAGLEV};

/// Table entries in which another backend is looked for.
const MAX_WALK: u32 = 128;

/// The backend for `key`: its id and record.
#[inline(always)]
pub(crate) fn select(
    service: &Service,
    key: &FlowKey,
) -> Result<(u32, &'static Backend), DropReason> {
    let table = MAGLEV.get(service.pool).ok_or(DropReason::NoBackend)?;
    let size = table.get(0).copied().unwrap_or(0);
    let first = maglev::index(maglev::hash(key), size);
    for attempt in 0..maglev::ATTEMPTS {
        let mut slot = first + attempt;
        if slot >= size {
            slot = slot.wrapping_sub(size);
        }
        // The size stands before the entries.
        let id = table.get(slot.wrapping_add(1)).copied().unwrap_or(0);
        if size == 0 || id == 0 {
            return Err(DropReason::NoBackend);
        }
        let backend = BACKENDS.get(id).ok_or(DropReason::RecordMissing)?;
        if !backend.next_hop.is_none() {
            return Ok((id, backend));
        }
    }
    Err(DropReason::NoNextHop)
}

/// The id of the backend after `current` for `key`: the next one in the table from the key's entry on that this attempt
/// has not been sent to. One of another network is none, as the flow's SNAT port is of this one.
#[inline(always)]
pub(crate) fn next(
    service: &Service,
    key: &FlowKey,
    current: u32,
    attempt: Attempt,
) -> Option<u32> {
    let table = MAGLEV.get(service.pool)?;
    let size = table.get(0).copied().filter(|&size| size != 0)?;
    let network = BACKENDS.get(current)?.network;
    let first = maglev::index(maglev::hash(key), size);
    for step in 0..MAX_WALK {
        let mut slot = first + step;
        if slot >= size {
            slot = slot.wrapping_sub(size);
        }
        // The size stands before the entries.
        let id = table.get(slot.wrapping_add(1)).copied()?;
        if id == 0 || id == current || attempt.has_tried(id) {
            continue;
        }
        let backend = BACKENDS.get(id)?;
        if !backend.next_hop.is_none() && backend.network == network {
            return Some(id);
        }
    }
    None
}
