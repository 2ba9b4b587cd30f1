//! The backends that clients have had of pools with `source_timeout`: the memory of the data plane, for shared VIPs.
#![expect(
    unsafe_code,
    reason = "the entries are shared with the kernel's programs"
)]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    addr::Be32,
    affinity::{Affinity, Place},
    maps::addr6::HashKey,
};
use memmap2::MmapRaw;
use nix::time::{ClockId, clock_gettime};

use super::flows::map;

/// What a client is remembered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffineClient {
    /// The id of its network.
    pub network: u16,
    /// What the key of a flow would have of it.
    pub address: Be32,
}

/// The mapped array `AFFINITIES`.
#[derive(Clone, Debug)]
pub struct Affinities {
    memory: Arc<MmapRaw>,
    key: HashKey,
}

impl Affinities {
    /// Maps the array that is pinned in `folder`; none of a data plane that is older than it is.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the mapping, or the key of the hash cannot be read.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        const NAME: &str = "AFFINITIES";
        if !folder.join(NAME).exists() {
            return Ok(None);
        }
        let key = MapData::from_pin(folder.join("HASH_KEY"));
        let key = key.context("open the pinned map HASH_KEY")?;
        let key: Array<_, HashKey> = Map::Array(key).try_into()?;
        let key = key
            .get(&0, 0)
            .context("read the key of the hash of clients")?;
        let memory = map(folder, NAME, size_of::<u64>())?;
        Ok(Some(Self { memory, key }))
    }

    /// The id of the backend that a client has had last of the pool with this id, up to `timeout` seconds ago.
    pub fn backend(&self, client: AffineClient, pool: u32, timeout: u32) -> Option<u32> {
        let place = self.place(client, pool);
        place.backend(now_seconds(), timeout, |index| self.get(index))
    }

    /// Notes that a client has this backend of the pool now.
    pub fn note(&self, client: AffineClient, pool: u32, backend: u32) {
        let place = self.place(client, pool);
        let now = now_seconds();
        let index = place.own_or_oldest(now, |index| self.get(index));
        if let Some(word) = self.word(index) {
            word.store(place.note(backend, now).raw(), Ordering::Relaxed);
        }
    }

    fn place(&self, client: AffineClient, pool: u32) -> Place {
        Place::of(&self.key, client.network, client.address, pool)
    }

    fn get(&self, index: u32) -> Affinity {
        let word = self.word(index);
        Affinity::from_raw(word.map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    fn word(&self, index: u32) -> Option<&AtomicU64> {
        let place = usize::try_from(index).ok()?.checked_mul(size_of::<u64>())?;
        if place >= self.memory.len() {
            return None;
        }
        let word = self.memory.as_mut_ptr().wrapping_add(place);
        // SAFETY: the word is inside the mapping, which lives as long as `self`, and aligned to eight bytes; the
        // kernel's side reads and writes it whole.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }
}

/// The data plane's coarse time in seconds; it can always be read.
fn now_seconds() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE);
    let seconds = now.map_or(0, |now| now.tv_sec());
    u32::try_from(seconds).unwrap_or_default()
}

#[cfg(test)]
mod twin {
    use lb_common::affinity::ENTRIES;

    use super::*;
    use crate::dataplane::flows;

    impl Affinities {
        /// One that no kernel knows.
        pub(crate) fn anonymous() -> Self {
            let bytes = usize::try_from(ENTRIES).unwrap() * size_of::<u64>();
            Self {
                memory: flows::twin::memory(bytes),
                key: HashKey([1, 3, 5, 7, 11]),
            }
        }
    }
}
