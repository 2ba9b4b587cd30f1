//! What the maps take of the kernel's memory, from their declarations: by the rules by which the kernel itself accounts
//! for maps, so it is what `memlock` says in `/proc/PID/fdinfo/FD` of a map, since Linux 6.4.
//!
//! The rules are `htab_map_mem_usage` (kernel/bpf/hashtab.c), `array_map_mem_usage` (arraymap.c), `trie_mem_usage`
//! (lpm_trie.c), `queue_stack_map_mem_usage` (queue_stack_maps.c) and `ringbuf_map_mem_usage` (ringbuf.c). The records
//! that stand in front of a map's entries are some hundred bytes, and differ between kernels; here they are those of 6.18.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use aya::util::nr_cpus;
use lb_common::maps::{
    counts::{self, Record},
    declarations::{MAPS, MapDeclaration, MapSize, MapType},
    half_open, table,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::object::sizes;
use crate::config::Limits;

/// Bytes of a page, and of a pointer.
const PAGE: u64 = 4096;
const POINTER: u64 = 8;

/// `sizeof(struct bpf_array)`; an array of maps has the same.
const ARRAY: u64 = 312;
/// `struct bpf_htab`, with what its alignment takes, as it is accounted.
const HASH: u64 = 896;
/// `sizeof(struct bucket)`.
const BUCKET: u64 = 16;
/// `sizeof(struct htab_elem)`, without key and value.
const HASH_ENTRY: u64 = 48;
/// `sizeof(struct llist_node)`: what an entry has in front of it that is not preallocated.
const FREE_LIST_NODE: u64 = 8;
/// `sizeof(struct lpm_trie_node)`, without key and value; 40 where it has an `rcu_head`, as in 6.12.
const TRIE_NODE: u64 = 24;
/// Bytes of a trie's key that are the length of the prefix, which a node has itself.
const PREFIX_LENGTH: u64 = 4;
/// `sizeof(struct bpf_queue_stack)`.
const QUEUE: u64 = 312;
/// `sizeof(struct bpf_ringbuf_map)`.
const RING_BUFFER: u64 = 304;
/// Pages of a ring buffer in front of its records: of the kernel, of the consumer, of the producer.
const RING_BUFFER_PAGES: u64 = 3;

/// What is in the maps that their declarations do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapContents {
    /// How many entries there are, by the name of the map; no entry where there is no name. It matters of maps that are
    /// not preallocated.
    pub entries: BTreeMap<&'static str, u64>,
    /// The maps in an array of maps, by the name of that.
    pub inner: BTreeMap<&'static str, Vec<InnerShape>>,
}

/// A map in an array of maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InnerShape {
    /// A block of `COUNTS`.
    Counts,
    /// A queue of `FREE_IDS` that has room for so many ids.
    FreeIds(u32),
    /// A ring of `RINGS` with so many places.
    Ring(u32),
    /// A table of `MAGLEV`.
    Table {
        /// How many entries it has.
        size: u32,
        /// How many backends have a share of them.
        backends: u32,
    },
}

/// What maps take of the kernel's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Footprint {
    /// Bytes of all of them.
    pub bytes: u64,
    /// For how many CPUs that is: those that the kernel of this machine may have.
    pub cpus: u32,
    /// Each map.
    pub maps: Vec<MapFootprint>,
}

/// What a map takes of the kernel's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MapFootprint {
    /// Its name.
    pub name: &'static str,
    /// Bytes of the map itself.
    pub bytes: u64,
    /// How many maps are in it, of an array of maps.
    pub inner_maps: usize,
    /// Bytes of all of these.
    pub inner_bytes: u64,
}

/// How many CPUs the kernel of this machine may have: a map with a value for each CPU has one for each of these.
///
/// # Errors
///
/// If sysfs does not say it.
pub fn possible_cpus() -> Result<u32> {
    let cpus = nr_cpus().map_err(|(file, error)| anyhow!("read {file}: {error}"))?;
    Ok(cpus.get())
}

/// What all maps take with these limits and this in them, on a machine that may have so many CPUs.
pub fn footprint(limits: &Limits, contents: &MapContents, cpus: u32) -> Footprint {
    let limited: BTreeMap<&str, u32> = sizes(limits).into_iter().collect();
    let maps = MAPS.iter().map(|map| {
        let inner = contents.inner.get(map.name).map_or(&[][..], Vec::as_slice);
        MapFootprint {
            name: map.name,
            bytes: Shape {
                room: room(map, &limited),
                used: contents.entries.get(map.name).copied().unwrap_or_default(),
                cpus: u64::from(cpus),
            }
            .bytes(map),
            inner_maps: inner.len(),
            inner_bytes: inner.iter().map(|map| map.bytes(cpus)).sum(),
        }
    });
    let maps: Vec<MapFootprint> = maps.collect();
    Footprint {
        bytes: maps.iter().map(|map| map.bytes + map.inner_bytes).sum(),
        cpus,
        maps,
    }
}

