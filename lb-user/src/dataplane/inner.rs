//! Maps of maps. The kernel opens an inner map by its id only for who may administer the whole system,
//! which a process that runs may not: so each is held from when it was made or found.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use aya::maps::{ArrayOfMaps, FromMapData, InnerMap, MapData, MapError};

/// The inner maps that this process holds, by the outer one's name and their place in it. Clones are of
/// the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Mutex<BTreeMap<Place, OwnedFd>>>);

type Place = (&'static str, u32);

impl Held {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Place, OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A map of maps, all of which are changed by this process alone.
pub(super) struct Outer<V> {
    name: &'static str,
    map: ArrayOfMaps<MapData, V>,
    held: Held,
}

impl<V: FromMapData + InnerMap> Outer<V> {
    pub(super) const fn new(name: &'static str, map: ArrayOfMaps<MapData, V>, held: Held) -> Self {
        Self { name, map, held }
    }

    pub(super) fn len(&self) -> u32 {
        self.map.len()
    }

    /// The map at a place, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the kernel does not open it.
    pub(super) fn get(&self, index: u32) -> Result<Option<V>> {
        let mut held = self.held.all();
        if let Some(known) = held.get(&(self.name, index)) {
            let data = MapData::from_fd(known.try_clone()?)?;
            return Ok(Some(V::from_map_data(data)?));
        }
        match self.map.get(&index, 0) {
            Ok(found) => {
                held.insert((self.name, index), descriptor(&found)?);
                Ok(Some(found))
            }
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("open map {index} of {}", self.name)),
        }
    }

    /// Puts a map in a place: a packet sees the old one or this.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub(super) fn set(&mut self, index: u32, inner: &V) -> Result<()> {
        let descriptor = descriptor(inner)?;
        self.map.set(index, inner, 0)?;
        self.held.all().insert((self.name, index), descriptor);
        Ok(())
    }

    /// Holds all that there are.
    ///
    /// # Errors
    ///
    /// As for [`Self::get`].
    pub(super) fn hold(&self) -> Result<()> {
        (0..self.len()).try_for_each(|index| self.get(index).map(drop))
    }
}

fn descriptor(map: &impl InnerMap) -> Result<OwnedFd> {
    map.fd().as_fd().try_clone_to_owned().context("hold a map")
}
