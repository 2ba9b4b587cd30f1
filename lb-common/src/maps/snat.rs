//! SNAT addresses: how flow ids and ports belong together.
//!
//! A SNAT address owns the ids `base .. base + count`, one per port from its first port on. Ids are
//! laid out in pages of [`PAGE`], so that the address of an id is one array lookup away.

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
    /// The SNAT address that owns a page of flow ids. 12 bytes. Written by userspace only.
    pub struct SnatPage {
        /// The address; 0 for a page that has no owner.
        pub address: Be32,
        /// Flow id of the address's first port.
        pub base: u32,
        /// That port, host order.
        pub first_port: u16,
        /// Slot of the address: index of its queue of free ids.
        pub slot: u16,
    }
}

impl SnatPage {
    /// The SNAT port of a flow id on this page, host order.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an offset below the 16-bit count"
    )]
    pub const fn port(&self, id: u32) -> u16 {
        self.first_port
            .wrapping_add(id.wrapping_sub(self.base) as u16)
    }
}

/// Flow id of the first port of the SNAT address in this slot. Slot 0 begins at page 1: the
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
    use crate::maps::network::{Address, KIND_SNAT};

    #[test]
    fn an_id_says_its_slot() {
        for index in [0u16, 1, 7, 127] {
            let last = base(index) + u32::from(FLOWS_PER_ADDRESS) - 1;
            assert_eq!([base(index), last].map(slot), [u32::from(index); 2]);
        }
        assert!([0, PAGE - 1].map(slot).iter().all(|slot| *slot > 1000));
    }

    #[test]
    fn ids_and_ports_are_each_others_inverse() {
        for index in [0u16, 1, 7] {
            let page = SnatPage {
                base: base(index),
                first_port: FIRST_FLOW_PORT,
                ..Default::default()
            };
            let address = Address {
                kind: KIND_SNAT,
                base: page.base,
                first_port: FIRST_FLOW_PORT,
                count: FLOWS_PER_ADDRESS,
            };
            for offset in [0, 1, 1023, 1024, u32::from(FLOWS_PER_ADDRESS) - 1] {
                let id = page.base + offset;
                assert_eq!(address.flow_id(page.port(id)), Some(id));
            }
            assert_eq!(page.base % PAGE, 0, "a page belongs to one address");
        }
    }
}
