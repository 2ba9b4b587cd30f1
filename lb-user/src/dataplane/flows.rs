//! The flow table in this process's memory: read and changed without a syscall per flow, beside the
//! data plane, by the same rules. And the numbers of live flows, which are kept in the same way.
#![expect(
    unsafe_code,
    reason = "the entries are shared with the kernel's programs"
)]

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context as _, Result};
use aya::maps::MapData;
use lb_common::{
    addr::Be16,
    conntrack::FlowState,
    maps::{
        flow::{Flow, TIME_SHIFT},
        usage,
    },
};
use memmap2::{MmapOptions, MmapRaw};
use nix::time::{ClockId, clock_gettime};

use super::quotas::Quotas;

/// What an expiry looks at: one cache line, and most often one word of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// The word. The other fields are this flow's if a swap from this word succeeds.
    pub word: FlowState,
    /// When the last packet came.
    pub last_seen: u32,
    /// Id of its client's network.
    pub network: u16,
    /// Id of its service.
    pub service: u16,
    /// Id of its backend.
    pub backend_id: u32,
}

/// Writes fields of a flow into its entry, one after the other, with a pause behind each.
macro_rules! write_fields {
    ($entry:ident, $flow:ident, $pause:ident: $($field:ident)+) => {$(
        // SAFETY: `entry` points to a whole, aligned entry inside the mapping.
        let field = unsafe { &raw mut (*$entry).$field };
        // SAFETY: as above; a racing reader finds the generation changed, or the field is one of which racing stores are what the
        // layout allows.
        unsafe { field.write_volatile($flow.$field) };
        $pause();
    )+};
}

/// The mapped flow table.
#[derive(Debug)]
pub struct FlowTable {
    memory: Arc<MmapRaw>,
}

