//! The backend of a new flow, from its service's Maglev table.

use lb_common::{
    maglev,
    maps::{backend::Backend, flow::FlowKey, service::Service},
    verdict::DropReason,
};

use crate::maps::{BACKENDS, MAGLEV};

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
