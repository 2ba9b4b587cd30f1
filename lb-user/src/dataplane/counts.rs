//! What is counted of networks, backends and services, in this process's memory: the data plane adds in the columns of
//! its CPUs, this process in its own.
#![expect(
    unsafe_code,
    reason = "the numbers are shared with the kernel's programs"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Debug, Formatter},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use aya::{
    maps::{Array, ArrayOfMaps, Map, MapData, MapError},
    util::nr_cpus,
};
use lb_common::{
    conntrack::FlowState,
    maps::{
        counts::{
            BLOCKS, BYTES_REPLY, BYTES_REQUEST, FAILED, FLOWS, NUMBERS, PACKETS_REPLY,
            PACKETS_REQUEST, Record, SERVICE_RECORDS, backend, block, entries, network, place,
            place_of_process, service,
        },
        flow::Flow,
    },
    traffic::Traffic,
};
use memmap2::{MmapOptions, MmapRaw};

use super::{
    flows::FlowOwners,
    map_of_maps::{descriptor, pinned, put_all},
};

const NAME: &str = "COUNTS";
/// Kernel flags of a block: its size may differ from its template's (Linux 5.10), and userspace maps it.
const BLOCK_FLAGS: u32 = 1 << 12 | 1 << 10;
/// How many blocks are made before they are put in their places: each is a descriptor meanwhile.
const MAX_BLOCKS_AT_ONCE: usize = 256;
/// Bytes of a record.
const RECORD: usize = size_of::<Record>();

type Block = Array<MapData, Record>;

/// The blocks of `COUNTS`. Clones are of the same, and so is what is opened again of the same map.
#[derive(Clone, Debug)]
pub struct CountTable(Arc<Blocks>);

struct Blocks {
    folder: PathBuf,
    cpus: u32,
    mapped: RwLock<BTreeMap<u32, MappedBlock>>,
}

struct MappedBlock {
    id: u32,
    memory: MmapRaw,
}

