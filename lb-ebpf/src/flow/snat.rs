//! SNAT addresses: the page of a flow id, and the queue that it goes back into.

use lb_common::{
    addr::Be16,
    maps::{
        network::Address,
        snat::{PAGE, SnatPage, base},
    },
};

use crate::maps::{FREE_IDS, SNAT_PAGES, SNAT_PORTS};

/// The SNAT page of a flow id.
#[inline(always)]
pub(crate) fn snat_page(id: u32) -> Option<&'static SnatPage> {
    SNAT_PAGES.get(id / PAGE)
}

/// The flow id behind a port of one of our addresses, if it is a flow's.
#[inline(always)]
pub(crate) fn flow_id(address: &Address, port: Be16) -> Option<u32> {
    address.flow_id(port.get(), |page| SNAT_PORTS.get(page))
}

/// What a queue holds of an id: how far above the first one of its SNAT address it is.
#[inline(always)]
pub(crate) const fn offset(slot: u16, id: u32) -> u16 {
    id.wrapping_sub(base(slot)) as u16
}

/// Puts the id of an entry that is free or closed at the tail of its queue.
#[inline(always)]
pub(crate) fn release(id: u32) {
    let Some(page) = snat_page(id) else {
        return;
    };
    if let Some(queue) = FREE_IDS.get(page.slot.into()) {
        // The queue has room for every id of its address, and an id is in it at most once. A lock that
        // is busy for too long (NMI; since Linux 6.15 also one whose CPU does not run) loses the id until the next start.
        let _lost: Result<(), i32> = queue.push(&offset(page.slot, id), 0);
    }
}
