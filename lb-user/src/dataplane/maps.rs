//! Typed handles of the pinned maps.

use std::{
    collections::BTreeMap,
    iter,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow};
use aya::{
    maps::{
        Array, HashMap, LpmTrie, Map, MapData, PerCpuArray, PerCpuValues, Queue, lpm_trie::Key,
    },
    util::nr_cpus,
};
use ipnet::{IpNet, Ipv4Net};
use lb_common::{
    maps::{
        backend::Backend,
        drop_sample::{self, Sample},
        flow::Flow,
        half_open,
        network::{Address, AddressKey, NETWORK_STOPPED, Network, NetworkKey},
        registry::RegistryKey,
        rule::{RuleKey, SET_BITS},
        server_name::{NameKey, PoolRoute},
        service::{Service, ServiceKey},
        snat::{FLOWS_PER_ADDRESS, PAGE, SnatPage},
        table,
    },
    verdict::{Counters, Hook, SLOTS, counters_index},
};

use super::{
    batch,
    counts::CountTable,
    doors::Doors,
    flow_lines::FlowLines,
    flows::coarse_now,
    ids::FreeIds,
    ipv6::Ipv6Maps,
    map_of_maps::{HeldMaps, Inner, Outer},
    mapped::MappedArray,
    object::names,
    quotas::Quotas,
    readings::Readings,
    snat_ports::SnatPorts,
    splices::SpliceTable,
};
use crate::config::Limits;

/// Kernel flag of an inner array whose size may differ from its template's (Linux 5.10).
const BPF_F_INNER_MAP: u32 = 1 << 12;
/// Userspace may have it in its memory.
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// How many tables are made before they are put in their places: each is a descriptor meanwhile.
const MAX_TABLES_AT_ONCE: usize = 256;

/// What has no counters that this version can read.
const OLDER: &str =
    "the running data plane is older and counts elsewhere; `lb run` makes it count anew";

/// The maps of one instance, opened from their pins: a process that may read the pins sees what the data
/// plane sees, whether a control plane is running or not.
pub struct Maps {
    /// Interface and VLAN to network id.
    pub network_ids: HashMap<MapData, NetworkKey, u32>,
    /// Networks by id.
    pub networks: Array<MapData, Network>,
    /// VIPs and SNAT addresses.
    pub addresses: HashMap<MapData, AddressKey, Address>,
    /// What both say, for one look-up.
    pub doors: Doors,
    /// Services by listening VIP and port.
    pub services: HashMap<MapData, ServiceKey, Service>,
    /// Backends by id.
    pub backends: Array<MapData, Backend>,
    /// SNAT addresses by page of flow ids.
    pub snat_pages: Array<MapData, SnatPage>,
    /// Flow ids by SNAT port.
    pub snat_ports: SnatPorts,
    /// Flow ids by request tuple.
    pub flow_lines: FlowLines,
    /// Flows by id.
    pub flows: Array<MapData, Flow>,
    /// Splices by flow id.
    pub splices: SpliceTable,
    /// Ids by name.
    pub registry: HashMap<MapData, RegistryKey, u32>,
    /// Those of IPv6; none of a data plane that is older than they are.
    pub ipv6: Option<Ipv6Maps>,
    /// What is counted; none of a data plane that is older than it is, and of maps that are opened beside others.
    pub counts: Option<CountTable>,
    quotas: Option<Quotas>,
    /// Names that the data plane knows; for changes alone, so none of maps that are opened beside others.
    names: Option<HashMap<MapData, NameKey, u64>>,
    folder: PathBuf,
    limits: Limits,
    rules: LpmTrie<MapData, RuleKey, u32>,
    /// None of a data plane that is older than it is.
    verdicts: Option<PerCpuArray<MapData, Counters>>,
    maglev: Outer<Array<MapData, u32>>,
    /// Whether tables may be written in memory: those of an older data plane may not.
    are_tables_mapped: bool,
    rings: Outer<Array<MapData, u64>>,
    usage: Array<MapData, u32>,
    samples: Samples,
    free_ids: Outer<Queue<MapData, u16>>,
    held: HeldMaps,
}

