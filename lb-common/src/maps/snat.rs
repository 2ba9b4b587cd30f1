//! SNAT addresses: how flow ids and ports belong together.
//!
//! A SNAT address owns the ids `base .. base + count`, one for each of its ports. Ids are laid out in pages of [`PAGE`], so
//! that the address of an id is one array lookup away.
//!
//! Ids are given out in a row, so that flows that begin one after the other have entries side by side. Their ports must not
//! follow each other: an off-path sender that foresees the port of a query can forge its answer (RFC 6056, section 3.1). So
//! which port an id has is drawn by lot when the address is opened, and stays so. The entry of the id says its port, and a
//! [`PortPage`] the id of a port.

use crate::{addr::Be32, pod::pod_struct};

/// Flow ids per page.
pub const PAGE: u32 = 1024;
/// Pages per SNAT address.
pub const PAGES_PER_ADDRESS: u32 = 55;
/// First port of the part of the port space that belongs to flows.
pub const FIRST_FLOW_PORT: u16 = 1024;
/// Ports, and so flow ids, per SNAT address.
pub const FLOWS_PER_ADDRESS: u16 = 56_320;
/// First port of the part that is kept for the legs of shared VIPs.
pub const FIRST_LEG_PORT: u16 = FIRST_FLOW_PORT + FLOWS_PER_ADDRESS;
/// First port that the cell's own sockets may use, up to 65535.
pub const FIRST_LOCAL_PORT: u16 = 64_512;

const _: () = assert!(FLOWS_PER_ADDRESS as u32 == PAGE * PAGES_PER_ADDRESS);
const _: () = assert!(FIRST_LEG_PORT < FIRST_LOCAL_PORT);

pod_struct! {
    /// The SNAT address that owns a page of flow ids. 8 bytes. Written by userspace only.
    pub struct SnatPage {
        /// The address; 0 for a page that has no owner.
        pub address: Be32,
        /// Slot of the address: index of its queue of free ids.
        pub slot: u16,
        /// Zero.
        pub _reserved: u16,
    }
}

/// The flow ids of [`PAGE`] ports, as offsets from the first id of their SNAT address; 2048 bytes, written by userspace only.
/// Where the first ids of an address begin a page of ids, its first ports begin one of these.
pub type PortPage = [u16; PAGE as usize];

/// The first flow id of the SNAT address in this slot. Slot 0 begins at page 1: the
/// ids of page 0 are never given out, so id 0 can mean "none".
pub const fn base(slot: u16) -> u32 {
    PAGE + slot as u32 * FLOWS_PER_ADDRESS as u32
}

/// The slot of the SNAT address that a flow id is of: the reverse of [`base`]. Of the ids of page 0, which are
/// none's, it is a slot that no address has.
#[inline(always)]
pub const fn slot(id: u32) -> u32 {
    id.wrapping_sub(PAGE) / FLOWS_PER_ADDRESS as u32
}

/// Entries of the flow table for this many SNAT addresses.
pub const fn flow_entries(addresses: u16) -> u32 {
    base(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_its_slot() {
        for index in [0u16, 1, 7, 127] {
            let last = base(index) + u32::from(FLOWS_PER_ADDRESS) - 1;
            assert_eq!([base(index), last].map(slot), [u32::from(index); 2]);
        }
        assert!([0, PAGE - 1].map(slot).iter().all(|slot| *slot > 1000));
    }

    #[test]
    fn a_page_of_ids_belongs_to_one_address() {
        assert!((0..128).all(|slot| base(slot).is_multiple_of(PAGE)));
    }
}
