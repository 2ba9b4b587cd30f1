//! The request index: the flow of a request, by its key.

use aya_ebpf::bindings::BPF_NOEXIST;
use lb_common::{
    conntrack::{FlowState, State},
    maps::flow::FlowKey,
    verdict::DropReason,
};

use crate::{
    flow::{atomic, entry::Entry},
    maps::FLOW_INDEX,
};

/// The id in the index for a tuple while its word is being removed. No flow has this id, or the next one.
const LEAVING: u32 = 1;

/// The id there where the kernel has not removed it: the next flow of that tuple takes the word.
const FORGOTTEN: u32 = 0;

/// The kernel's answer where a map has no room.
const E2BIG: i32 = 7;

/// Takes the earlier flow of a newly claimed entry out of the request index.
///
/// Another CPU may give this key a new id at the same time (the same client port is opened again). Both swap
/// the index word, so one of them wins: a CPU that finds it forgotten drops its packet, and one that finds
/// another id there leaves it alone.
#[inline(always)]
pub(crate) fn unindex(entry: &Entry, word: FlowState) {
    if word.has_flow() {
        unindex_key(entry, &entry.key(word));
    }
}

/// The same for the flow of this key, if it is over but still translates: its client has opened its port
/// again, and not to a flow.
#[inline(always)]
pub(crate) fn unindex_closed(key: &FlowKey) {
    // SAFETY: the value is a plain integer; the entry's tuple is verified below.
    let found = unsafe { FLOW_INDEX.get(key) };
    if let Some(entry) = found.and_then(|&id| Entry::at(id)) {
        let word = entry.word();
        if matches!(word.state(), State::Closed) && entry.key(word) == *key {
            unindex_key(&entry, key);
        }
    }
}

/// The kernel may not remove the word: before Linux 6.7 where this packet has interrupted a system call on a
/// map on this CPU, so that it is no use to try again, and since 6.15 where a lock takes too long. The word
/// is [`FORGOTTEN`] then.
#[inline(always)]
fn unindex_key(entry: &Entry, key: &FlowKey) {
    if let Some(place) = FLOW_INDEX.get_ptr_mut(key)
        && swap_place(place, entry.id, LEAVING)
        && FLOW_INDEX.remove(key).is_err()
    {
        // Or userspace was faster, and the memory may be another key's.
        swap_place(place, LEAVING, FORGOTTEN);
    }
}

/// Makes a published flow findable by its requests.
///
/// Two CPUs may create the same flow at once; the second finds the first one's live entry, or the
/// index word changed by it, gives its own up and drops the packet, which the client repeats. So it does with a word
/// that another CPU is removing: that would be gone with the flow.
#[inline(always)]
pub(crate) fn index(entry: &Entry, key: &FlowKey) -> Result<(), DropReason> {
    let inserted = FLOW_INDEX.insert(key, &entry.id, u64::from(BPF_NOEXIST));
    match inserted {
        Ok(()) => return Ok(()),
        Err(error) if error == -E2BIG => return Err(DropReason::FlowTableFull),
        Err(_) => {}
    }
    // None where the word was removed at this moment, or a lock was busy.
    let place = FLOW_INDEX.get_ptr_mut(key).ok_or(DropReason::FlowRace)?;
    // SAFETY: a live value of the map, which other CPUs change by atomic operations only.
    let id = unsafe { place.read_volatile() };
    let other = Entry::at(id).ok_or(DropReason::RecordMissing)?;
    let word = other.word();
    let live = word.translates() && !matches!(word.state(), State::Closed);
    if id == LEAVING || live && other.key(word) == *key || !swap_place(place, id, entry.id) {
        return Err(DropReason::FlowRace);
    }
    Ok(())
}

/// Changes an index word if it still is `old`.
///
/// A removed word's memory is the map's, and may be another key's word by now: it differs from `old` then,
/// unless that key's new flow has taken this very id within these few instructions. Then two flows are lost
/// from the index, and their clients begin anew.
#[inline(always)]
fn swap_place(place: *mut u32, old: u32, new: u32) -> bool {
    // SAFETY: a value of the hash map: memory that is never freed, aligned to eight bytes.
    unsafe { atomic::compare_and_swap(place, old, new) }
}

/// Puts a flow back into the request index if it was lost; see [`swap_place`].
#[inline(always)]
pub(crate) fn reindex(entry: &Entry, key: &FlowKey) {
    // An error means that the flow is there, or that the table is full: nothing to do either way.
    let _there: Result<(), i64> = FLOW_INDEX
        .insert(key, &entry.id, u64::from(BPF_NOEXIST))
        .map_err(Into::into);
}
