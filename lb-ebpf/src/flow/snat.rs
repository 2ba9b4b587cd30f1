//! SNAT addresses: the page of a flow id, and the queue that it goes back into.

use lb_common::maps::snat::{PAGE, SnatPage};

use crate::maps::{FREE_IDS, SNAT_PAGES};

/// The SNAT page of a flow id.
#[inline(always)]
pub(crate) fn snat_page(id: u32) -> Option<&'static SnatPage> {
    SNAT_PAGES.get(id / PAGE)
}

/// Puts the id of an entry that is free or closed at the tail of its queue.
#[inline(always)]
pub(crate) fn release(id: u32) {
    if let Some(queue) = snat_page(id).and_then(|page| FREE_IDS.get(u32::from(page.slot))) {
        // The queue has room for every id of its address, and an id is in it at most once. A lock that
        // is busy for too long (NMI; since Linux 6.15 also one whose CPU does not run) loses the id until the next start.
        let _lost: Result<(), i32> = queue.push(&id, 0);
    }
}
