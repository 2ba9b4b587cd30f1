//! The request index: lines of tagged flow ids.
//!
//! A key has three lines of 16 words. A word is nine bits of the key's hash above the id of its flow; the tuple stands in the
//! flow's entry alone, so a word is a hint, and what it leads to is always verified. Words change by compare-and-swap:
//! data plane and userspace write the same lines, and nothing is locked.
//!
//! The first line of a key is among the few in front, which a processor keeps near it: with up to some ten thousand flows a request
//! waits for one distant line, that of the entry, and not for two. The other two are anywhere. A key goes into a line only
//! where those before it are full: into its last one of 14,000, where there are all flows that there may be.
//! What is left over, by a process that ended between two steps or a swap that was lost, leads nowhere, and its place is
//! taken by the next flow of the line.

use crate::{
    maps::{addr6::HashKey, flow::PackedKey},
    pod::pod_struct,
};

pod_struct! {
    /// How keys come to their lines: made at the first start, at random, and never changed, because the lines are by it.
    pub struct LineKey {
        /// The key of the hash.
        pub secret: HashKey,
        /// How many lines there are behind those in front.
        pub behind: u64,
        /// How many there are in front, a power of two.
        pub front: u64,
    }
}

/// A line, in the map.
pub type FlowLine = [u32; WORDS as usize];

impl LineKey {
    /// The key of a table of so many flows.
    pub const fn new(secret: HashKey, flows: u32) -> Self {
        let behind = behind(flows);
        Self {
            secret,
            behind: behind as u64,
            front: front(behind) as u64,
        }
    }

    /// Where the flow of a key may stand.
    #[inline(always)]
    pub const fn places(&self, key: PackedKey) -> Places {
        Places::new(self.secret.tuple_bits(key), self.behind, self.front)
    }
}

/// How many lines there are for so many flows.
pub const fn lines(flows: u32) -> u32 {
    let behind = behind(flows);
    behind + front(behind)
}

/// Those behind: of flows of which there are five to a line one in 14,000 finds its line full, and one of 10^8 both.
const fn behind(flows: u32) -> u32 {
    let lines = flows.div_ceil(5);
    if lines < 2 { 2 } else { lines }
}

/// Those in front, a power of two.
const fn front(behind: u32) -> u32 {
    if behind < MAX_FRONT {
        1 << behind.ilog2()
    } else {
        MAX_FRONT
    }
}

/// Most lines in front: 256 KiB.
const MAX_FRONT: u32 = 4096;
/// Lines of a key.
const CHOICES: usize = 3;
/// Words of a line: 64 bytes, one cache line.
pub const WORDS: u32 = 16;
/// Bits of an id: 128 SNAT addresses of 56,320 ports, and a few.
const ID_BITS: u32 = 23;
const ID_MASK: u32 = (1 << ID_BITS) - 1;
const TAG_BITS: u32 = 32 - ID_BITS;

/// A word of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaggedId(u32);

impl TaggedId {
    /// No flow. The id 0 is none's.
    pub const FREE: Self = Self(0);

    /// From the number in the map.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// As it stands in the map.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The flow.
    pub const fn id(self) -> u32 {
        self.0 & ID_MASK
    }
}

/// Where a key may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Its lines.
    pub lines: [u32; CHOICES],
    /// The tag, where a word has it.
    tag: u32,
}

impl Places {
    /// By 64 bits of a hash of the key that clients do not foresee, in so many lines as [`LineKey`] has.
    #[inline(always)]
    pub const fn new(hash: u64, behind: u64, front: u64) -> Self {
        let tag = (hash & ((1 << TAG_BITS) - 1)) as u32;
        let (high, low) = (hash >> 32, hash & 0xffff_ffff);
        let near = (hash >> TAG_BITS) & front.wrapping_sub(1);
        // A half of the hash as a fraction of the lines.
        let (first, second) = ((high * behind) >> 32, (low * behind) >> 32);
        Self {
            lines: [
                (near & 0xffff_ffff) as u32,
                ((front + first) & 0xffff_ffff) as u32,
                ((front + second) & 0xffff_ffff) as u32,
            ],
            tag: tag << ID_BITS,
        }
    }