impl FlowTable {
    /// Maps the pinned map in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        let memory = map(folder, "FLOWS", size_of::<Flow>())?;
        Ok(Self { memory })
    }

    /// The word of an entry as it is now; `None` beyond the end of the table.
    pub fn word(&self, id: u32) -> Option<FlowState> {
        self.atomic_word(id)
            .map(|word| FlowState::from_raw(word.load(Ordering::Acquire)))
    }

    /// A look at an entry that may change meanwhile; see [`Glance::word`].
    pub fn glance(&self, id: u32) -> Option<Glance> {
        let word = self.word(id)?;
        let entry = self.entry(id)?;
        macro_rules! read {
            ($field:ident) => {{
                // SAFETY: `entry` points to a whole, aligned entry inside the mapping.
                let field = unsafe { &raw const (*entry).$field };
                // SAFETY: as above; the field is a plain integer, of which any bits are valid.
                unsafe { field.read_volatile() }
            }};
        }
        Some(Glance {
            word,
            last_seen: read!(last_seen),
            network: read!(network),
            service: read!(service),
            backend_id: read!(backend_id).into(),
        })
    }

    /// A flow's fields, if it is the same flow before and after they are read, and its fields were not still
    /// being written.
    pub fn flow(&self, id: u32) -> Option<(FlowState, Flow)> {
        let before = self.word(id).filter(|word| word.has_flow())?;
        let entry = self.entry(id)?;
        // SAFETY: `entry` is inside the mapping and aligned; `Flow` is plain integers, so a torn
        // read is a valid value, and the second look at the generation discards it.
        let flow = unsafe { entry.read_volatile() };
        std::sync::atomic::fence(Ordering::Acquire);
        let after = self.word(id)?;
        (before.generation() == after.generation()).then_some((after, flow))
    }

    /// How many entries there are.
    pub fn entries(&self) -> u32 {
        u32::try_from(self.memory.len() / size_of::<Flow>()).unwrap_or(u32::MAX)
    }

    /// As [`Self::flow`], if the entry has something of a flow that is to be counted: no other has taken it, and no socket
    /// has it.
    pub fn counted(&self, id: u32) -> Option<(FlowState, Flow)> {
        let word = self.word(id)?;
        if !word.has_flow() || word.is_local() {
            return None;
        }
        self.flow(id)
    }

    /// The fields of an entry whose word is one of `words` before and after they are read; for a caller that
    /// has ended the flow and not put its id back, so that no other flow is written there.
    pub fn fields(&self, id: u32, words: [FlowState; 2]) -> Option<Flow> {
        self.word(id).filter(|word| words.contains(word))?;
        let entry = self.entry(id)?;
        // SAFETY: as in `flow`; the second look at the word discards what is another flow's.
        let flow = unsafe { entry.read_volatile() };
        std::sync::atomic::fence(Ordering::Acquire);
        self.word(id).filter(|word| words.contains(word))?;
        Some(flow)
    }

    /// Changes an entry's word if it still is `old`.
    pub fn swap(&self, id: u32, old: FlowState, new: FlowState) -> bool {
        self.atomic_word(id).is_some_and(|word| {
            let (old, new) = (old.raw(), new.raw());
            word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    /// Writes the fields of an entry that this process has claimed, for a socket or a replica: no program and no other thread
    /// uses them meanwhile.
    pub fn fill(&self, id: u32, flow: &Flow) {
        self.fill_slowly(id, flow, || {});
    }

    fn fill_slowly(&self, id: u32, flow: &Flow, mut pause: impl FnMut()) {
        let Some(entry) = self.entry(id) else {
            return;
        };
        let pause = &mut pause;
        write_fields!(entry, flow, pause: client vip client_port vip_port backend backend_port network);
        write_fields!(entry, flow, pause: backend_id service client_mac last_seen ack_request ack_reply);
        write_fields!(entry, flow, pause: traffic_request traffic_reply);
    }

    /// Writes what may be newer of a flow, whose tuple is there: its client's station, its numbers and when it was seen; and has its
    /// traffic begin with nothing.
    pub fn renew(&self, id: u32, flow: &Flow) {
        let Some(entry) = self.entry(id) else {
            return;
        };
        let pause = &mut || {};
        write_fields!(entry, flow, pause: client_mac last_seen ack_request ack_reply);
        write_fields!(entry, flow, pause: traffic_request traffic_reply);
    }

    /// Which SNAT port the flows of an id have.
    pub fn port(&self, id: u32) -> Option<Be16> {
        let entry = self.entry(id)?;
        // SAFETY: `entry` points to a whole, aligned entry inside the mapping.
        let field = unsafe { &raw const (*entry).snat_port };
        // SAFETY: as above; any bits are valid for the field.
        Some(unsafe { field.read_volatile() })
    }

    /// Writes which SNAT port the flows of an id have; none has it yet.
    pub fn set_port(&self, id: u32, port: u16) {
        if let Some(entry) = self.entry(id) {
            // SAFETY: `entry` points to a whole, aligned entry inside the mapping.
            let field = unsafe { &raw mut (*entry).snat_port };
            // SAFETY: as above; the data plane only reads the field, and any bits are valid for it.
            unsafe { field.write_volatile(Be16::new(port)) }
        }
    }

    /// Notes that an entry was in use just now.
    pub fn touch(&self, id: u32, now: u32) {
        if let Some(entry) = self.entry(id) {
            // SAFETY: `entry` points to a whole, aligned entry inside the mapping.
            let field = unsafe { &raw mut (*entry).last_seen };
            // SAFETY: as above; racing stores of a plain integer are what the layout allows.
            unsafe { field.write_volatile(now) }
        }
    }

    fn atomic_word(&self, id: u32) -> Option<&AtomicU32> {
        let entry = self.entry(id)?;
        // SAFETY: the word is the entry's first field, aligned to 64 bytes in a mapping that lives
        // as long as `self`; the kernel's side changes it only by atomic operations.
        Some(unsafe { AtomicU32::from_ptr(entry.cast()) })
    }

    /// Pointer to an entry inside the mapping.
    fn entry(&self, id: u32) -> Option<*mut Flow> {
        let offset = usize::try_from(id).ok()?.checked_mul(size_of::<Flow>())?;
        let inside = offset < self.memory.len();
        inside.then(|| self.memory.as_mut_ptr().wrapping_add(offset).cast())
    }
}

/// The data plane's coarse time now, in the unit of `Flow::last_seen`.
///
/// # Errors
///
/// If the clock cannot be read.
pub fn coarse_now() -> Result<u32> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).context("read the monotonic clock")?;
    let ns = u64::try_from(now.tv_sec())? * 1_000_000_000 + u64::try_from(now.tv_nsec())?;
    Ok(u32::try_from(ns >> TIME_SHIFT & u64::from(u32::MAX))?)
}

