//! What a map holds, whatever its type: read, changed and cleared.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter, thread,
};

use anyhow::{Context as _, Result, bail};
use aya::maps::MapType;

use crate::oracle::raw_map::RawMap;

/// What a map holds: values by key. An array holds what is not zero, a queue and a ring buffer by place, an array
/// of maps what its maps hold, by place and key.
pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The backend ids in the tables of all pools, of what the map `MAGLEV` holds. Index 0 of a table is its size, and the
/// ids are behind it.
#[must_use]
pub fn ids_of_tables(maglev: &Content) -> BTreeSet<Vec<u8>> {
    let entries = maglev.iter().filter_map(|(key, value)| {
        let (table, index) = key.split_at_checked(4)?;
        let index = u32::from_be_bytes(*index.first_chunk()?);
        Some((table, index, value))
    });
    let number = |value: &[u8]| value.first_chunk().map_or(0, |it| u32::from_ne_bytes(*it));
    let sizes = entries.clone().filter(|(_, index, _)| *index == 0);
    let sizes: BTreeMap<_, _> = sizes
        .map(|(table, _, value)| (table, number(value)))
        .collect();
    let is_id = |table, index| index > 0 && sizes.get(table).is_some_and(|size| index <= *size);
    let ids = entries.filter(|(table, index, _)| is_id(*table, *index));
    ids.map(|(_, _, id)| id.clone()).collect()
}

impl RawMap {
    /// Makes it as it was made: without keys, or all zeros.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or for a queue: an array of maps is given a new one.
    pub fn clear(&self) -> Result<()> {
        match self.kind {
            MapType::Array | MapType::PerCpuArray => {
                self.write(&vec![0; usize::try_from(self.room)? * self.value])
            }
            MapType::Hash | MapType::LruHash | MapType::LpmTrie | MapType::DevMapHash => {
                let mut keys = self.keys()?.into_iter();
                keys.try_for_each(|key| self.remove(&key))
            }
            MapType::ArrayOfMaps => self.remove_maps(),
            MapType::DevMap => (0..self.room)
                .try_for_each(|index| self.set(&index.to_ne_bytes(), &vec![0; self.value])),
            MapType::RingBuf => self.records().map(drop),
            other => bail!("nothing says how to clear a map of type {other:?}"),
        }
    }

    /// The kernel waits for all programs that run after each map that it takes out of an array of maps; waits
    /// at the same time end at the same time.
    fn remove_maps(&self) -> Result<()> {
        thread::scope(|scope| {
            let places = self.inner_maps()?.into_keys();
            let removals: Vec<_> = places
                .map(|place| scope.spawn(move || self.remove(&place.to_ne_bytes())))
                .collect();
            let mut removals = removals.into_iter();
            removals.try_for_each(|removal| removal.join().expect("no panic"))
        })
    }

