//! select: the backend of a new flow, from its service's Maglev table.

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
    let slot = maglev::index(maglev::hash(key), service.table_size);
    let id = match MAGLEV.get_value(service.pool, &slot) {
        Some(&id) if service.table_size != 0 && id != 0 => id,
        _ => return Err(DropReason::NoBackend),
    };
    let backend = BACKENDS.get(id).ok_or(DropReason::RecordMissing)?;
    if backend.next_hop.is_none() {
        return Err(DropReason::NoNextHop);
    }
    Ok((id, backend))
}