/// Seconds of the monotonic clock.
#[must_use]
pub fn monotonic_seconds() -> u32 {
    u32::try_from(monotonic_us() / 1_000_000).unwrap_or(u32::MAX)
}

/// The monotonic clock now, in microseconds; it can always be read.
pub fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC);
    let us = now.ok().and_then(|now| {
        let seconds = u64::try_from(now.tv_sec()).ok()?;
        Some(seconds * 1_000_000 + u64::try_from(now.tv_nsec()).ok()? / 1000)
    });
    us.unwrap_or_default()
}

/// The mapped numbers of live flows, by the indexes of [`lb_common::maps::usage`], those of backends, and those of
/// quotas.
#[derive(Debug)]
pub struct UsageTable {
    owners: MappedCounts,
    backends: MappedCounts,
    quotas: Quotas,
}

/// An array of mapped counts.
#[derive(Debug)]
pub struct MappedCounts(Arc<MmapRaw>);

/// Bytes from one value of a mapped array to the next: the kernel rounds a value's size up to eight.
const USAGE_STRIDE: usize = 8;

impl UsageTable {
    /// Maps the pinned map in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        let quotas = Quotas::open(folder)?;
        let counts = |name| map(folder, name, USAGE_STRIDE).map(MappedCounts);
        Ok(Self {
            owners: counts("USAGE")?,
            backends: counts("BACKEND_FLOWS")?,
            quotas: quotas.context("the running data plane is older and has no quotas")?,
        })
    }

    /// The quotas beside them.
    pub const fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Those of networks and services.
    pub const fn owners(&self) -> &MappedCounts {
        &self.owners
    }

    /// Those of backends, by their ids.
    pub const fn backends(&self) -> &MappedCounts {
        &self.backends
    }

    /// Adds to what the network, the service, the backend and the quota of a flow have in full use, as `lb_count` in
    /// the data plane does.
    pub fn count(&self, id: u32, flow: &FlowOwners, amount: i32) {
        self.owners.add(usage::network(flow.network), amount);
        self.owners.add(usage::service(flow.service), amount);
        self.backends.add(flow.backend, amount);
        self.quotas.add(self.quotas.index(flow.network, id), amount);
    }
}

/// Whose count a flow is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowOwners {
    /// The id of its client's network.
    pub network: u16,
    /// The id of its service.
    pub service: u16,
    /// The id of its backend.
    pub backend: u32,
}

impl From<&Flow> for FlowOwners {
    fn from(flow: &Flow) -> Self {
        Self {
            network: flow.network,
            service: flow.service,
            backend: flow.backend_id.into(),
        }
    }
}