/// How many entries a map has room for; of a ring buffer, how many bytes.
fn room(map: &MapDeclaration, limited: &BTreeMap<&str, u32>) -> u64 {
    let limited = limited.get(map.name).copied();
    u64::from(match map.size {
        MapSize::Fixed(entries) => limited.unwrap_or(entries),
        MapSize::Limited(_) => limited.unwrap_or_default(),
    })
}

/// What a map has beside its declaration.
struct Shape {
    room: u64,
    used: u64,
    cpus: u64,
}

impl Shape {
    fn bytes(&self, map: &MapDeclaration) -> u64 {
        let &Self { room, used, cpus } = self;
        // Sizes of records fit.
        let [key, value] = [map.key_bytes, map.value_bytes].map(|bytes| bytes as u64);
        match map.map_type {
            MapType::Hash if map.is_preallocated => hash(room, [key, value], cpus),
            MapType::Hash => hash_as_used(room, used, [key, value]),
            MapType::Array | MapType::ArrayOfMaps => array(room, value, map.is_mmapable),
            MapType::PerCpuArray => per_cpu_array(room, value, cpus),
            MapType::LpmTrie => trie(used, [key, value]),
            // A pointer each: the entries are few.
            MapType::DevMap | MapType::DevMapHash => array(room, 8, false),
            MapType::RingBuffer => ring_buffer(room),
        }
    }
}

impl InnerShape {
    fn bytes(self, cpus: u32) -> u64 {
        match self {
            Self::Counts => array(u64::from(counts::entries(cpus)), bytes_of::<Record>(), true),
            Self::FreeIds(ids) => queue(u64::from(ids), bytes_of::<u16>()),
            Self::Ring(places) => {
                let values = u64::from(half_open::FIRST) + u64::from(places);
                array(values, bytes_of::<u64>(), false)
            }
            Self::Table { size, backends } => {
                let values = u64::from(table::values(size, backends));
                array(values, bytes_of::<u32>(), true)
            }
        }
    }
}

const fn bytes_of<T>() -> u64 {
    size_of::<T>() as u64
}

/// An entry of a hash: key and value begin at 8 bytes each.
fn hash_entry([key, value]: [u64; 2]) -> u64 {
    HASH_ENTRY + key.next_multiple_of(8) + value.next_multiple_of(8)
}

/// A hash without its entries. As many buckets as entries, in a power of two.
const fn buckets(room: u64) -> u64 {
    HASH + BUCKET * room.next_power_of_two()
}

/// Each CPU has an entry more, for an update that replaces one, and a pointer to it.
fn hash(room: u64, record: [u64; 2], cpus: u64) -> u64 {
    buckets(room) + hash_entry(record) * (room + cpus) + POINTER * cpus
}

fn hash_as_used(room: u64, used: u64, record: [u64; 2]) -> u64 {
    buckets(room) + (hash_entry(record) + FREE_LIST_NODE) * used
}

/// One that userspace maps has its entries in pages of their own.
const fn array(room: u64, value: u64, is_mmapable: bool) -> u64 {
    let entries = room * value.next_multiple_of(8);
    match is_mmapable {
        true => ARRAY.next_multiple_of(PAGE) + entries.next_multiple_of(PAGE),
        false => ARRAY + entries,
    }
}

const fn per_cpu_array(room: u64, value: u64, cpus: u64) -> u64 {
    ARRAY + room * (POINTER + value.next_multiple_of(8) * cpus)
}

/// The kernel counts the prefixes alone; nodes where two of them part are of the same size, and fewer.
const fn trie(used: u64, [key, value]: [u64; 2]) -> u64 {
    used * (TRIE_NODE + key - PREFIX_LENGTH + value)
}

/// One place stays empty.
const fn queue(room: u64, value: u64) -> u64 {
    QUEUE + (room + 1) * value
}