impl Debug for Blocks {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// What this process has opened, by the kernel's id of the outer map.
static OPENED: Mutex<BTreeMap<u32, Weak<Blocks>>> = Mutex::new(BTreeMap::new());

/// The records that a flow is counted in.
pub const fn records(owners: FlowOwners) -> [u32; 3] {
    [
        network(owners.network),
        service(owners.service),
        backend(owners.backend),
    ]
}

/// What an entry with this word adds to the records of its owners.
pub fn of_entry(word: FlowState, flow: &Flow) -> Record {
    let (request, reply) = (flow.request(), flow.reply());
    let is_unanswered = Traffic::from_raw(flow.traffic_reply).is_unanswered();
    let is_over = word.claimable();
    let mut record = Record::default();
    if request.packets == 0 && reply.packets == 0 {
        // It is over since before an upgrade from a version that counted bytes alone; the data plane does the same.
        return record;
    }
    for (number, amount) in [
        (BYTES_REQUEST, request.bytes),
        (PACKETS_REQUEST, request.packets),
        (BYTES_REPLY, reply.bytes),
        (PACKETS_REPLY, reply.packets),
        // A connection that was handed over has been counted when it began.
        (FLOWS, u64::from(!word.is_spliced() && request.packets > 0)),
        (
            FAILED,
            u64::from(is_over && is_unanswered && !word.is_spliced()),
        ),
    ] {
        if let Some(place) = record.get_mut(number) {
            *place = amount;
        }
    }
    record
}

impl CountTable {
    /// Maps the blocks of the map that is pinned in `folder`; none of a data plane that is older than it is.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to open or map one.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        if !folder.join(NAME).exists() {
            return Ok(None);
        }
        let outer = pinned(folder, NAME)?;
        let id = outer.info()?.id();
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|_, blocks| blocks.strong_count() > 0);
        if let Some(blocks) = opened.get(&id).and_then(Weak::upgrade) {
            return Ok(Some(Self(blocks)));
        }
        let cpus = nr_cpus().map_err(|(what, error)| {
            anyhow::Error::new(error).context(format!("count the CPUs: {what}"))
        })?;
        let blocks = Arc::new(Blocks {
            folder: folder.to_owned(),
            cpus: cpus.get(),
            mapped: RwLock::default(),
        });
        blocks.map_all()?;
        opened.insert(id, Arc::downgrade(&blocks));
        Ok(Some(Self(blocks)))
    }

    /// Makes the blocks of these records that there are not.
    ///
    /// # Errors
    ///
    /// If the kernel has no memory for one, or refuses it.
    pub fn make(&self, records: impl IntoIterator<Item = u32>) -> Result<()> {
        let wanted: BTreeSet<u32> = records.into_iter().map(block).collect();
        let mut outer = OuterCounts::open(&self.0.folder)?;
        let mut missing = Vec::new();
        for block in wanted {
            let id = outer.id(block)?;
            if id.is_some() && self.0.id(block) == id {
                continue;
            }
            match id.map(|_| outer.maps.get(&block, 0)) {
                Some(Ok(found)) => self.0.map(block, &found)?,
                // Another process has made it, and this one may not open it.
                Some(Err(_)) | None => missing.push(block),
            }
        }
        let mut missing = missing.chunks(MAX_BLOCKS_AT_ONCE);
        missing.try_for_each(|some| self.make_blocks(&mut outer, some))
    }

    fn make_blocks(&self, outer: &mut OuterCounts, blocks: &[u32]) -> Result<()> {
        let make = |block: &u32| {
            let made = Block::create(entries(self.0.cpus), BLOCK_FLAGS);
            let made = made.with_context(|| format!("make block {block} of the map {NAME}"))?;
            self.0.map(*block, &made)?;
            Ok((*block, made))
        };
        let made = blocks.iter().map(make).collect::<Result<Vec<_>>>()?;
        put_all(&mut outer.maps, &outer.ids, &made)
            .with_context(|| format!("set {} blocks of the map {NAME}", made.len()))
    }

    /// The numbers of a record as they are now, of all that write it; zeros where it has no block. Each of them is no
    /// less than it was before, but for [`Self::clear`].
    pub fn get(&self, record: u32) -> Record {
        let mapped = self.0.mapped.read().unwrap_or_else(PoisonError::into_inner);
        let mut sum = Record::default();
        let Some(MappedBlock { memory, .. }) = mapped.get(&block(record)) else {
            return sum;
        };
        let of_cpus = (0..self.0.cpus).map(|cpu| place(record, cpu));
        for place in of_cpus.chain([place_of_process(record)]) {
            for (number, sum) in sum.iter_mut().enumerate() {
                let word = word(memory, place, number);
                let found = word.map_or(0, |word| word.load(Ordering::Relaxed));
                *sum = sum.wrapping_add(found);
            }
        }
        sum
    }

    /// Adds to a number of a record, where it has a block.
    pub fn add(&self, record: u32, number: usize, amount: u64) {
        let mapped = self.0.mapped.read().unwrap_or_else(PoisonError::into_inner);
        let block = mapped.get(&block(record));
        let word = block.and_then(|block| word(&block.memory, place_of_process(record), number));
        if let Some(word) = word {
            word.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// Adds to all numbers of a record.
    pub fn add_all(&self, record: u32, amounts: &Record) {
        for (number, amount) in amounts
            .iter()
            .enumerate()
            .filter(|(_, amount)| **amount != 0)
        {
            self.add(record, number, *amount);
        }
    }

    /// Hands in what stands in the entry of a flow that is over, when no other one will: it had this word.
    pub fn hand_in(&self, word: FlowState, flow: &Flow) {
        let amounts = of_entry(word, flow);
        for record in records(FlowOwners::from(flow)) {
            self.add_all(record, &amounts);
        }
    }

    /// Has a record begin with zeros: no flow counts for it any more.
    pub fn clear(&self, record: u32) {
        for (number, amount) in self.get(record).iter().enumerate() {
            self.add(record, number, amount.wrapping_neg());
        }
    }

    /// [`Self::clear`] for all records of a service.
    pub fn clear_service(&self, id: u16) {
        let first = service(id);
        (first..first + SERVICE_RECORDS).for_each(|record| self.clear(record));
    }
}

impl Blocks {
    /// Maps those that other processes have made.
    fn map_all(&self) -> Result<()> {
        let outer = OuterCounts::open(&self.folder)?;
        for block in 0..BLOCKS.min(outer.ids.len()) {
            if outer.id(block)?.is_some() {
                let found = outer.maps.get(&block, 0);
                let found =
                    found.with_context(|| format!("open block {block} of the map {NAME}"))?;
                self.map(block, &found)?;
            }
        }
        Ok(())
    }

    fn map(&self, block: u32, array: &Block) -> Result<()> {
        let bytes = usize::try_from(entries(self.cpus))? * RECORD;
        let descriptor = descriptor(array)?;
        let memory = MmapOptions::new()
            .len(bytes)
            .map_raw(&descriptor.as_fd())
            .with_context(|| format!("map block {block} of the map {NAME} into memory"))?;
        let id = MapData::from_fd(descriptor)?.info()?.id();
        let mut mapped = self.mapped.write().unwrap_or_else(PoisonError::into_inner);
        mapped.insert(block, MappedBlock { id, memory });
        Ok(())
    }

    /// The kernel's id of a block that is mapped.
    fn id(&self, block: u32) -> Option<u32> {
        let mapped = self.mapped.read().unwrap_or_else(PoisonError::into_inner);
        Some(mapped.get(&block)?.id)
    }
}

/// The outer map.
struct OuterCounts {
    maps: ArrayOfMaps<MapData, Block>,
    /// The same map, as the kernel shows it: ids of maps.
    ids: Array<MapData, u32>,
}

impl OuterCounts {
    fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            maps: Map::ArrayOfMaps(pinned(folder, NAME)?).try_into()?,
            ids: Map::Array(pinned(folder, NAME)?).try_into()?,
        })
    }

    /// The kernel's id of a block, if there is one.
    fn id(&self, block: u32) -> Result<Option<u32>> {
        match self.ids.get(&block, 0) {
            Ok(id) => Ok((id != 0).then_some(id)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("look up block {block} of {NAME}")),
        }
    }
}