    /// What it holds; a queue or a ring buffer holds nothing afterwards.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn take(&self) -> Result<Content> {
        match self.kind {
            MapType::Array | MapType::PerCpuArray => {
                let values = self.read()?;
                let values = (0_u32..).zip(values.chunks(self.value));
                let values = values.filter(|(_, value)| value.iter().any(|byte| *byte != 0));
                Ok(values
                    .map(|(index, value)| (place(index), value.to_vec()))
                    .collect())
            }
            MapType::Hash | MapType::LruHash | MapType::LpmTrie => {
                let keys = self.keys()?.into_iter();
                let pair =
                    |key: Vec<u8>| Ok((key.clone(), self.get(&key)?.context("a key is gone")?));
                keys.map(pair).collect()
            }
            // The interfaces: the program of each is another one in each data plane.
            MapType::DevMap => {
                let mut content = Content::new();
                for index in 0..self.room {
                    if let Some(mut value) = self.get(&index.to_ne_bytes())? {
                        value.truncate(size_of::<u32>());
                        content.insert(place(index), value);
                    }
                }
                Ok(content)
            }
            MapType::DevMapHash => {
                let keys = self.keys()?.into_iter();
                let pair = |key: Vec<u8>| Ok((key.clone(), key));
                keys.map(pair).collect()
            }
            MapType::Queue => {
                let values = iter::from_fn(|| self.pop().transpose());
                let values = (0_u32..).zip(values);
                values
                    .map(|(index, value)| Ok((place(index), value?)))
                    .collect()
            }
            MapType::ArrayOfMaps => {
                let mut content = Content::new();
                for (index, map) in self.inner_maps()? {
                    let shape = [map.kind as u32, map.room].map(u32::to_be_bytes).concat();
                    content.insert(place(index), shape);
                    let entries = map.take()?.into_iter();
                    content
                        .extend(entries.map(|(key, value)| ([place(index), key].concat(), value)));
                }
                Ok(content)
            }
            MapType::RingBuf => {
                let records = (0_u32..).zip(self.records()?);
                Ok(records
                    .map(|(index, record)| (place(index), record))
                    .collect())
            }
            other => bail!("nothing says how to read a map of type {other:?}"),
        }
    }

    /// Changes all that a process can change in it: every value, keys that were there and new ones, the order of
    /// a queue, and which map is where in an array of maps.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn scribble(&self) -> Result<()> {
        const NEW_KEYS: u32 = 50;
        let noise = vec![0xa5; self.value];
        match self.kind {
            MapType::Array | MapType::PerCpuArray => {
                self.write(&noise.repeat(usize::try_from(self.room)?))
            }
            MapType::Hash | MapType::LruHash | MapType::LpmTrie => {
                let keys = self.keys()?;
                keys.iter().try_for_each(|key| self.set(key, &noise))?;
                keys.first().map_or(Ok(()), |key| self.remove(key))?;
                let room = self.room - u32::try_from(keys.len())?;
                let mut new = 0..room.min(NEW_KEYS);
                new.try_for_each(|number| self.set(&self.foreign_key(number), &noise))
            }
            MapType::Queue => {
                let values = self.take()?.into_values();
                let mut some = values.rev().step_by(3);
                some.try_for_each(|value| self.update(None, &value))
            }
            MapType::ArrayOfMaps => {
                let maps = self.inner_maps()?;
                maps.values().try_for_each(Self::scribble)?;
                let Some((first, map)) = maps.first_key_value() else {
                    return Ok(());
                };
                let last = self.room - 1;
                self.set(&last.to_ne_bytes(), &map.descriptor()?.to_ne_bytes())?;
                self.remove(&first.to_ne_bytes())
            }
            // It takes interfaces that there are: the loopback.
            MapType::DevMap => {
                let loopback = [1_u32, 0].map(u32::to_ne_bytes).concat();
                let places = [0, self.room - 1];
                places
                    .iter()
                    .try_for_each(|index| self.set(&index.to_ne_bytes(), &loopback))
            }
            MapType::DevMapHash => {
                let mut keys = self.keys()?.into_iter();
                keys.try_for_each(|key| self.remove(&key))?;
                let loopback = [1_u32, 0].map(u32::to_ne_bytes).concat();
                self.set(&1_u32.to_ne_bytes(), &loopback)
            }
            // Only programs write them.
            MapType::RingBuf => Ok(()),
            other => bail!("nothing says how to change a map of type {other:?}"),
        }
    }

    /// A key that no configuration has; of a trie one of full length.
    fn foreign_key(&self, number: u32) -> Vec<u8> {
        let start = self.key - size_of_val(&number);
        let mut key = [vec![0xa5; start], number.to_ne_bytes().to_vec()].concat();
        if matches!(self.kind, MapType::LpmTrie) {
            let bits = u32::try_from(8 * start).unwrap_or_default();
            key[..size_of_val(&bits)].copy_from_slice(&bits.to_ne_bytes());
        }
        key
    }
}

/// A place in an array, in an order of bytes that is that of places.
fn place(index: u32) -> Vec<u8> {
    index.to_be_bytes().to_vec()
}