/// Dropped packets, as the running data plane keeps them.
enum Samples {
    /// The latest one for each network and reason.
    Each(Array<MapData, Sample>),
    /// An older one keeps one for each reason, on each CPU.
    Older(PerCpuArray<MapData, Sample>),
    /// There are none.
    None,
}

impl Maps {
    /// Has the data plane drop what belongs to a network, or not any more.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn stop_network(&mut self, id: u32, is_stopped: bool) -> Result<()> {
        let mut record = self.networks.get(&id, 0)?;
        record.flags = match is_stopped {
            true => record.flags | NETWORK_STOPPED,
            false => record.flags & !NETWORK_STOPPED,
        };
        let written = self.networks.set(id, &record, 0);
        written.with_context(|| format!("stop or open network {id}"))
    }

    /// Opens the maps that are pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If a pin is missing, or a map has another layout.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut maps = Self::open_all(folder, HeldMaps::default())?;
        maps.names = open_names(folder)?;
        Ok(maps)
    }

    fn open_all(folder: &Path, held: HeldMaps) -> Result<Self> {
        let mut maps = Self::open_with(folder, held)?;
        maps.ipv6 = Ipv6Maps::open(folder)?;
        maps.quotas = Quotas::open(folder)?;
        maps.counts = CountTable::open(folder)?;
        Ok(maps)
    }

    /// As [`Self::open_beside`], with those that this leaves out.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub fn open_to_observe(&self, folder: &Path) -> Result<Self> {
        Self::open_all(folder, self.held.clone())
    }

    /// Opens them once more, for another thread: what one of the two holds of maps in maps, both do. But for
    /// quotas and those of IPv6, which are for changes.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub fn open_beside(&self, folder: &Path) -> Result<Self> {
        Self::open_with(folder, self.held.clone())
    }

    fn open_with(folder: &Path, held: HeldMaps) -> Result<Self> {
        let pin = |name: &str| {
            MapData::from_pin(folder.join(name))
                .with_context(|| format!("open the pinned map {name}"))
        };
        let services = pin("SERVICES")?;
        let backends: Array<MapData, Backend> = Map::Array(pin("BACKENDS")?).try_into()?;
        let flows: Array<MapData, Flow> = Map::Array(pin("FLOWS")?).try_into()?;
        let maglev = Outer::open(folder, "MAGLEV", held.clone())?;
        let registry = pin("REGISTRY")?;
        let verdicts = folder.join("VERDICTS").exists();
        let verdicts = verdicts.then(|| pin("VERDICTS")).transpose()?;
        let samples = if folder.join("DROP_SAMPLES").exists() {
            Samples::Each(Map::Array(pin("DROP_SAMPLES")?).try_into()?)
        } else if folder.join("SAMPLES").exists() {
            Samples::Older(Map::PerCpuArray(pin("SAMPLES")?).try_into()?)
        } else {
            Samples::None
        };
        let limits = Limits {
            snat_addresses: u16::try_from((flows.len() - PAGE) / u32::from(FLOWS_PER_ADDRESS))?,
            services: services.info()?.max_entries(),
            backends: backends.len() - 1,
            pools: 0,
            handed_over: MapData::from_pin(folder.join("SPLICES"))?
                .info()?
                .max_entries()
                - 1,
        };
        // An older data plane has one table for each pool: only the names show how many pools there are.
        let room = registry.info()?.max_entries();
        let pools = room.saturating_sub(names(&limits));
        let limits = Limits {
            pools: pools.min(maglev.len() - 1),
            ..limits
        };
        Ok(Self {
            limits,
            network_ids: Map::HashMap(pin("NETWORK_IDS")?).try_into()?,
            networks: Map::Array(pin("NETWORKS")?).try_into()?,
            addresses: Map::HashMap(pin("ADDRESSES")?).try_into()?,
            doors: Doors::open(folder)?,
            services: Map::HashMap(services).try_into()?,
            backends,
            snat_pages: Map::Array(pin("SNAT_PAGES")?).try_into()?,
            snat_ports: SnatPorts::open(folder)?,
            flow_lines: FlowLines::open(folder)?,
            flows,
            splices: SpliceTable::open(folder)?,
            registry: Map::HashMap(registry).try_into()?,
            rules: Map::LpmTrie(pin("RULES")?).try_into()?,
            ipv6: None,
            counts: None,
            quotas: None,
            names: None,
            folder: folder.to_owned(),
            verdicts: verdicts
                .map(|map| Map::PerCpuArray(map).try_into())
                .transpose()?,
            maglev,
            are_tables_mapped: true,
            rings: Outer::open(folder, "RINGS", held.clone())?,
            usage: Map::Array(pin("USAGE")?).try_into()?,
            samples,
            free_ids: Outer::open(folder, "FREE_IDS", held.clone())?,
            held,
        })
    }

    /// Holds all maps in maps: later this process may not open them any more.
    ///
    /// # Errors
    ///
    /// If the kernel refuses one.
    pub fn hold(&self) -> Result<()> {
        self.maglev.hold()?;
        self.rings.hold()?;
        self.free_ids.hold()
    }

    /// Lets go of the maps in maps that another process has replaced. Those are not readable here, and for each that
    /// is looked up something else stands: see [`Self::maglev`], [`Self::ring_places`], [`Self::is_queue_closed`].
    ///
    /// # Errors
    ///
    /// If the kernel refuses a look-up.
    pub fn let_go(&self) -> Result<()> {
        self.maglev.let_go()?;
        self.rings.let_go()?;
        self.free_ids.let_go()
    }

    /// The names that the data plane knows.
    ///
    /// # Errors
    ///
    /// If the map cannot be read.
    pub fn names(&self) -> Result<std::collections::HashMap<NameKey, PoolRoute>> {
        let names = self.names.iter().flat_map(HashMap::iter);
        let routes = names.map(|entry| {
            let (key, route) = entry.context("read SERVER_NAMES")?;
            Ok((key, PoolRoute::from_raw(route)))
        });
        routes.collect()
    }

    /// Sends the clients of a name to a pool.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn set_name(&mut self, key: &NameKey, route: PoolRoute) -> Result<()> {
        Ok(self.name_map()?.insert(key, &route.raw(), 0)?)
    }

    /// Forgets a name.
    ///
    /// # Errors
    ///
    /// As for [`Self::set_name`].
    pub fn remove_name(&mut self, key: &NameKey) -> Result<()> {
        Ok(self.name_map()?.remove(key)?)
    }

    fn name_map(&mut self) -> Result<&mut HashMap<MapData, NameKey, u64>> {
        let names = self.names.as_mut();
        names.context("the running data plane is older and knows no names")
    }

    /// Where its pins are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The limits that the maps were made with.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// How far after a pool's id the number of its second table is; none in an older data plane, which has
    /// room for one of each.
    pub fn second_tables(&self) -> Option<u32> {
        let pools = self.limits.pools;
        (self.maglev.len() > pools.saturating_mul(2)).then_some(pools)
    }

    /// Replaces the Maglev tables of pools: a new inner map for each, then a swap of its slot, so a packet sees the
    /// old table or the new one. When it returns, no packet goes by an old one any more.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a map or its update: some tables may be replaced.
    pub fn set_maglev(&mut self, tables: &[(u32, &[u32])]) -> Result<()> {
        for some in tables.chunks(MAX_TABLES_AT_ONCE) {
            let set = match self.are_tables_mapped {
                true => self.set_tables(some),
                false => Err(anyhow!("tables of an older data plane")),
            };
            if set.is_ok() {
                continue;
            }
            // That takes none that userspace may have in its memory.
            self.are_tables_mapped = false;
            self.set_tables(some).with_context(|| match some {
                [(pool, _)] => format!("set the Maglev table of pool {pool}"),
                _ => format!("set the Maglev tables of {} pools", some.len()),
            })?;
        }
        Ok(())
    }

    fn set_tables(&mut self, tables: &[(u32, &[u32])]) -> Result<()> {
        let inners = tables.iter().map(|(number, ids)| {
            let pool = self.pool_of(*number);
            let values = table_values(ids, self.turns(*number)?, pool)?;
            Ok((*number, table_map(&values, self.are_tables_mapped)?))
        });
        let inners = inners.collect::<Result<Vec<_>>>()?;
        self.maglev.set_all(&inners)
    }

    /// The id of the pool that the table with this number is of.
    fn pool_of(&self, number: u32) -> u32 {
        let second = self.second_tables();
        let first = second.and_then(|pools| number.checked_sub(pools));
        first.filter(|id| *id > 0).unwrap_or(number)
    }

    /// How many turns flows have taken of the table of a pool: its successor goes on, because one that is often replaced
    /// would prefer the backend of its first entry.
    fn turns(&self, pool: u32) -> Result<u32> {
        let Inner::Open(table) = self.maglev.get(pool)? else {
            return Ok(0);
        };
        let turns = table::turns(table.get(&table::SIZE, 0)?);
        // A table of an earlier version has none.
        Ok(match turns < table.len() {
            true => table.get(&turns, 0)?,
            false => 0,
        })
    }

    /// The Maglev table of a pool, or `None` if it never had one. One that another process has made has the entry 0,
    /// the id of no backend: it equals no other table, and is not empty. So does, behind its own, one that an earlier version
    /// has made, which lacks what stands at the end of others.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn maglev(&self, pool: u32) -> Result<Option<Vec<u32>>> {
        Ok(match self.maglev.get(pool)? {
            Inner::None => None,
            Inner::Closed => Some(vec![0]),
            Inner::Open(table) => {
                let entries = read_table(&table)?;
                let entry = |index| {
                    let entry = entries.get(usize::try_from(index).ok()?);
                    entry.copied()
                };
                let size = entry(table::SIZE).unwrap_or_default();
                let ids = (0..size).map(|slot| entry(table::id(slot)));
                let ids: Option<Vec<u32>> = ids.collect();
                let mut ids = ids.with_context(|| {
                    format!(
                        "Maglev table {pool} has {} elements for {size} places",
                        table.len()
                    )
                })?;
                if table.len() <= table::backends(size) {
                    ids.push(0);
                }
                Some(ids)
            }
        })
    }

    /// Makes a ring of flows anew, empty: flows of the old one are in no danger any more, and leave by
    /// their timeouts.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the map or its update.
    pub fn set_ring(&mut self, index: u32, places: u32) -> Result<()> {
        let mut inner = Array::<MapData, u64>::create(half_open::FIRST + places, BPF_F_INNER_MAP)?;
        inner.set(half_open::SIZE, &u64::from(places), 0)?;
        self.rings
            .set(index, &inner)
            .with_context(|| format!("set the ring of flows {index}"))
    }

    /// A ring of flows: size, head and places as in `maps::ring`; `None` if there is none that can be read.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn ring(&self, index: u32) -> Result<Option<Vec<u64>>> {
        Ok(match self.rings.get(index)? {
            Inner::None | Inner::Closed => None,
            Inner::Open(ring) => Some(ring.iter().collect::<Result<_, _>>()?),
        })
    }

    /// How many places a ring of flows has; `None` if there is none, and 0 of one that another process has made.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn ring_places(&self, index: u32) -> Result<Option<u32>> {
        Ok(match self.rings.get(index)? {
            Inner::None => None,
            Inner::Closed => Some(0),
            Inner::Open(ring) => Some(u32::try_from(ring.get(&half_open::SIZE, 0)?)?),
        })
    }

    /// Live flows of a network's clients or a service, by the index that `maps::usage` gives.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn usage(&self, index: u32) -> Result<u32> {
        Ok(self.usage.get(&index, 0)?)
    }

    /// The quotas.
    ///
    /// # Errors
    ///
    /// If the data plane is older and has none.
    pub fn quotas(&self) -> Result<&Quotas> {
        let quotas = self.quotas.as_ref();
        quotas.context("the running data plane is older and has no quotas; `lb run` makes them")
    }

    /// The latest packet of a network that was dropped for the reason with this number, if one is kept. An older data
    /// plane keeps the latest one of all networks.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn sample(&self, network: u16, reason: u32) -> Result<Option<Sample>> {
        let found = match &self.samples {
            Samples::Each(samples) => {
                Some(samples.get(&drop_sample::index(network.into(), reason), 0)?)
            }
            Samples::Older(samples) => {
                let now = coarse_now()?;
                let each = samples.get(&reason, 0)?;
                let taken = each.iter().filter(|sample| sample.seen != 0);
                let last = taken.min_by_key(|sample| now.wrapping_sub(sample.seen));
                last.copied().filter(|sample| sample.network == network)
            }
            Samples::None => None,
        };
        Ok(found.filter(|sample| sample.seen != 0))
    }

    /// The queue of free ids of a SNAT address, or `None` if the slot has none that can be used.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn free_ids(&self, slot: u16) -> Result<Option<FreeIds>> {
        Ok(match self.free_ids.get(slot.into())? {
            Inner::None | Inner::Closed => None,
            Inner::Open(queue) => Some(FreeIds::new(slot, queue)),
        })
    }

    /// Whether the queue of free ids of a SNAT address is one that another process has made.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn is_queue_closed(&self, slot: u32) -> Result<bool> {
        Ok(matches!(self.free_ids.get(slot)?, Inner::Closed))
    }

    /// Whether a SNAT address has a queue of free ids, whichever process has made it.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn has_queue(&self, slot: u16) -> Result<bool> {
        Ok(!matches!(self.free_ids.get(slot.into())?, Inner::None))
    }

    /// Takes the queue of free ids from a SNAT address, if it has one: what ends there is free for no new flow.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn remove_free_ids(&mut self, slot: u16) -> Result<()> {
        self.free_ids.remove(slot.into())
    }

    /// Gives a SNAT address a queue that has room for so many ids, empty.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the map or the update.
    pub fn set_free_ids(&mut self, slot: u32, size: u32) -> Result<()> {
        let queue = Queue::<MapData, u16>::create(size, 0)?;
        self.free_ids
            .set(slot, &queue)
            .with_context(|| format!("set the queue of free ids of SNAT address {slot}"))
    }

    /// The maps of IPv6, to be written.
    ///
    /// # Errors
    ///
    /// If the data plane is older and has none.
    pub fn ipv6(&mut self) -> Result<&mut Ipv6Maps> {
        let maps = self.ipv6.as_mut();
        maps.context("the running data plane is older and has no maps of IPv6; `lb run` makes them")
    }

    /// Every rule set by number: its prefixes, and the rule of each.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the look-up.
    pub fn rules(&self) -> Result<BTreeMap<u32, BTreeMap<IpNet, u32>>> {
        let mut sets: BTreeMap<u32, BTreeMap<IpNet, u32>> = BTreeMap::new();
        for entry in self.rules.iter() {
            let (key, verdict) = entry.context("read the rule sets")?;
            let RuleKey { set, address } = key.data();
            let length = u8::try_from(key.prefix_len().saturating_sub(SET_BITS))?;
            let prefix = Ipv4Net::new(Ipv4Addr::from(address), length)?;
            sets.entry(set).or_default().insert(prefix.into(), verdict);
        }
        if let Some(maps) = &self.ipv6 {
            maps.add_rules(&mut sets)?;
        }
        Ok(sets)
    }

    /// Adds prefixes to a rule set.
    ///
    /// # Errors
    ///
    /// If the map is full.
    pub fn write_rules(&mut self, set: u32, rules: &BTreeMap<IpNet, u32>) -> Result<()> {
        for (prefix, verdict) in rules {
            let inserted = match prefix {
                IpNet::V4(prefix) => self.rules.insert(&rule_key(set, *prefix), verdict, 0),
                IpNet::V6(prefix) => self.ipv6()?.write_rule(set, *prefix, *verdict),
            };
            inserted.with_context(|| format!("add {prefix} to a rule set"))?;
        }
        Ok(())
    }

    /// Removes prefixes from a rule set.
    ///
    /// # Errors
    ///
    /// If one is not there.
    pub fn clear_rules(&mut self, set: u32, prefixes: &[IpNet]) -> Result<()> {
        for prefix in prefixes {
            let removed = match prefix {
                IpNet::V4(prefix) => self.rules.remove(&rule_key(set, *prefix)),
                IpNet::V6(prefix) => self.ipv6()?.clear_rule(set, *prefix),
            };
            removed.with_context(|| format!("remove {prefix} from a rule set"))?;
        }
        Ok(())
    }

    /// Sets all counters of a network to zero.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a write.
    pub fn clear_counters(&mut self, network: u16) -> Result<()> {
        let cpus = nr_cpus().map_err(|(file, error)| anyhow!("read {file}: {error}"))?;
        let verdicts = self.verdicts.as_mut().context(OLDER)?;
        for hook in Hook::ALL {
            let zeros = vec![[0; SLOTS as usize]; cpus.get() as usize];
            let zeros = PerCpuValues::try_from(zeros)?;
            verdicts.set(counters_index(hook, network), zeros, 0)?;
        }
        Ok(())
    }

    /// The counters of a hook and a network by slot, summed over the CPUs.
    ///
    /// # Errors
    ///
    /// If the data plane is older and has none, or the kernel refuses the look-up.
    pub fn counters(&self, hook: Hook, network: u16) -> Result<Counters> {
        sum(self.verdicts.as_ref().context(OLDER)?, hook, network)
    }

    /// What a thread that only reads goes by.
    ///
    /// # Errors
    ///
    /// If a pin is missing, or the data plane is older.
    pub fn readings(&self, folder: &Path) -> Result<Readings> {
        Readings::open(folder, self.held.clone())
    }
}