/// A number at a place of a block.
fn word(memory: &MmapRaw, place: u32, number: usize) -> Option<&AtomicU64> {
    let record = usize::try_from(place).ok()?.checked_mul(RECORD)?;
    let at = record.checked_add(number * size_of::<u64>())?;
    if number >= NUMBERS || at >= memory.len() {
        return None;
    }
    let word = memory.as_mut_ptr().wrapping_add(at);
    // SAFETY: the word is inside the mapping, which lives as long as `memory`, and aligned to eight bytes; the kernel's
    // side writes it whole.
    Some(unsafe { AtomicU64::from_ptr(word.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with the blocks of these records that no kernel knows, of a machine with two CPUs.
    fn table(records: &[u32]) -> CountTable {
        let cpus = 2;
        let bytes = usize::try_from(entries(cpus)).unwrap() * RECORD;
        let block_of = |record: &u32| {
            let memory = MmapRaw::from(memmap2::MmapMut::map_anon(bytes).unwrap());
            (block(*record), MappedBlock { id: 0, memory })
        };
        CountTable(Arc::new(Blocks {
            folder: PathBuf::new(),
            cpus,
            mapped: RwLock::new(records.iter().map(block_of).collect()),
        }))
    }

    #[test]
    fn a_record_is_the_sum_of_its_columns_and_can_begin_anew() {
        let record = network(3);
        let table = table(&[record]);
        {
            let mapped = table.0.mapped.read().unwrap();
            for cpu in [0, 1] {
                let word = word(&mapped[&0].memory, place(record, cpu), FLOWS).unwrap();
                word.store(10 + u64::from(cpu), Ordering::Relaxed);
            }
        }
        table.add(record, FLOWS, 100);
        let mut wanted = Record::default();
        wanted[FLOWS] = 121;
        assert_eq!(table.get(record), wanted);
        assert_eq!(table.get(network(4)), Record::default());
        table.clear(record);
        assert_eq!(table.get(record), Record::default());
        table.add(record, FLOWS, 1);
        assert_eq!(table.get(record)[FLOWS], 1);
        table.add(backend(7), FLOWS, 1);
        table.add(record, NUMBERS, 1);
        assert_eq!(table.get(backend(7)), Record::default(), "no block");
    }

    /// What an older data plane has left of a flow that is over, and of one that goes on.
    #[test]
    fn bytes_without_a_frame_are_of_an_older_data_plane() {
        let old = Flow {
            traffic_request: 5_000,
            traffic_reply: 70_000,
            ..Flow::default()
        };
        let word = FlowState::default().claim(false).publish();
        assert_eq!(of_entry(word.close(), &old), Record::default());
        let goes_on = Flow {
            traffic_request: Traffic::from_raw(5_000).plus(66).raw(),
            ..old
        };
        let record = of_entry(word, &goes_on);
        assert_eq!((record[BYTES_REQUEST], record[PACKETS_REQUEST]), (5_066, 1));
        assert_eq!((record[FLOWS], record[BYTES_REPLY]), (1, 70_000));
    }

    #[test]
    fn the_entry_of_a_flow_is_handed_in_to_all_of_its_owners() {
        let flow = Flow {
            network: 3,
            service: 9,
            backend_id: 7,
            traffic_request: Traffic::one(60).plus(1514).raw(),
            traffic_reply: Traffic::unanswered_since(1).raw(),
            ..Flow::default()
        };
        let owners = records(FlowOwners::from(&flow));
        let table = table(&owners);
        let live = FlowState::default().claim(false).publish();
        assert_eq!(of_entry(live, &flow)[FAILED], 0, "it may be answered yet");
        table.hand_in(live.close(), &flow);
        let mut wanted = Record::default();
        wanted[FLOWS] = 1;
        wanted[FAILED] = 1;
        wanted[BYTES_REQUEST] = 1574;
        wanted[PACKETS_REQUEST] = 2;
        for record in owners {
            assert_eq!(table.get(record), wanted);
        }
        table.clear_service(9);
        assert_eq!(table.get(service(9)), Record::default());
    }
}
