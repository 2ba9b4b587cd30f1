//! The flow table in this process's memory: read and changed without a syscall per flow, beside the
//! data plane, by the same rules.
#![expect(
    unsafe_code,
    reason = "the entries are shared with the kernel's programs"
)]

use std::{
    os::fd::AsFd as _,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result};
use aya::maps::MapData;
use lb_common::{
    conntrack::Word,
    maps::flow::{Flow, TIME_SHIFT},
};
use memmap2::{MmapOptions, MmapRaw};
use nix::time::{ClockId, clock_gettime};

/// The mapped flow table.
#[derive(Debug)]
pub struct FlowTable {
    memory: MmapRaw,
}

impl FlowTable {
    /// Maps the pinned map in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        let map = MapData::from_pin(folder.join("FLOWS")).context("open the pinned map FLOWS")?;
        let entries = usize::try_from(map.info()?.max_entries())?;
        let memory = MmapOptions::new()
            .len(entries * size_of::<Flow>())
            .map_raw(&map.fd().as_fd())
            .context("map the flow table")?;
        Ok(Self { memory })
    }

    /// The word of an entry as it is now; `None` beyond the end of the table.
    pub fn word(&self, id: u32) -> Option<Word> {
        self.atomic_word(id)
            .map(|word| Word::from_raw(word.load(Ordering::Acquire)))
    }

    /// A flow's fields, if it is the same flow before and after they are read, and nobody was still
    /// writing them.
    pub fn flow(&self, id: u32) -> Option<(Word, Flow)> {
        let before = self.word(id).filter(|word| word.translates())?;
        let entry = self.entry(id)?;
        // SAFETY: `entry` is inside the mapping and aligned; `Flow` is plain integers, so a torn
        // read is a valid value, and the second look at the generation discards it.
        let flow = unsafe { entry.read_volatile() };
        std::sync::atomic::fence(Ordering::Acquire);
        let after = self.word(id)?;
        (before.generation() == after.generation()).then_some((after, flow))
    }

    /// Changes an entry's word if nobody else did since it was `old`.
    pub fn swap(&self, id: u32, old: Word, new: Word) -> bool {
        self.atomic_word(id).is_some_and(|word| {
            let (old, new) = (old.raw(), new.raw());
            word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    fn atomic_word(&self, id: u32) -> Option<&AtomicU32> {
        let entry = self.entry(id)?;
        // SAFETY: the word is the entry's first field, aligned to 64 bytes in a mapping that lives
        // as long as `self`; the kernel's side changes it only by atomic operations.
        Some(unsafe { AtomicU32::from_ptr(entry.cast()) })
    }

    /// Pointer to an entry inside the mapping.
    fn entry(&self, id: u32) -> Option<*mut Flow> {
        let offset = usize::try_from(id).ok()?.checked_mul(size_of::<Flow>())?;
        let inside = offset < self.memory.len();
        inside.then(|| self.memory.as_mut_ptr().wrapping_add(offset).cast())
    }
}

/// The data plane's coarse time now, in the unit of `Flow::last_seen`.
///
/// # Errors
///
/// If the clock cannot be read.
pub fn coarse_now() -> Result<u32> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("read the monotonic clock")?;
    let ns = u64::try_from(now.tv_sec())? * 1_000_000_000 + u64::try_from(now.tv_nsec())?;
    Ok(u32::try_from(ns >> TIME_SHIFT & u64::from(u32::MAX))?)
}
