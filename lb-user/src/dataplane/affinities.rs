//! The backends that clients have had of pools with `source_timeout`: the memory of the data plane, for shared VIPs.

use std::{
    fmt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    addr::Be32,
    affinity::{Affinity, Place},
    maps::addr6::HashKey,
};
use nix::time::{ClockId, clock_gettime};

/// What a client is remembered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffineClient {
    /// The id of its network.
    pub network: u16,
    /// What the key of a flow would have of it.
    pub address: Be32,
}

/// The map `AFFINITIES`.
pub struct Affinities {
    entries: Mutex<Entries>,
    key: HashKey,
}

enum Entries {
    Kernel(Array<MapData, u64>),
    #[cfg(test)]
    Memory(Vec<u64>),
}

impl Affinities {
    /// Opens the map that is pinned in `folder`; none of a data plane that is older than it is.
    ///
    /// # Errors
    ///
    /// If a pin cannot be opened, or the kernel refuses a look-up.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        const NAME: &str = "AFFINITIES";
        if !folder.join(NAME).exists() {
            return Ok(None);
        }
        let pin = |name: &str| {
            MapData::from_pin(folder.join(name))
                .with_context(|| format!("open the pinned map {name}"))
        };
        let entries = Array::try_from(Map::Array(pin(NAME)?))?;
        let key: Array<_, HashKey> = Map::Array(pin("HASH_KEY")?).try_into()?;
        let key = key
            .get(&0, 0)
            .context("read the key of the hash of clients")?;
        Ok(Some(Self {
            entries: Mutex::new(Entries::Kernel(entries)),
            key,
        }))
    }

    /// The id of the backend that a client has had last of the pool with this id, up to `timeout` seconds ago.
    pub fn backend(&self, client: AffineClient, pool: u32, timeout: u32) -> Option<u32> {
        let entries = self.entries();
        let place = self.place(client, pool);
        place.backend(now_seconds(), timeout, |index| entries.get(index))
    }

    /// Notes that a client has this backend of the pool now. What the kernel refuses is forgotten.
    pub fn note(&self, client: AffineClient, pool: u32, backend: u32) {
        let mut entries = self.entries();
        let place = self.place(client, pool);
        let now = now_seconds();
        let index = place.own_or_oldest(now, |index| entries.get(index));
        entries.set(index, place.note(backend, now));
    }

    fn place(&self, client: AffineClient, pool: u32) -> Place {
        Place::of(&self.key, client.network, client.address, pool)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Affinities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Affinities").finish_non_exhaustive()
    }
}

impl Entries {
    fn get(&self, index: u32) -> Affinity {
        let word = match self {
            Self::Kernel(entries) => entries.get(&index, 0).ok(),
            #[cfg(test)]
            Self::Memory(words) => words.get(usize::try_from(index).unwrap()).copied(),
        };
        Affinity::from_raw(word.unwrap_or_default())
    }

    fn set(&mut self, index: u32, entry: Affinity) {
        match self {
            Self::Kernel(entries) => {
                if let Err(error) = entries.set(index, &entry.raw(), 0) {
                    tracing::debug!(%error, "the backend of a client is not noted");
                }
            }
            #[cfg(test)]
            Self::Memory(words) => words[usize::try_from(index).unwrap()] = entry.raw(),
        }
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

    impl Affinities {
        /// One that no kernel knows.
        pub(crate) fn anonymous() -> Self {
            let words = vec![0; usize::try_from(ENTRIES).unwrap()];
            Self {
                entries: Mutex::new(Entries::Memory(words)),
                key: HashKey([1, 3, 5, 7, 11]),
            }
        }
    }
}