/// And a pointer to each page; pages of records are there twice, one behind the other.
const fn ring_buffer(bytes: u64) -> u64 {
    let pages = bytes / PAGE;
    RING_BUFFER + PAGE * (RING_BUFFER_PAGES + pages) + POINTER * (RING_BUFFER_PAGES + 2 * pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `memlock` was of such maps on Linux 6.18 with two CPUs.
    const CPUS: u64 = 2;

    #[test]
    fn a_hash_has_buckets_in_a_power_of_two_and_an_entry_more_for_each_cpu() {
        assert_eq!(hash(512, [12, 4], CPUS), 46_112);
        assert_eq!(hash(600, [12, 4], CPUS), 60_640);
        let [two, four] = [2, 4].map(|cpus| hash(600, [12, 4], cpus));
        assert_eq!(four - two, 2 * (72 + 8), "an entry and a pointer");
    }

    #[test]
    fn a_hash_as_used_has_buckets_for_all_entries_and_memory_for_those_that_are_there() {
        assert_eq!(hash_as_used(1000, 0, [4, 200]), 17_280);
        assert_eq!(hash_as_used(1000, 10, [4, 200]), 19_920);
    }

    #[test]
    fn values_of_an_array_begin_at_eight_bytes_and_mapped_ones_are_in_pages_of_their_own() {
        assert_eq!(array(1000, 20, false), 24_312);
        assert_eq!(array(1000, 20, true), 28_672);
        assert_eq!(array(514, 4, false), 4424, "of maps");
    }

    #[test]
    fn an_array_for_each_cpu_has_a_value_for_each() {
        assert_eq!(per_cpu_array(256, 20, CPUS), 14_648);
        let [two, three] = [2, 3].map(|cpus| per_cpu_array(256, 20, cpus));
        assert_eq!(three - two, 256 * 24);
    }

    #[test]
    fn a_trie_is_the_prefixes_that_are_there() {
        assert_eq!(trie(0, [12, 4]), 0);
        assert_eq!(trie(10, [12, 4]), 360);
        assert_eq!(trie(10, [24, 4]), 480);
    }

    #[test]
    fn a_queue_has_a_place_that_stays_empty() {
        assert_eq!(queue(1000, 2), 2314);
    }

    #[test]
    fn a_ring_buffer_has_pages_and_pointers_to_them_twice() {
        assert_eq!(ring_buffer(1 << 20), 1_065_288);
    }

    fn of(footprint: &Footprint, name: &str) -> [u64; 2] {
        let map = footprint.maps.iter().find(|map| map.name == name);
        map.map_or([0; 2], |map| [map.bytes, map.inner_bytes])
    }

    /// All of them, each by its type, flags and sizes, and the sizes of the limits.
    #[test]
    fn a_map_goes_by_its_declaration_and_the_limits() {
        let contents = MapContents {
            entries: BTreeMap::from([("RULES", 10), ("SPLICE_NAMES", 3), ("SERVICES", 7)]),
            inner: BTreeMap::new(),
        };
        let limits = Limits {
            snat_addresses: 1,
            services: 600,
            handed_over: 1000,
            ..Limits::default()
        };
        let all = footprint(&limits, &contents, 2);
        assert_eq!(all.maps.len(), MAPS.len());
        let sum: u64 = all.maps.iter().map(|map| map.bytes).sum();
        assert_eq!((all.bytes, all.cpus), (sum, 2));
        let name = bytes_of::<lb_common::maps::splice::SpliceName>();
        for (map, bytes) in [
            ("NETWORK_IDS", hash(512, [8, 4], 2)),
            ("SERVICES", hash_as_used(600, 7, [12, 20])),
            ("SPLICE_NAMES", hash_as_used(2024, 3, [4, name])),
            ("RULES", 360),
            ("RULES6", 0),
            ("CLIENTS6", 4096 + 57_344 * 16),
            ("HASH_KEY", 312 + 40),
            ("MAGLEV", 312 + 8 * 4097),
            ("FLOW_EVENTS", 1_065_288),
            ("IP_IDS", 312 + 8 + 2 * 8),
        ] {
            assert_eq!(of(&all, map), [bytes, 0], "{map}");
        }
        let more = Limits {
            snat_addresses: 2,
            ..limits
        };
        let more = footprint(&more, &contents, 2);
        assert_eq!(
            of(&more, "CLIENTS6")[0] - of(&all, "CLIENTS6")[0],
            56_320 * 16
        );
    }

    #[test]
    fn maps_in_maps_are_those_that_there_are() {
        let table = InnerShape::Table {
            size: 2039,
            backends: 3,
        };
        let contents = MapContents {
            entries: BTreeMap::new(),
            inner: BTreeMap::from([
                ("COUNTS", vec![InnerShape::Counts; 2]),
                ("FREE_IDS", vec![InnerShape::FreeIds(1000)]),
                ("MAGLEV", vec![table, table]),
                ("RINGS", vec![InnerShape::Ring(100)]),
            ]),
        };
        let all = footprint(&Limits::default(), &contents, 2);
        // For the process, and for each CPU.
        assert_eq!(of(&all, "COUNTS")[1], 2 * (4096 + 3 * 64 * 128));
        assert_eq!(of(&all, "FREE_IDS")[1], 2314);
        let values: u64 = 8 * (2 * 2039 + 4 + 3);
        let table = 4096 + values.next_multiple_of(4096);
        assert_eq!(of(&all, "MAGLEV")[1], 2 * table);
        assert_eq!(of(&all, "RINGS")[1], 1168);
        let none = footprint(&Limits::default(), &MapContents::default(), 2);
        let inner: u64 = all.maps.iter().map(|map| map.inner_bytes).sum();
        assert_eq!(all.bytes - none.bytes, inner);
        let counts: Vec<usize> = all.maps.iter().map(|map| map.inner_maps).collect();
        assert_eq!(counts.iter().sum::<usize>(), 6);
    }
}
