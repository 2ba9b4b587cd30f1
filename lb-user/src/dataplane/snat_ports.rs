//! Which flow id each SNAT port has: drawn by lot when its address is opened. The reverse stands in the entries.

use std::{ops::Range, path::Path};

use anyhow::Result;
use lb_common::{
    conntrack::FlowState,
    maps::{
        network::Address,
        snat::{PAGE, PortPage},
    },
};

use super::{flows::FlowTable, ids::random, mapped::MappedArray};

/// The flow ids of SNAT ports, and the entries that say the ports of ids.
#[derive(Debug)]
pub struct SnatPorts {
    pages: MappedArray<PortPage>,
    flows: FlowTable,
}

impl SnatPorts {
    /// Maps the pinned maps in `folder`.
    ///
    /// # Errors
    ///
    /// If a pin is missing or the kernel refuses a mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            pages: MappedArray::open(folder, "SNAT_PORTS")?,
            flows: FlowTable::open(folder)?,
        })
    }

    /// Gives each port of an address that has no flows the id with this offset: those of `ids`, in the order of the ports.
    pub fn assign(&self, address: &Address, ids: &[u16]) {
        for (port, id) in (address.first_port..).zip(ids) {
            self.flows.set_port(address.base + u32::from(*id), port);
        }
        for (number, ids) in (address.base / PAGE..).zip(ids.chunks(PAGE as usize)) {
            let mut page: PortPage = [0; PAGE as usize];
            page[..ids.len()].copy_from_slice(ids);
            self.pages.write(number, page);
        }
    }

    /// Those of `ids` that no flow has.
    pub fn free(&self, ids: Range<u32>) -> Vec<u32> {
        let is_free = |id: &u32| self.flows.word(*id).is_some_and(FlowState::claimable);
        ids.filter(is_free).collect()
    }

    /// The flow id of a port of an address, if it is one of its flows'.
    pub fn flow_id(&self, address: &Address, port: u16) -> Option<u32> {
        let mut found = [0; PAGE as usize];
        let page = &mut found;
        address.flow_id(port, |number| {
            *page = self.pages.read(number)?;
            Some(page)
        })
    }
}

/// So many offsets of ids in an order that cannot be foreseen: an off-path sender that guesses the port of a query can forge
/// its answer (RFC 6056, section 3.1).
///
/// # Errors
///
/// If the kernel has no random numbers.
pub fn lots(count: u16) -> Result<Vec<u16>> {
    let mut offsets: Vec<u16> = (0..count).collect();
    shuffle(&mut offsets)?;
    Ok(offsets)
}

/// Puts all in an order that cannot be foreseen, after Fisher and Yates; that 2^32 is no multiple of most numbers favours a
/// place by one in 2^16 at most.
///
/// # Errors
///
/// If the kernel has no random numbers.
fn shuffle(all: &mut [u16]) -> Result<()> {
    let mut bytes = vec![0; all.len() * size_of::<u32>()];
    random(&mut bytes)?;
    let (words, _) = bytes.as_chunks();
    for (last, word) in words.iter().enumerate().rev() {
        let other = (u64::from(u32::from_ne_bytes(*word)) * (last as u64 + 1)) >> u32::BITS;
        all.swap(last, usize::try_from(other)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lb_common::maps::snat::FLOWS_PER_ADDRESS;

    use super::*;

    #[test]
    fn lots_have_each_offset_once_and_keep_no_neighbours() {
        let one = lots(FLOWS_PER_ADDRESS).unwrap();
        let mut sorted = one.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..FLOWS_PER_ADDRESS));
        // Two are to be expected; more than twenty come once in 10^14 times.
        let neighbours = one.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1);
        assert!(neighbours.count() <= 20);
    }

    /// Nor does an id stay where it was, but for one of all.
    #[test]
    fn no_two_lots_are_alike() {
        let [one, other] = [0; 2].map(|_| lots(FLOWS_PER_ADDRESS).unwrap());
        let same = one.iter().zip(&other).filter(|(one, other)| one == other);
        assert!(same.count() <= 20);
        let stayed = one.iter().zip(0..).filter(|(id, place)| *id == place);
        assert!(stayed.count() <= 20);
    }

    #[test]
    fn few_lots_come_in_any_order_too() {
        assert!(lots(0).unwrap().is_empty());
        assert_eq!(lots(1).unwrap(), [0]);
        let orders: BTreeSet<_> = (0..1000).map(|_| lots(3).unwrap()).collect();
        assert_eq!(orders.len(), 6, "every order of three comes");
    }
}