    /// The word of a flow of the key.
    pub const fn word(self, id: u32) -> TaggedId {
        TaggedId(self.tag | id & ID_MASK)
    }

    /// The id in a word that may be the key's; 0 or beyond all ids in one that is not.
    #[inline(always)]
    const fn id(self, word: TaggedId) -> u32 {
        word.0 ^ self.tag
    }
}

/// The lines, in the memory of the map.
pub trait Lines {
    /// One of them.
    type Line: Line;
    /// The line with this number, if there is one.
    fn line(&self, number: u32) -> Option<Self::Line>;
}

/// A line, which others read and change meanwhile.
pub trait Line {
    /// The word at a place.
    fn load(&self, place: u32) -> TaggedId;
    /// Whether the word was `old`; it is `new` then. A full barrier.
    fn swap(&self, place: u32, old: TaggedId, new: TaggedId) -> bool;
}

/// What a flow of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexed {
    /// Live, or held for a socket.
    Live,
    /// Over: another one may have its place.
    Over,
}

/// Why a flow is not in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIndexed {
    /// Another CPU has made a flow of the key.
    Race,
    /// Both lines are full of other flows.
    Full,
}

/// The flow of a key: the first one that `is_flow` takes of those that may be.
#[inline(always)]
pub fn find(lines: &impl Lines, places: Places, is_flow: impl Fn(u32) -> bool) -> Option<u32> {
    for number in places.lines {
        let Some(line) = lines.line(number) else {
            continue;
        };
        for place in 0..WORDS {
            let id = places.id(line.load(place));
            // Of most words the tag is another one's: one comparison.
            if id <= ID_MASK && id != 0 && is_flow(id) {
                return Some(id);
            }
        }
    }
    None
}

/// What [`insert`] does to the lines of a key: each is a walk over all of them.
pub trait Index {
    /// Another flow of the key than that with this id, and what it is.
    fn other(&self, id: u32) -> Option<(u32, Indexed)>;
    /// [`change`].
    fn change(&self, old: TaggedId, new: TaggedId) -> bool;
    /// [`put`].
    fn put(&self, word: TaggedId) -> bool;
}

/// Makes a published flow findable. Of two of a key that come at once a request may find either, until the one that
/// is refused is out again.
///
/// # Errors
///
/// If it is not findable.
#[inline(always)]
pub fn insert(index: &impl Index, places: Places, id: u32) -> Result<(), NotIndexed> {
    let mine = places.word(id);
    match index.other(id) {
        Some((over, Indexed::Over)) if index.change(places.word(over), mine) => {}
        Some(_) => return Err(NotIndexed::Race),
        None if index.put(mine) => {}
        None => return Err(NotIndexed::Full),
    }
    // A swap is a barrier: of two CPUs that index flows of one key at once, one at least sees the other's word.
    match index.other(id) {
        Some((_, Indexed::Live)) => {
            index.change(mine, TaggedId::FREE);
            Err(NotIndexed::Race)
        }
        // One that has come and gone meanwhile would hide this one.
        Some((over, _)) => {
            index.change(places.word(over), TaggedId::FREE);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Changes a word of a key's lines wherever it stands; returns whether it did anywhere.
#[inline(always)]
pub fn change(lines: &impl Lines, places: Places, old: TaggedId, new: TaggedId) -> bool {
    let mut is_changed = false;
    for number in places.lines {
        let Some(line) = lines.line(number) else {
            continue;
        };
        for place in 0..WORDS {
            if line.load(place) == old && line.swap(place, old, new) {
                is_changed = true;
            }
        }
    }
    is_changed
}

/// Puts a word into the first place that is free, or whose word is left over; returns whether there is one.
#[inline(always)]
pub fn put(
    lines: &impl Lines,
    places: Places,
    new: TaggedId,
    is_left: impl Fn(u32) -> bool,
) -> bool {
    for number in places.lines {
        let Some(line) = lines.line(number) else {
            continue;
        };
        for place in 0..WORDS {
            let word = line.load(place);
            let is_free = word == TaggedId::FREE || is_left(word.id());
            if is_free && line.swap(place, word, new) {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests;