/// The counters of a hook and a network by slot, summed over the CPUs.
pub(super) fn sum(
    verdicts: &PerCpuArray<MapData, Counters>,
    hook: Hook,
    network: u16,
) -> Result<Counters> {
    let mut sums = [0; SLOTS as usize];
    for counters in verdicts.get(&counters_index(hook, network), 0)?.iter() {
        for (sum, counter) in sums.iter_mut().zip(counters) {
            *sum += counter;
        }
    }
    Ok(sums)
}

/// A Maglev table as an inner map, as [`table`] has it.
/// The values of a table, see [`table`].
fn table_values(ids: &[u32], turns: u32, pool: u32) -> Result<Vec<u32>> {
    let size = u32::try_from(ids.len()).context("a Maglev table has less than 2^32 entries")?;
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    let same = sorted.chunk_by(|a, b| a == b);
    let shares = same.filter_map(|same| Some((*same.first()?, u32::try_from(same.len()).ok()?)));
    let shares: Vec<(u32, u32)> = shares.collect();
    let share = |id: &u32| {
        let place = shares.binary_search_by_key(id, |(id, _)| *id).ok();
        place
            .and_then(|place| shares.get(place))
            .map_or(0, |(_, share)| *share)
    };
    let backends = u32::try_from(shares.len()).context("no more backends than entries")?;
    let values = iter::once(size)
        .chain(ids.iter().copied())
        .chain(iter::once(turns))
        .chain(ids.iter().map(share))
        .chain([pool, backends])
        .chain(shares.iter().map(|(id, _)| *id));
    Ok(values.collect())
}

