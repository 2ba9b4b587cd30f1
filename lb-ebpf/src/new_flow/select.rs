//! The backend of a new flow, from the table of its service's pool; and the next one, where that does not answer.

use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use lb_common::{
    conntrack::Attempt,
    maglev,
    maps::{
        backend::Backend,
        flow::FlowKey,
        service::{SERVICE_ROUND_ROBIN, Service},
        table, usage,
    },
    verdict::DropReason,
};

use super::affinity;
use crate::{
    flow::{atomic, budget::has_room},
    maps::{BACKEND_FLOWS, BACKENDS, MAGLEV},
};

/// Table entries in which another backend is looked for.
const MAX_WALK: u32 = 128;
/// No backend has this id.
const NONE: u32 = 0;

/// The backend for `key`: its id and record.
#[inline(always)]
pub(crate) fn select(
    service: &Service,
    key: &FlowKey,
) -> Result<(u32, &'static Backend), DropReason> {
    let timeout = service.source_timeout();
    if timeout != 0 {
        let network = u32::from(key.network);
        let id = affinity::lb_affine(service.pool, network, key.client.raw(), timeout);
        if id != NONE {
            return Ok((id, BACKENDS.get(id).ok_or(DropReason::RecordMissing)?));
        }
    }
    let table = MAGLEV.get(service.pool).ok_or(DropReason::NoBackend)?;
    let size = table.get(table::SIZE).copied().unwrap_or(0);
    let mut first = if service.goes_by_load() {
        lb_slot(service.pool, service.flags)
    } else if service.goes_by_client() {
        maglev::index(maglev::hash_of_client(key.client), size)
    } else {
        maglev::index(maglev::hash(key), size)
    };
    // Another table may have taken the place of the one that this entry is of.
    if first >= size {
        first = 0;
    }
    let mut is_full = false;
    for attempt in 0..maglev::ATTEMPTS {
        let mut slot = first + attempt;
        if slot >= size {
            slot = slot.wrapping_sub(size);
        }
        let id = table.get(table::id(slot)).copied().unwrap_or(0);
        if size == 0 || id == 0 {
            return Err(DropReason::NoBackend);
        }
        let backend = BACKENDS.get(id).ok_or(DropReason::RecordMissing)?;
        if !backend.next_hop.is_none() && has_room(id, backend) {
            return Ok((id, backend));
        }
        is_full |= !backend.next_hop.is_none();
    }
    if !is_full {
        return Err(DropReason::NoNextHop);
    }
    match lb_room(service.pool, first) {
        NONE => Err(DropReason::BackendsFull),
        id => Ok((id, BACKENDS.get(id).ok_or(DropReason::RecordMissing)?)),
    }
}

/// The id of a backend that has room, by the entries of this pool's table behind those from `first` that were tried; or
/// [`NONE`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_room(pool: u32, first: u32) -> u32 {
    let Some(table) = MAGLEV.get(pool) else {
        return NONE;
    };
    let size = table.get(table::SIZE).copied().unwrap_or(0);
    for step in maglev::ATTEMPTS..MAX_WALK {
        let mut slot = first.wrapping_add(step);
        if slot >= size {
            slot = slot.wrapping_sub(size);
        }
        // A table that is smaller than the walk has been met as a whole.
        let Some(&id) = table.get(table::id(slot)).filter(|_| slot < size) else {
            return NONE;
        };
        let Some(backend) = BACKENDS.get(id) else {
            return NONE;
        };
        if id != NONE && !backend.next_hop.is_none() && has_room(id, backend) {
            return id;
        }
    }
    NONE
}

/// The id of the backend after `current` for `key`: the next one in the pool's table from the key's entry on that this attempt
/// has not been sent to. One of another network is none, as the flow's SNAT port is of this one.
#[inline(always)]
pub(crate) fn next(pool: u32, key: &FlowKey, current: u32, attempt: Attempt) -> Option<u32> {
    let table = MAGLEV.get(pool)?;
    let size = table.get(table::SIZE).copied().filter(|&size| size != 0)?;
    let network = BACKENDS.get(current)?.network;
    let first = maglev::index(maglev::hash(key), size);
    for step in 0..MAX_WALK {
        let mut slot = first + step;
        if slot >= size {
            slot = slot.wrapping_sub(size);
        }
        let id = table.get(table::id(slot)).copied()?;
        if id == 0 || id == current || attempt.has_tried(id) {
            continue;
        }
        let backend = BACKENDS.get(id)?;
        let serves = !backend.next_hop.is_none() && backend.network == network;
        if serves && has_room(id, backend) {
            return Some(id);
        }
    }
    None
}

/// The entry of this pool's table whose turn it is, or the one of two chosen at random whose backend has fewer flows
/// for its share; 0 where an earlier version has made the table. `flags` are those of the service. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_slot(pool: u32, flags: u32) -> u32 {
    let Some(table) = MAGLEV.get(pool) else {
        return 0;
    };
    let size = table.get(table::SIZE).copied().unwrap_or(0);
    if size == 0 {
        return 0;
    }
    if flags & SERVICE_ROUND_ROBIN != 0 {
        let Some(turns) = table.get_ptr_mut(table::turns(size)) else {
            return 0;
        };
        // SAFETY: the value of an array map, aligned to eight bytes.
        return unsafe { atomic::add(turns, 1) } % size;
    }
    let [one, other] = [random(size), random(size)];
    let load = |slot| {
        let id = table.get(table::id(slot)).copied().unwrap_or(0);
        let flows = BACKEND_FLOWS.get(id).copied().unwrap_or(0);
        let share = table.get(table::share(size, slot)).copied().unwrap_or(1);
        (usage::live(flows), share)
    };
    match usage::is_lighter(load(one), load(other)) {
        true => one,
        false => other,
    }
}

/// An entry of a table of `size`.
#[inline(always)]
fn random(size: u32) -> u32 {
    // SAFETY: the helper has no arguments and no preconditions.
    maglev::index(unsafe { bpf_get_prandom_u32() }, size)
}
