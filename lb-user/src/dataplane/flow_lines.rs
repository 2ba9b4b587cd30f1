//! The request index in this process's memory: lines of flow ids, read and changed beside the data plane, by the same rules.

use std::{
    path::Path,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{flows::FlowTable, ids::random, mapped::MappedArray};
use anyhow::{Context as _, Result, anyhow, bail};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    conntrack::State,
    maps::{
        addr6::HashKey,
        flow::FlowKey,
        flow_line::{
            self, FlowLine, Index, Indexed, Line, LineKey, Lines, NotIndexed, Places, TaggedId,
            WORDS, WordPair,
        },
    },
};

/// No flow has this id.
const NONE: u32 = 0;

/// The mapped lines.
pub struct FlowLines {
    lines: MappedArray<FlowLine>,
    flows: FlowTable,
    keys: Array<MapData, LineKey>,
    /// As it was read first: it never changes.
    key: OnceLock<LineKey>,
}

impl FlowLines {
    /// Maps the pinned maps in `folder`.
    ///
    /// # Errors
    ///
    /// If a pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        let keys = MapData::from_pin(folder.join("LINE_KEY"));
        let keys = keys.context("open the pinned map LINE_KEY")?;
        Ok(Self {
            lines: MappedArray::open(folder, "FLOW_LINES")?,
            flows: FlowTable::open(folder)?,
            keys: Map::Array(keys).try_into()?,
            key: OnceLock::new(),
        })
    }

    /// Makes the key by which flows come to their lines, if there is none: with another one no flow of before would be
    /// found.
    ///
    /// # Errors
    ///
    /// If the kernel has no random numbers or refuses the write.
    pub fn make_key(&mut self) -> Result<()> {
        if self.keys.get(&0, 0)? != LineKey::default() {
            return Ok(());
        }
        let mut secret = HashKey([0; 5]);
        for word in &mut secret.0 {
            let mut bytes = [0; 8];
            random(&mut bytes)?;
            *word = u64::from_ne_bytes(bytes);
        }
        let key = LineKey::new(secret, self.flows.entries());
        Ok(self.keys.set(0, &key, 0)?)
    }

    /// The flow of a key: live, held, over and still translating, or ended.
    ///
    /// # Errors
    ///
    /// If the key of the lines cannot be read.
    pub fn find(&self, key: &FlowKey) -> Result<Option<u32>> {
        let found = self.keyed(key)?.other(NONE);
        Ok(found.map(|(id, _)| id))
    }

    /// Makes a held or live flow findable by its requests, in the place of one that is over.
    ///
    /// # Errors
    ///
    /// If a live flow has the key, or there is no room.
    pub fn insert(&self, key: &FlowKey, id: u32) -> Result<()> {
        self.add(key, id).map_err(|why| match why {
            NotIndexed::Race => anyhow!("another flow has the tuple"),
            NotIndexed::Full => anyhow!("the flow index has no room"),
        })
    }

    /// The flow of a key that is not the one with this id.
    pub fn other(&self, key: &FlowKey, id: u32) -> Option<u32> {
        let other = self.keyed(key).ok()?.other(id)?;
        Some(other.0)
    }

    /// As [`Self::insert`]; without the key of the lines there is no room.
    ///
    /// # Errors
    ///
    /// If a live flow has the key, or there is no room.
    pub fn add(&self, key: &FlowKey, id: u32) -> Result<(), NotIndexed> {
        let keyed = self.keyed(key).map_err(|_| NotIndexed::Full)?;
        flow_line::insert(&keyed, keyed.places, id)
    }

    /// Takes a flow out of the index, if it is there.
    ///
    /// # Errors
    ///
    /// If the key of the lines cannot be read.
    pub fn remove(&self, key: &FlowKey, id: u32) -> Result<()> {
        let keyed = self.keyed(key)?;
        keyed.change(keyed.places.word(id), TaggedId::FREE);
        Ok(())
    }

    /// Whether requests with this key may come to this flow.
    ///
    /// # Errors
    ///
    /// If the key of the lines cannot be read.
    pub fn has(&self, key: &FlowKey, id: u32) -> Result<bool> {
        let keyed = self.keyed(key)?;
        let word = keyed.places.word(id);
        Ok(keyed.change(word, word))
    }

    /// As [`Self::insert`], of a flow that is findable elsewhere: where another one has its key already, that one is found.
    ///
    /// # Errors
    ///
    /// If there is no room.
    pub fn index(&self, key: &FlowKey, id: u32) -> Result<()> {
        let keyed = self.keyed(key)?;
        match flow_line::insert(&keyed, keyed.places, id) {
            Ok(()) | Err(NotIndexed::Race) => Ok(()),
            Err(NotIndexed::Full) => bail!("the flow index has no room"),
        }
    }

    /// The ids in it, also those of words that are left over.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        let lines = (0..self.lines.len()).filter_map(move |number| self.line(number));
        let words = lines.flat_map(|line| (0..WORDS).map(move |place| line.load(place)));
        words.filter(|word| word.is_flow()).map(TaggedId::id)
    }

    fn keyed(&self, key: &FlowKey) -> Result<Keyed<'_>> {
        let line_key = match self.key.get() {
            Some(known) => known,
            None => {
                let read = self.keys.get(&0, 0).context("read LINE_KEY")?;
                self.key.get_or_init(|| read)
            }
        };
        Ok(Keyed {
            lines: self,
            places: line_key.places(key.packed()),
            key: *key,
        })
    }
}

