//! Maps of maps. The kernel opens an inner map by its id only with the privilege to administer the whole
//! system, which a process that runs has not: so each is held from when it was made or found. One that
//! another process has put in its place since cannot be opened, only replaced.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use aya::maps::{Array, ArrayOfMaps, FromMapData, HashMap, InnerMap, Map, MapData, MapError};

use super::{batch, grace};

/// The inner maps that this process holds, by the outer one's name and their place in it. Clones are of
/// the same.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldMaps(Arc<Mutex<BTreeMap<InnerKey, OwnedFd>>>);

type InnerKey = (&'static str, u32);

impl HeldMaps {
    fn all(&self) -> MutexGuard<'_, BTreeMap<InnerKey, OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inner map at a place of the outer one that is called `name`, if it is held.
    ///
    /// # Errors
    ///
    /// If there is no descriptor left.
    pub(super) fn copy(&self, name: &'static str, index: u32) -> io::Result<Option<OwnedFd>> {
        let held = self.all();
        held.get(&(name, index)).map(OwnedFd::try_clone).transpose()
    }
}

/// What is at a place of a map of maps.
pub(super) enum Inner<V> {
    /// No map.
    None,
    /// One that another process has made and this one may not open.
    Closed,
    /// A map.
    Open(V),
}

/// A map of maps, all of which are changed by this process alone, but for [`Self::let_go`].
pub(super) struct Outer<V> {
    name: &'static str,
    map: ArrayOfMaps<MapData, V>,
    folder: PathBuf,
    held: HeldMaps,
}

impl<V: FromMapData + InnerMap> Outer<V> {
    /// Opens the map of this name that is pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If it is not there, or has another layout.
    pub(super) fn open(folder: &Path, name: &'static str, held: HeldMaps) -> Result<Self>
    where
        ArrayOfMaps<MapData, V>: TryFrom<Map, Error = MapError>,
    {
        Ok(Self {
            name,
            map: Map::ArrayOfMaps(pinned(folder, name)?).try_into()?,
            folder: folder.to_owned(),
            held,
        })
    }

    /// The same map, as the kernel shows it: ids of maps. It is opened where it is needed, which is seldom: one
    /// descriptor less for each thread that has the maps.
    fn ids(&self) -> Result<Array<MapData, u32>> {
        Ok(Map::Array(pinned(&self.folder, self.name)?).try_into()?)
    }

    pub(super) fn len(&self) -> u32 {
        self.map.len()
    }

    /// The map at a place.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub(super) fn get(&self, index: u32) -> Result<Inner<V>> {
        let mut held = self.held.all();
        if let Some(known) = held.get(&(self.name, index)) {
            let data = MapData::from_fd(known.try_clone()?)?;
            return Ok(Inner::Open(V::from_map_data(data)?));
        }
        match self.map.get(&index, 0) {
            Ok(found) => {
                held.insert((self.name, index), descriptor(&found)?);
                Ok(Inner::Open(found))
            }
            Err(MapError::KeyNotFound) => Ok(Inner::None),
            Err(error) if is_refused(&error) => Ok(Inner::Closed),
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

    /// Leaves a place without a map.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub(super) fn remove(&mut self, index: u32) -> Result<()> {
        if matches!(self.get(index)?, Inner::None) {
            return Ok(());
        }
        // Only of hashes aya removes something; what the kernel is called with is the same.
        let mut places: HashMap<MapData, u32, u32> =
            Map::HashMap(pinned(&self.folder, self.name)?).try_into()?;
        places
            .remove(&index)
            .with_context(|| format!("remove map {index} of {}", self.name))?;
        self.held.all().remove(&(self.name, index));
        Ok(())
    }

    /// Puts maps in their places: for each of them a packet sees the old one or this. Many cost as much time as one.
    ///
    /// # Errors
    ///
    /// If the kernel refuses one: some may be in their places.
    pub(super) fn set_all(&mut self, inners: &[(u32, V)]) -> Result<()> {
        let ids = self.ids()?;
        put_all(&mut self.map, &ids, inners)?;
        let mut held = self.held.all();
        for (index, inner) in inners {
            held.insert((self.name, *index), descriptor(inner)?);
        }
        Ok(())
    }

    /// Lets go of what is not in its place any more, because another process has changed it meanwhile.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a look-up.
    pub(super) fn let_go(&self) -> Result<()> {
        let mut held = self.held.all();
        let mut gone = Vec::new();
        let ids = self.ids()?;
        for (place, known) in held.iter().filter(|((name, _), _)| *name == self.name) {
            let known = MapData::from_fd(known.try_clone()?)?.info()?.id();
            let now = match ids.get(&place.1, 0) {
                Ok(now) => Some(now),
                Err(MapError::KeyNotFound) => None,
                Err(error) => return Err(error.into()),
            };
            if now != Some(known) {
                gone.push(*place);
            }
        }
        held.retain(|place, _| !gone.contains(place));
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

/// Puts maps in their places, whose numbers `ids` shows; after it no packet sees what was there before. Many cost as much
/// time as one.
///
/// # Errors
///
/// If the kernel refuses one: some may be in their places.
pub(super) fn put_all<V: InnerMap>(
    map: &mut ArrayOfMaps<MapData, V>,
    ids: &Array<MapData, u32>,
    inners: &[(u32, V)],
) -> Result<()> {
    let keys: Vec<u32> = inners.iter().map(|(index, _)| *index).collect();
    let values = inners
        .iter()
        .map(|(_, inner)| inner.fd().as_fd().as_raw_fd());
    let values: Vec<u32> = values.map(i32::cast_unsigned).collect();
    if batch::update(ids, &keys, &values).is_ok() {
        grace::wait();
        return Ok(());
    }
    // Before Linux 5.19 it takes them one by one, and waits after each.
    let mut inners = inners.iter();
    inners.try_for_each(|(index, inner)| Ok(map.set(*index, inner, 0)?))
}

pub(super) fn pinned(folder: &Path, name: &str) -> Result<MapData> {
    MapData::from_pin(folder.join(name)).with_context(|| format!("open the pinned map {name}"))
}

/// Whether the kernel opens a map by its id for this process no more.
fn is_refused(error: &MapError) -> bool {
    let cause: Option<&io::Error> = match error {
        MapError::SyscallError(error) => Some(&error.io_error),
        MapError::IoError(error) => Some(error),
        _ => None,
    };
    cause.is_some_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

pub(super) fn descriptor(map: &impl InnerMap) -> Result<OwnedFd> {
    map.fd().as_fd().try_clone_to_owned().context("hold a map")
}
