//! The splices of flows that are handed over, beside the data plane.
//!
//! A splice has a number, which is its flow's as long as that is not over, and then the next one's. The number is taken by one
//! swap of the splice's owner: while one process takes over from another, both hand over.

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};
use lb_common::{
    conntrack::FlowState,
    maps::{
        flow::TIME_SHIFT,
        splice::{BOUND_HAS_REST, Binding, DRAINED, Splice, SpliceName, flow, owner},
    },
};

use super::{
    batch::{Keys, keys},
    flows::{FlowTable, Glance, coarse_now},
    mapped::MappedArray,
};

/// The name that the client of a flow has requested, by its id and word; none if there is none.
pub type SpliceNames = Box<dyn Fn(u32, FlowState) -> Option<String>>;

/// How long the name of a flow that is over is kept for its line in the flow log, in units of `Flow::last_seen`.
const NAME_REST: u32 = 10 * (1_000_000_000 >> TIME_SHIFT);
/// Names that are looked at by one system call.
const NAMES_AT_ONCE: u32 = 1024;
/// Splices that are looked at for one whose flow is over.
const MAX_LOOKS: u32 = 1024;
/// The place of `Binding::splice` among its words, and of `Splice::owner` among the long ones.
const SPLICE: usize = 0;
const OWNER: usize = 0;
const _: () = assert!(std::mem::offset_of!(Binding, splice) == 0);
const _: () = assert!(std::mem::offset_of!(Splice, owner) == 0);

type Names = HashMap<MapData, u32, SpliceName>;

/// The splices.
pub struct SpliceTable {
    bindings: MappedArray<Binding>,
    splices: MappedArray<Splice>,
    /// Opened when the first one is needed: few tables look at names.
    names: OnceLock<Mutex<Names>>,
    /// Where they are pinned.
    folder: PathBuf,
    flows: FlowTable,
    /// Where the search for a splice went to last.
    last: AtomicU32,
}

/// What a backend's SYN-ACK had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendSynAck {
    /// Its timestamp; 0 if it has none.
    pub time: u32,
    /// Its maximum segment size, in bytes.
    pub mss: u16,
}

/// What the numbers of a flow are translated by, whichever way it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowNumbers {
    /// The binding of a flow that was opened by its hello, or by a cookie.
    Bound(Binding),
    /// The splice of one that a process has handed over.
    HandedOver(Splice),
}

impl FlowNumbers {
    /// The same of a flow with this id and generation.
    #[must_use]
    pub const fn of(self, id: u32, generation: u32) -> Self {
        match self {
            Self::Bound(binding) => Self::Bound(binding.of(generation)),
            Self::HandedOver(splice) => Self::HandedOver(Splice {
                owner: owner(id, generation),
                ..splice
            }),
        }
    }
}

/// No splice is to be had: all are of flows that live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSplice;

