//! What the kernel says that it has taken for a map: `memlock` of a descriptor, in /proc/PID/fdinfo
//! (`bpf_map_show_fdinfo` in kernel/bpf/syscall.c).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result};
use aya::maps::MapType;

use super::raw_map::RawMap;

/// Bytes that the kernel accounts for a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounted {
    /// Those of the map itself.
    pub bytes: u64,
    /// Those of each map in it, of an array of maps.
    pub inner: Vec<u64>,
}

/// What the kernel accounts for maps.
#[derive(Debug)]
pub struct AccountedMaps {
    /// Of each map that is pinned in a folder, by its name.
    pub pinned: BTreeMap<String, Accounted>,
    /// The ids of all of these, and of the maps in them.
    pub ids: BTreeSet<u32>,
}

/// Whether this kernel accounts for maps by their types: since Linux 6.4. Before that it does so by the sizes of key and
/// value alone.
///
/// # Errors
///
/// When the kernel does not say its version.
pub fn is_by_type() -> Result<bool> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || -> Result<u32> { Ok(numbers.next().context("a version")?.parse()?) };
    Ok((number()?, number()?) >= (6, 4))
}

/// Those of the maps that are pinned in `folder`.
///
/// # Errors
///
/// When one cannot be opened.
pub fn pinned(folder: &Path) -> Result<AccountedMaps> {
    let mut all = AccountedMaps {
        pinned: BTreeMap::new(),
        ids: BTreeSet::new(),
    };
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry?;
        let map = RawMap::open(&entry.path())?;
        all.ids.insert(map.id);
        let mut accounted = Accounted {
            bytes: of(&map)?,
            inner: Vec::new(),
        };
        if map.kind == MapType::ArrayOfMaps {
            for inner in map.inner_maps()?.values() {
                all.ids.insert(inner.id);
                accounted.inner.push(of(inner)?);
            }
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        all.pinned.insert(name, accounted);
    }
    Ok(all)
}

/// Those of the maps that a process has descriptors of, by their ids.
///
/// # Errors
///
/// When there is no such process.
pub fn of_process(pid: u32) -> Result<BTreeMap<u32, u64>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut maps = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
        // It may be closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        if let (Some(id), Some(bytes)) = (field(&text, "map_id:"), field(&text, "memlock:")) {
            maps.insert(u32::try_from(id)?, bytes);
        }
    }
    Ok(maps)
}

fn of(map: &RawMap) -> Result<u64> {
    let path = format!("/proc/self/fdinfo/{}", map.descriptor()?);
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    field(&text, "memlock:").with_context(|| format!("no memlock in {path}: {text}"))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line?.trim().parse().ok()
}
