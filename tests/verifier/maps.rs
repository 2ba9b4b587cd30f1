//! The maps of the object, and the list of them that the documentation is made of.

use std::collections::BTreeMap;

use aya_obj::{Map, Object};
use lb_common::maps::declarations::{MAPS, MapDeclaration, MapSize};
use lb_user::dataplane::object::OBJECT;

/// Flag of a map that userspace may have in its memory (include/uapi/linux/bpf.h).
const MMAPABLE: u32 = 1 << 10;
/// Flag of a map whose entries take memory as they come.
const NO_PREALLOC: u32 = 1;

/// What the object and the list both have of a map.
#[derive(Debug, PartialEq)]
struct Facts {
    map_type: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    is_mmapable: bool,
    is_preallocated: bool,
}

impl Facts {
    fn of_object(map: &Map) -> Self {
        Self {
            map_type: map.map_type(),
            key_bytes: map.key_size(),
            value_bytes: map.value_size(),
            entries: map.max_entries(),
            is_mmapable: map.map_flags() & MMAPABLE != 0,
            is_preallocated: map.map_flags() & NO_PREALLOC == 0,
        }
    }

    /// `entries` are those of the object, for a map that the limits give another size.
    fn of_list(map: &MapDeclaration, entries: u32) -> Self {
        let [key_bytes, value_bytes] = [map.key_bytes, map.value_bytes]
            .map(|bytes| u32::try_from(bytes).expect("a size of a record"));
        Self {
            map_type: map.map_type as u32,
            key_bytes,
            value_bytes,
            entries: match map.size {
                MapSize::Fixed(entries) => entries,
                MapSize::Limited(_) => entries,
            },
            is_mmapable: map.is_mmapable,
            is_preallocated: map.is_preallocated,
        }
    }
}

#[test]
#[ignore = "needs the object, which lints are without: cargo xtask test"]
fn the_maps_of_the_object_are_those_of_the_list() {
    let object = Object::parse(OBJECT).expect("the object");
    let mut found: BTreeMap<&str, Facts> = object
        .maps
        .iter()
        .map(|(name, map)| (&**name, Facts::of_object(map)))
        .collect();
    // Constants, and the log.
    found.retain(|name, _| ![".rodata", "AYA_LOGS"].contains(name));
    let listed: BTreeMap<&str, Facts> = MAPS
        .iter()
        .map(|map| {
            let entries = found.get(map.name).map_or(0, |facts| facts.entries);
            (map.name, Facts::of_list(map, entries))
        })
        .collect();
    assert_eq!(listed, found);
}