/// An inner map with these values. In memory it takes a hundredth of the time.
fn table_map(values: &[u32], is_mapped: bool) -> Result<Array<MapData, u32>> {
    let count = u32::try_from(values.len()).context("a table has less than 2^32 values")?;
    if !is_mapped {
        let inner = Array::create(count, BPF_F_INNER_MAP)?;
        batch::update(&inner, &(0..count).collect::<Vec<_>>(), values)?;
        return Ok(inner);
    }
    let inner = Array::create(count, BPF_F_INNER_MAP | BPF_F_MMAPABLE)?;
    // The kernel has values of four bytes eight apart.
    let memory = MappedArray::<[u32; 2]>::of_map(&inner, count)?;
    for (index, value) in (0..).zip(values) {
        memory.write(index, [*value, 0]);
    }
    Ok(inner)
}

/// All values of a table, which may be of an older data plane.
fn read_table(table: &Array<MapData, u32>) -> Result<Vec<u32>> {
    let Ok(memory) = MappedArray::<[u32; 2]>::of_map(table, table.len()) else {
        return batch::values(table);
    };
    let values = (0..table.len()).map_while(|index| memory.read(index));
    Ok(values.map(|[value, _]| value).collect())
}

fn rule_key(set: u32, prefix: Ipv4Net) -> Key<RuleKey> {
    let address = prefix.network().into();
    Key::new(
        SET_BITS + u32::from(prefix.prefix_len()),
        RuleKey { set, address },
    )
}
/// None of a data plane that is older than it is.
fn open_names(folder: &Path) -> Result<Option<HashMap<MapData, NameKey, u64>>> {
    let pin = folder.join("SERVER_NAMES");
    if !pin.exists() {
        return Ok(None);
    }
    let map = MapData::from_pin(pin).context("open the pinned map SERVER_NAMES")?;
    Ok(Some(Map::HashMap(map).try_into()?))
}