impl MappedCounts {
    /// How many values there are.
    pub fn len(&self) -> usize {
        self.0.len() / USAGE_STRIDE
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A value as it is now; `None` beyond the end.
    pub fn get(&self, index: u32) -> Option<u32> {
        Some(self.value(index)?.load(Ordering::Relaxed))
    }

    /// Adds to a value what may be negative, as the data plane does: it wraps, and nothing that
    /// another CPU adds meanwhile is lost.
    pub fn add(&self, index: u32, amount: i32) {
        if let Some(value) = self.value(index) {
            value.fetch_add(amount.cast_unsigned(), Ordering::Relaxed);
        }
    }

    fn value(&self, index: u32) -> Option<&AtomicU32> {
        let offset = usize::try_from(index).ok()?.checked_mul(USAGE_STRIDE)?;
        if offset >= self.0.len() {
            return None;
        }
        let value = self.0.as_mut_ptr().wrapping_add(offset);
        // SAFETY: the value is inside the mapping, which lives as long as `self`, and aligned to
        // eight bytes; the kernel's side changes it only by atomic operations.
        Some(unsafe { AtomicU32::from_ptr(value.cast()) })
    }
}

/// Mappings by the ids of their maps, as long as any table uses them.
static MAPPED: Mutex<BTreeMap<u32, Weak<MmapRaw>>> = Mutex::new(BTreeMap::new());

/// Maps the pinned array `name` in `folder`, whose values take `bytes` each. All tables of this process that are open
/// share one mapping: its pages count as memory of the process each time.
pub(super) fn map(folder: &Path, name: &str, bytes: usize) -> Result<Arc<MmapRaw>> {
    let pinned = MapData::from_pin(folder.join(name));
    let pinned = pinned.with_context(|| format!("open the pinned map {name}"))?;
    let info = pinned.info()?;
    let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
    mapped.retain(|_, memory| memory.strong_count() > 0);
    if let Some(memory) = mapped.get(&info.id()).and_then(Weak::upgrade) {
        return Ok(memory);
    }
    let entries = usize::try_from(info.max_entries())?;
    let memory = MmapOptions::new()
        .len(entries * bytes)
        .map_raw(&pinned.fd().as_fd())
        .with_context(|| format!("map {name} into memory"))?;
    let memory = Arc::new(memory);
    mapped.insert(info.id(), Arc::downgrade(&memory));
    Ok(memory)
}

/// Tables in memory that no kernel knows, and what the data plane does to them.
#[cfg(test)]
pub(crate) mod twin {
    use super::*;

    impl FlowTable {
        pub(crate) fn anonymous(entries: u32) -> Self {
            let length = usize::try_from(entries).unwrap() * size_of::<Flow>();
            Self {
                memory: memory(length),
            }
        }

        /// Writes a whole entry, its word included.
        pub(crate) fn put(&self, id: u32, flow: &Flow) {
            let entry = self.entry(id).unwrap();
            // SAFETY: `entry` points to a whole, aligned entry inside the mapping.
            unsafe { entry.write_volatile(*flow) }
        }

        /// Writes the fields of a claimed entry one after the other, with a `pause` between them.
        pub(crate) fn fill_with(&self, id: u32, flow: &Flow, pause: impl FnMut()) {
            self.fill_slowly(id, flow, pause);
        }
    }

    impl UsageTable {
        /// With as many values of networks and services as of backends.
        pub(crate) fn anonymous(values: u32) -> Self {
            let length = usize::try_from(values).unwrap() * USAGE_STRIDE;
            Self {
                owners: MappedCounts(memory(length)),
                backends: MappedCounts(memory(length)),
                quotas: Quotas::anonymous(),
            }
        }
    }

    pub(in crate::dataplane) fn memory(length: usize) -> Arc<MmapRaw> {
        Arc::new(MmapOptions::new().len(length).map_anon().unwrap().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_and_a_flow_say_the_same() {
        let table = FlowTable::anonymous(4);
        let word = FlowState::default().claim(false).publish();
        let flow = Flow {
            word: word.raw(),
            last_seen: 77,
            network: 3,
            service: 9,
            backend_id: 70,
            ..Flow::default()
        };
        table.put(2, &flow);
        let glance = Glance {
            word,
            last_seen: 77,
            network: 3,
            service: 9,
            backend_id: 70,
        };
        assert_eq!(table.glance(2), Some(glance));
        assert_eq!(table.flow(2), Some((word, flow)));
        assert_eq!(
            table.glance(1).map(|glance| glance.word),
            Some(FlowState::default())
        );
        assert_eq!(table.glance(4), None);
        assert!(table.swap(2, word, word.expiring()) && !table.swap(2, word, word.close()));
        assert_eq!(table.word(2), Some(word.expiring()));
    }

    #[test]
    fn usage_counts_both_ways_and_has_an_end() {
        let table = UsageTable::anonymous(3);
        let usage = table.owners();
        usage.add(1, 5);
        usage.add(1, -2);
        usage.add(2, -1);
        usage.add(3, 1);
        let values: Vec<_> = (0..4).map(|index| usage.get(index)).collect();
        assert_eq!(values, [Some(0), Some(3), Some(u32::MAX), None]);
        assert_eq!((usage.len(), usage.is_empty()), (3, false));
    }
}
