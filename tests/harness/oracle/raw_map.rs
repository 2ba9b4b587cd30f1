//! A map as the kernel has it: bytes of keys and values, whatever they stand for.

use std::{
    collections::BTreeMap,
    iter,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::{
    Pod,
    maps::{Map, MapData, MapType, RingBuf},
    util::nr_cpus,
};
use nix::{errno::Errno, libc};

/// Commands of bpf(2) (linux/bpf.h).
const LOOK_UP: libc::c_long = 1;
const UPDATE: libc::c_long = 2;
const DELETE: libc::c_long = 3;
const NEXT_KEY: libc::c_long = 4;
const POP: libc::c_long = 21;
const LOOK_UP_BATCH: libc::c_long = 24;
const UPDATE_BATCH: libc::c_long = 26;

/// `union bpf_attr` of the commands for one element.
#[repr(C)]
struct One {
    map: u32,
    _hole: u32,
    key: u64,
    /// The next key for [`NEXT_KEY`].
    value: u64,
    flags: u64,
}

/// `union bpf_attr` of the commands for many.
#[repr(C)]
#[derive(Default)]
struct Batch {
    after: u64,
    last: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// A map, and the sizes that its calls go by.
#[derive(Debug)]
pub struct RawMap {
    map: MapData,
    /// The kernel's id of it.
    pub id: u32,
    pub(crate) kind: MapType,
    /// How many entries it has room for.
    pub(crate) room: u32,
    /// Bytes of a key.
    pub(crate) key: usize,
    /// Bytes of a value as a process sees it: that of every CPU, where each has its own.
    pub(crate) value: usize,
}

impl RawMap {
    /// Opens a pinned map.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn open(pin: &Path) -> Result<Self> {
        Self::new(MapData::from_pin(pin).with_context(|| format!("open {}", pin.display()))?)
    }

    /// Opens the map with this id.
    fn with_id(id: u32) -> Result<Self> {
        Self::new(MapData::from_id(id).with_context(|| format!("open the map with id {id}"))?)
    }

    fn new(map: MapData) -> Result<Self> {
        let info = map.info()?;
        let kind = info.map_type()?;
        let bytes = usize::try_from(info.value_size())?;
        let cpus = nr_cpus().map_err(|(file, error)| anyhow!("read {file}: {error}"))?;
        let value = match kind {
            MapType::PerCpuArray => bytes.next_multiple_of(8) * usize::try_from(cpus.get())?,
            _ => bytes,
        };
        Ok(Self {
            id: info.id(),
            kind,
            room: info.max_entries(),
            key: usize::try_from(info.key_size())?,
            value,
            map,
        })
    }

    /// Pins it at another place.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn pin(&self, at: &Path) -> Result<()> {
        let pinned = self.map.pin(at);
        pinned.with_context(|| format!("pin a map at {}", at.display()))
    }

    /// The maps in an array of maps, by place.
    pub(crate) fn inner_maps(&self) -> Result<BTreeMap<u32, Self>> {
        let mut maps = BTreeMap::new();
        for index in 0..self.room {
            let id = self.get(&index.to_ne_bytes())?;
            if let Some(id) = id.as_deref().and_then(<[u8]>::first_chunk) {
                maps.insert(index, Self::with_id(u32::from_ne_bytes(*id))?);
            }
        }
        Ok(maps)
    }

    /// Takes the records of a ring buffer.
    pub(crate) fn records(&self) -> Result<Vec<Vec<u8>>> {
        let descriptor = self.map.fd().as_fd().try_clone_to_owned()?;
        let ring = Map::RingBuf(MapData::from_fd(descriptor)?);
        let mut ring: RingBuf<MapData> = ring.try_into()?;
        Ok(iter::from_fn(|| ring.next().map(|record| record.to_vec())).collect())
    }

    /// The values of an array, one after the other.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn read(&self) -> Result<Vec<u8>> {
        let count = self.room;
        let mut last = 0_u32;
        let mut keys = vec![0_u32; usize::try_from(count)?];
        let mut values = vec![0_u8; keys.len() * self.value];
        let mut call = Batch {
            last: (&raw mut last).expose_provenance() as u64,
            keys: keys.as_mut_ptr().expose_provenance() as u64,
            values: values.as_mut_ptr().expose_provenance() as u64,
            count,
            map: self.descriptor()?,
            ..Batch::default()
        };
        // SAFETY: `call` points to room for `count` keys and values, and for one key more, all of which
        // outlive it.
        let read = unsafe { bpf(LOOK_UP_BATCH, &mut call) }.map(drop);
        if_there(read).context("read all entries")?;
        ensure!(call.count == count, "{} of {count} entries", call.count);
        Ok(values)
    }

    /// Writes every entry of an array.
    ///
    /// # Errors
    ///
    /// When there is not a value for each, or the kernel refuses.
    pub fn write(&self, values: &[u8]) -> Result<()> {
        let keys: Vec<u32> = (0..self.room).collect();
        ensure!(values.len() == keys.len() * self.value, "a value for each");
        self.write_many(&keys, values.as_ptr().expose_provenance())
    }

    /// Writes these entries within one system call, one right after the other.
    ///
    /// # Errors
    ///
    /// When the sizes are not those of the map, or the kernel refuses.
    pub fn write_entries<K: Pod, V: Pod>(&self, keys: &[K], values: &[V]) -> Result<()> {
        ensure!(size_of::<V>() == self.value, "values of another size");
        ensure!(keys.len() == values.len(), "a value for each");
        self.write_many(keys, values.as_ptr().expose_provenance())
    }

    /// `values` points to as many as there are keys.
    fn write_many<K: Pod>(&self, keys: &[K], values: usize) -> Result<()> {
        ensure!(size_of::<K>() == self.key, "keys of another size");
        let mut call = Batch {
            keys: keys.as_ptr().expose_provenance() as u64,
            values: values as u64,
            count: u32::try_from(keys.len())?,
            map: self.descriptor()?,
            ..Batch::default()
        };
        // SAFETY: `call` points to `count` keys and values, which outlive it and are only read.
        let written = unsafe { bpf(UPDATE_BATCH, &mut call) };
        written.map(drop).context("write entries")
    }

    pub(crate) fn keys(&self) -> Result<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            let mut next = vec![0; self.key];
            let found = self.one(NEXT_KEY, keys.last().map(Vec::as_slice), Some(&mut next));
            match if_there(found).context("look for the next key")? {
                Some(()) => keys.push(next),
                None => return Ok(keys),
            }
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value];
        let found = if_there(self.one(LOOK_UP, Some(key), Some(&mut value)));
        Ok(found.context("look up a key")?.map(|()| value))
    }

    pub(crate) fn pop(&self) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; self.value];
        let taken = if_there(self.one(POP, None, Some(&mut value)));
        Ok(taken.context("take out of a queue")?.map(|()| value))
    }

    pub(crate) fn set(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.update(Some(key), value)
    }

    pub(crate) fn update(&self, key: Option<&[u8]>, value: &[u8]) -> Result<()> {
        let set = self.one(UPDATE, key, Some(&mut value.to_vec()));
        set.context("write a value")
    }

    pub(crate) fn remove(&self, key: &[u8]) -> Result<()> {
        let removed = self.one(DELETE, Some(key), None);
        removed.context("remove a key")
    }

    /// A command for one element.
    fn one(
        &self,
        command: libc::c_long,
        key: Option<&[u8]>,
        value: Option<&mut [u8]>,
    ) -> nix::Result<()> {
        let room = match command {
            NEXT_KEY => self.key,
            _ => self.value,
        };
        if key.is_some_and(|key| key.len() != self.key)
            || value.as_ref().is_some_and(|value| value.len() != room)
        {
            return Err(Errno::EINVAL);
        }
        let key = key.map_or(0, |key| key.as_ptr().expose_provenance());
        let value = value.map_or(0, |value| value.as_mut_ptr().expose_provenance());
        let mut call = One {
            map: self.descriptor().map_err(|_| Errno::EBADF)?,
            _hole: 0,
            key: key as u64,
            value: value as u64,
            flags: 0,
        };
        // SAFETY: a key and a value that `call` points to are as long as the map says and outlive it, and the
        // kernel writes only to the value.
        unsafe { bpf(command, &mut call) }.map(drop)
    }

    pub(crate) fn descriptor(&self) -> Result<u32> {
        Ok(u32::try_from(self.map.fd().as_fd().as_raw_fd())?)
    }
}

/// What was found, or nothing where the kernel says that there is none.
fn if_there(found: nix::Result<()>) -> nix::Result<Option<()>> {
    match found {
        Err(Errno::ENOENT) => Ok(None),
        found => found.map(Some),
    }
}

/// # Safety
///
/// `call` is what `command` takes, and all that it points to is valid for what the command does to it.
pub(crate) unsafe fn bpf<T>(command: libc::c_long, call: &mut T) -> nix::Result<libc::c_long> {
    // SAFETY: the caller answers for what `call` points to; it has its own size.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *call, size_of::<T>()) };
    Errno::result(result)
}