impl SpliceTable {
    /// Opens the pinned maps in `folder`.
    ///
    /// # Errors
    ///
    /// If a pin is missing, or a map has another layout.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            bindings: MappedArray::open(folder, "BINDINGS")?,
            splices: MappedArray::open(folder, "SPLICES")?,
            names: OnceLock::new(),
            folder: folder.to_owned(),
            flows: FlowTable::open(folder)?,
            last: AtomicU32::new(0),
        })
    }

    /// The same, with the map of names open: for threads that can open none later.
    ///
    /// # Errors
    ///
    /// If its pin is missing.
    pub fn with_names(self) -> Result<Self> {
        drop(self.kept_names()?);
        Ok(self)
    }

    fn kept_names(&self) -> Result<MutexGuard<'_, Names>> {
        let names = match self.names.get() {
            Some(names) => names,
            None => {
                let opened = MapData::from_pin(self.folder.join("SPLICE_NAMES"));
                let opened = opened.context("open the pinned map SPLICE_NAMES")?;
                let opened: Names = Map::HashMap(opened).try_into()?;
                self.names.get_or_init(|| Mutex::new(opened))
            }
        };
        Ok(names.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The names of the flows that were handed over or bound, each as long as no other has its id.
    #[must_use]
    pub fn names(self) -> SpliceNames {
        Box::new(move |id, word| self.name(id, word))
    }

    /// The name that the client of a flow has requested, if it was handed over or bound and there was one.
    pub fn name(&self, id: u32, word: FlowState) -> Option<String> {
        let kept = word.is_spliced().then(|| self.kept_name(id)).flatten()?;
        let name = String::from_utf8_lossy(kept.name()).into_owned();
        (kept.generation == word.generation() && !name.is_empty()).then_some(name)
    }

    fn kept_name(&self, id: u32) -> Option<SpliceName> {
        self.kept_names().ok()?.get(&id, 0).ok()
    }

    /// Forgets the names of flows that have been over for a while: the data plane, which keeps those of the flows that it has
    /// bound, does not.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to read the map.
    pub fn forget_names(&self) -> Result<()> {
        let now = coarse_now()?;
        let mut from = None;
        loop {
            // For so many at a time, since clients that are handed over wait for the lock.
            let mut names = self.kept_names()?;
            let Keys { keys, next } = keys(&names, from, NAMES_AT_ONCE)?;
            for id in keys {
                if self.is_over(id, now) {
                    // It may have been forgotten.
                    let _none = names.remove(&id);
                }
            }
            drop(names);
            match next {
                Some(next) => from = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Whether the flow with this id is over, and has been so for [`NAME_REST`].
    fn is_over(&self, id: u32, now: u32) -> bool {
        let glance = self.flows.glance(id);
        glance.is_none_or(
            |Glance {
                 word, last_seen, ..
             }| { word.claimable() && now.wrapping_sub(last_seen) >= NAME_REST },
        )
    }

    /// The splice of the flow with this id and word, if it has one.
    pub fn get(&self, id: u32, word: FlowState) -> Option<Splice> {
        if !word.is_spliced() {
            return None;
        }
        let binding = self.bindings.read(id)?;
        if binding.is_bound(word.generation()) {
            return Some(binding.as_splice(id, word.generation()));
        }
        let splice = self.splices.read(self.number(id)?)?;
        (splice.owner == owner(id, word.generation())).then_some(splice)
    }

    /// The binding of the flow with this id and word, whose backend has not answered.
    pub fn awaited(&self, id: u32, word: FlowState) -> Option<Binding> {
        let binding = self.bindings.read(id)?;
        (word.is_binding() && binding.is_bound(word.generation())).then_some(binding)
    }

    /// What a replica of the flow with this id and word has to have; none if its numbers are not translated, or not by anything that is
    /// whole: the backend has not got all that our socket sent it, or the second segment of its hello.
    pub fn numbers(&self, id: u32, word: FlowState) -> Option<FlowNumbers> {
        let binding = self.bindings.read(id).filter(|_| word.is_spliced())?;
        if binding.is_bound(word.generation()) {
            let is_whole = binding.flags & BOUND_HAS_REST == 0;
            return is_whole.then_some(FlowNumbers::Bound(binding));
        }
        let splice = self.get(id, word)?;
        let is_whole = splice.state & DRAINED != 0;
        is_whole.then_some(FlowNumbers::HandedOver(splice))
    }

    /// Writes what the numbers of a flow that this process has claimed are translated by, before its word has the flag.
    ///
    /// # Errors
    ///
    /// If it needs a splice, and all are of flows that live.
    pub fn set_numbers(
        &self,
        id: u32,
        word: FlowState,
        numbers: &FlowNumbers,
        name: &[u8],
    ) -> Result<(), NoSplice> {
        match numbers {
            FlowNumbers::HandedOver(splice) => return self.set(id, word, splice, name),
            FlowNumbers::Bound(binding) => self.bindings.write(id, binding.of(word.generation())),
        }
        self.keep_name(id, word, name);
        Ok(())
    }

    fn number(&self, id: u32) -> Option<u32> {
        Some(self.bindings.word(id, SPLICE)?.load(Ordering::Acquire))
    }

    /// Writes the splice of a flow that this process has claimed, before its word has the flag; and the name that its client
    /// has requested, of which a long one is cut.
    ///
    /// # Errors
    ///
    /// If all splices are of flows that live.
    pub fn set(
        &self,
        id: u32,
        word: FlowState,
        splice: &Splice,
        name: &[u8],
    ) -> Result<(), NoSplice> {
        let mine = owner(id, word.generation());
        let number = self.take(mine)?;
        let splice = Splice {
            owner: mine,
            ..*splice
        };
        self.splices.write(number, splice);
        let binding = self.bindings.word(id, SPLICE).ok_or(NoSplice)?;
        binding.store(number, Ordering::Release);
        self.keep_name(id, word, name);
        Ok(())
    }

    fn keep_name(&self, id: u32, word: FlowState, name: &[u8]) {
        if !name.is_empty()
            && let Ok(mut names) = self.kept_names()
        {
            // A flow goes on without its name.
            let name = SpliceName::new(word.generation(), name);
            let _full = names.insert(&id, &name, 0);
        }
    }

    /// Takes the next splice whose flow is over, and forgets the name of that.
    fn take(&self, mine: u64) -> Result<u32, NoSplice> {
        let count = self.splices.len().saturating_sub(1);
        for _ in 0..count.min(MAX_LOOKS) {
            let number = 1 + self.last.fetch_add(1, Ordering::Relaxed) % count;
            let Some(taken) = self.splices.long_word(number, OWNER) else {
                continue;
            };
            let earlier = taken.load(Ordering::Acquire);
            if !self.is_live(earlier) && take_from(taken, earlier, mine) {
                self.forget_name(number, earlier, mine);
                return Ok(number);
            }
        }
        Err(NoSplice)
    }

    /// Whether a splice is of a flow that is not over.
    fn is_live(&self, owner: u64) -> bool {
        let (id, generation) = flow(owner);
        let word = self.flows.word(id).filter(|_| owner != 0);
        word.is_some_and(|word| word.generation() == generation && !word.claimable())
    }

    /// The name of an earlier owner of a splice: its id may have another one by now, and another name.
    fn forget_name(&self, number: u32, earlier: u64, mine: u64) {
        let (id, _) = flow(earlier);
        if earlier != 0
            && id != flow(mine).0
            && self.number(id) == Some(number)
            && let Ok(mut names) = self.kept_names()
        {
            // It may have had none.
            let _none = names.remove(&id);
        }
    }

    /// What the data plane has noted of the SYN-ACK of a flow's backend.
    pub fn backend_syn_ack(&self, id: u32) -> BackendSynAck {
        let binding = self.bindings.read(id).unwrap_or_default();
        BackendSynAck {
            time: binding.time,
            mss: binding.backend_mss,
        }
    }

    /// Whether the backend has what our socket sent it.
    pub fn is_drained(&self, id: u32, word: FlowState) -> bool {
        let splice = self.get(id, word);
        splice.is_some_and(|splice| splice.state & DRAINED != 0)
    }
}

fn take_from(splice: &AtomicU64, earlier: u64, mine: u64) -> bool {
    let taken = splice.compare_exchange(earlier, mine, Ordering::AcqRel, Ordering::Acquire);
    taken.is_ok()
}
