//! Quotas in this process's memory, and the banks that they are of: changed beside the data plane, by the same
//! rules as flows.
#![expect(
    unsafe_code,
    reason = "the numbers are shared with the kernel's programs"
)]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context as _, Result};
use lb_common::maps::{
    quota::{self, Quota},
    snat,
};
use memmap2::MmapRaw;

use super::flows::map;

/// Bytes from one value of a mapped array to the next.
const STRIDE: usize = 8;
const _: () = assert!(size_of::<Quota>() == STRIDE);
/// Bytes of a quota before its second field.
const LIVE: usize = 4;

/// The mapped arrays `QUOTAS` and `BANKS`.
#[derive(Debug)]
pub struct Quotas {
    quotas: Arc<MmapRaw>,
    banks: Arc<MmapRaw>,
}

impl Quotas {
    /// Maps the arrays that are pinned in `folder`; none of a data plane that is older than they are.
    ///
    /// # Errors
    ///
    /// If a pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        if !folder.join("BANKS").exists() {
            return Ok(None);
        }
        Ok(Some(Self {
            quotas: map(folder, "QUOTAS", STRIDE)?,
            banks: map(folder, "BANKS", STRIDE)?,
        }))
    }

    /// The bank of a slot, 0 for none.
    pub fn bank(&self, slot: u32) -> u32 {
        let bank = word(&self.banks, slot, 0);
        bank.map_or(0, |bank| bank.load(Ordering::Relaxed))
    }

    /// Notes which bank a slot is of.
    ///
    /// # Errors
    ///
    /// If there is no such slot.
    pub fn set_bank(&self, slot: u16, bank: u32) -> Result<()> {
        let word = word(&self.banks, slot.into(), 0).context("a slot of the data plane")?;
        word.store(bank, Ordering::Relaxed);
        Ok(())
    }

    /// Index of what the clients of `network` have of the bank whose port the flow with this id has.
    pub fn index(&self, network: u16, id: u32) -> u32 {
        quota::index(network, self.bank(snat::slot(id)))
    }

    /// A quota as it is now; an empty one beyond the end.
    pub fn get(&self, index: u32) -> Quota {
        let of =
            |offset| word(&self.quotas, index, offset).map(|word| word.load(Ordering::Relaxed));
        Quota {
            most: of(0).unwrap_or_default(),
            live: of(LIVE).unwrap_or_default(),
        }
    }

    /// Those that have a limit, with their indexes.
    pub fn limits(&self) -> impl Iterator<Item = (u32, u32)> {
        let all = (0..quota::ENTRIES).map(|index| (index, self.get(index).most));
        all.filter(|(_, most)| *most != 0)
    }

    /// Sets how many flows there may be at a time; 0 for no limit.
    ///
    /// # Errors
    ///
    /// If there is no such quota.
    pub fn set_most(&self, index: u32, most: u32) -> Result<()> {
        let word = word(&self.quotas, index, 0).context("a quota of the data plane")?;
        word.store(most, Ordering::Relaxed);
        Ok(())
    }

    /// Adds to the number of flows what may be negative; see [`super::flows::MappedCounts::add`].
    pub fn add(&self, index: u32, amount: i32) {
        if let Some(live) = word(&self.quotas, index, LIVE) {
            live.fetch_add(amount.cast_unsigned(), Ordering::Relaxed);
        }
    }
}

/// The four bytes at `offset` of the value with this index; `None` beyond the end.
fn word(memory: &MmapRaw, index: u32, offset: usize) -> Option<&AtomicU32> {
    let place = usize::try_from(index).ok()?.checked_mul(STRIDE)? + offset;
    if place >= memory.len() {
        return None;
    }
    let word = memory.as_mut_ptr().wrapping_add(place);
    // SAFETY: the word is inside the mapping, which lives as long as `memory`, and aligned to four bytes; the
    // kernel's side changes it only by atomic operations.
    Some(unsafe { AtomicU32::from_ptr(word.cast()) })
}

/// Arrays in memory that no kernel knows.
#[cfg(test)]
pub(super) mod twin {
    use lb_common::maps::MAX_SNAT_ADDRESSES;

    use super::{super::flows::twin::memory, *};

    impl Quotas {
        pub(in crate::dataplane) fn anonymous() -> Self {
            let bytes = |values: u32| usize::try_from(values).unwrap() * STRIDE;
            Self {
                quotas: memory(bytes(quota::ENTRIES)),
                banks: memory(bytes(MAX_SNAT_ADDRESSES)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::maps::snat::base;

    use super::*;

    #[test]
    fn a_flow_is_of_the_bank_of_its_port() {
        let quotas = Quotas::anonymous();
        let bank = quota::bank(7, true);
        quotas.set_bank(3, bank).unwrap();
        assert_eq!(quotas.index(9, base(3) + 5), quota::index(9, bank));
        assert_eq!(quotas.index(9, base(4) - 1), quota::index(9, bank));
        assert_eq!(quotas.index(9, base(4)), quota::index(9, 0));
        assert_eq!(quotas.index(9, 0), quota::index(9, 0));
        assert!(quotas.set_bank(128, 1).is_err());
    }

    #[test]
    fn a_new_limit_leaves_the_count_alone() {
        let quotas = Quotas::anonymous();
        quotas.add(77, 7);
        quotas.add(77, -2);
        quotas.add(quota::ENTRIES, 1);
        quotas.set_most(77, 3).unwrap();
        assert_eq!(quotas.get(77), Quota { most: 3, live: 5 });
        assert_eq!(quotas.limits().collect::<Vec<_>>(), [(77, 3)]);
        assert_eq!(quotas.get(78), Quota::default());
        assert_eq!(quotas.get(quota::ENTRIES), Quota::default());
        assert!(quotas.set_most(quota::ENTRIES, 1).is_err());
    }
}