/// The lines of a key.
struct Keyed<'l> {
    lines: &'l FlowLines,
    places: Places,
    key: FlowKey,
}

impl Keyed<'_> {
    /// What the flow with an id is to the key; none if it is another key's, or no flow.
    fn standing(&self, id: u32) -> Option<Indexed> {
        let (word, flow) = self.lines.flows.flow(id)?;
        let standing = match word.state() {
            State::Free | State::Claimed => None,
            State::Closed | State::Ended => Some(Indexed::Over),
            State::Local if !word.is_held() => None,
            _ => Some(Indexed::Live),
        };
        standing.filter(|_| flow.key(word.is_udp()) == self.key)
    }
}

impl Index for Keyed<'_> {
    fn other(&self, id: u32) -> Option<(u32, Indexed)> {
        let is_flow = |found| found != id && self.standing(found).is_some();
        let found = flow_line::find(&self.lines, self.places, is_flow)?;
        // One that has gone since it was found was over.
        Some((found, self.standing(found).unwrap_or(Indexed::Over)))
    }

    fn change(&self, old: TaggedId, new: TaggedId) -> bool {
        flow_line::change(&self.lines, self.places, old, new)
    }

    fn put(&self, word: TaggedId) -> bool {
        let is_left = |id| {
            let flow = self.lines.flows.flow(id);
            !flow.is_some_and(|(word, _)| word.has_flow())
        };
        flow_line::put(&self.lines, self.places, word, is_left)
    }
}

/// A line in the mapping.
#[derive(Clone, Copy)]
pub struct MappedLine<'l> {
    lines: &'l MappedArray<FlowLine>,
    number: u32,
}

impl<'l> Lines for &'l FlowLines {
    type Line = MappedLine<'l>;

    fn line(&self, number: u32) -> Option<MappedLine<'l>> {
        let lines = &self.lines;
        (number < lines.len()).then_some(MappedLine { lines, number })
    }
}

impl MappedLine<'_> {
    fn word(&self, place: u32) -> Option<&AtomicU32> {
        self.lines.word(self.number, place as usize)
    }
}

impl Line for MappedLine<'_> {
    fn load(&self, place: u32) -> TaggedId {
        let word = self.word(place).map(|word| word.load(Ordering::SeqCst));
        word.map_or(TaggedId::FREE, TaggedId::from_raw)
    }

    fn load_pair(&self, place: u32) -> WordPair {
        WordPair::new([self.load(place), self.load(place + 1)])
    }

    fn swap(&self, place: u32, old: TaggedId, new: TaggedId) -> bool {
        let (old, new) = (old.raw(), new.raw());
        self.word(place).is_some_and(|word| {
            let swapped = word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
            swapped.is_ok()
        })
    }

    fn add(&self, place: u32, amount: u32) {
        if let Some(count) = self.word(place) {
            count.fetch_add(amount, Ordering::SeqCst);
        }
    }
}
