//! The request index: lines of tagged flow ids.
//!
//! A key has three lines of 16 words. A word is nine bits of the key's hash above the id of its flow; the tuple stands in the
//! flow's entry alone, so a word is a hint, and what it leads to is always verified. Words change by compare-and-swap:
//! data plane and userspace write the same lines, and nothing is locked.
//!
//! The first line of a key is among the few in front, which a processor keeps near it: with up to some ten thousand flows a request
//! waits for one distant line, that of the entry, and not for two. The other two are anywhere. A key goes into a line only
//! where those before it are full: into its last one of 1,700, where there are all flows that there may be. The last word of
//! a line in front counts the flows of its keys that stand behind, or did and were replaced: where it is 0 there is none to look for.
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

/// Those behind, 21 words for eight flows: of as many flows as there may be, one in 1,700 finds its line full, and one in two
/// million both.
const fn behind(flows: u32) -> u32 {
    let lines = (flows * 21).div_ceil(8 * WORDS);
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
/// Flows of a key that may be over when another one comes: more than one only where they have come and gone meanwhile.
const MAX_OVER: u32 = 4;
/// Words of a line: 64 bytes, one cache line.
pub const WORDS: u32 = 16;
/// Place of the count in a line in front, behind all its words.
const COUNT: u32 = WORDS - 1;
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

    /// Whether it is a flow's: neither free nor a count.
    pub const fn is_flow(self) -> bool {
        self.0 > ID_MASK
    }
}

/// Two words of a line that follow each other, the first one in the lower half.
#[derive(Clone, Copy, Debug)]
pub struct WordPair(u64);

impl WordPair {
    /// From eight bytes of the map on a little-endian machine.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Of two words.
    pub const fn new([first, second]: [TaggedId; 2]) -> Self {
        Self(first.0 as u64 | (second.0 as u64) << 32)
    }
}

/// Where a key may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Its lines.
    pub lines: [u32; CHOICES],
    /// The tag, where a word has it. Not 0: so a place that is free is none of a key's.
    tag: u32,
}

impl Places {
    /// By 64 bits of a hash of the key that clients do not foresee, in so many lines as [`LineKey`] has.
    #[inline(always)]
    pub const fn new(hash: u64, behind: u64, front: u64) -> Self {
        let tag = match (hash & ((1 << TAG_BITS) - 1)) as u32 {
            0 => 1,
            tag => tag,
        };
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

    /// The ids in two words that may be the key's; beyond all ids in one that is not.
    #[inline(always)]
    const fn ids(self, words: WordPair) -> [u32; 2] {
        let both = words.0 ^ (self.tag as u64 | (self.tag as u64) << 32);
        [(both & 0xffff_ffff) as u32, (both >> 32) as u32]
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
    /// The words at an even place and behind it. Each is whole; both may be of different moments.
    fn load_pair(&self, place: u32) -> WordPair;
    /// Whether the word was `old`; it is `new` then. A full barrier.
    fn swap(&self, place: u32, old: TaggedId, new: TaggedId) -> bool;
    /// Adds to the count at a place, also a negative number in two's complement. A full barrier.
    fn add(&self, place: u32, amount: u32);
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
    /// All lines are full of other flows.
    Full,
}

/// The flow of a key: the first one that `is_flow` takes of those that may be.
#[inline(always)]
pub fn find(lines: &impl Lines, places: Places, is_flow: impl Fn(u32) -> bool) -> Option<u32> {
    let [front, behind @ ..] = places.lines;
    let line = lines.line(front)?;
    if let Some(id) = find_in(&line, places, &is_flow) {
        return Some(id);
    }
    if line.load(COUNT).raw() == 0 {
        return None;
    }
    let lines = behind.map(|number| lines.line(number));
    lines
        .iter()
        .flatten()
        .find_map(|line| find_in(line, places, &is_flow))
}

/// The first one in a line.
#[inline(always)]
fn find_in(line: &impl Line, places: Places, is_flow: impl Fn(u32) -> bool) -> Option<u32> {
    for pair in 0..WORDS / 2 {
        for id in places.ids(line.load_pair(2 * pair)) {
            // Of most words the tag is another one's, as of a count: one comparison.
            if id <= ID_MASK && is_flow(id) {
                return Some(id);
            }
        }
    }
    None
}

/// What [`insert`] does to the lines of a key: each is a walk over them.
pub trait Index {
    /// Another flow of the key than that with this id, and what it is; one that has gone since it was found counts all the same.
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
    if !index.put(mine) && !takes_over(index, places, id) {
        return Err(NotIndexed::Full);
    }
    // A swap is a barrier: of two CPUs that index flows of one key at once, one at least sees the other's word.
    // One flow that is over hides another, so what is found is taken out until there is none.
    for _ in 0..MAX_OVER {
        match index.other(id) {
            None => return Ok(()),
            Some((over, Indexed::Over)) => _ = index.change(places.word(over), TaggedId::FREE),
            Some((_, Indexed::Live)) => break,
        }
    }
    index.change(mine, TaggedId::FREE);
    Err(NotIndexed::Race)
}

/// Whether a flow has taken the place of one of its key that is over, where there is no other.
#[inline(always)]
fn takes_over(index: &impl Index, places: Places, id: u32) -> bool {
    match index.other(id) {
        Some((over, Indexed::Over)) => index.change(places.word(over), places.word(id)),
        _ => false,
    }
}

/// Changes a word of a key's lines, where it stands; returns whether it did.
#[inline(always)]
pub fn change(lines: &impl Lines, places: Places, old: TaggedId, new: TaggedId) -> bool {
    let is_old = |word| word == old;
    if swap_in_front(lines, places, is_old, new) {
        return true;
    }
    let is_changed = swap_behind(lines, places, is_old, new);
    if is_changed && new == TaggedId::FREE {
        count_behind(lines, places, -1);
    }
    is_changed
}

/// Puts a word into the first place that is free, or else into one whose word is left over; returns whether there is one.
/// What is left over may be a flow's again before it is replaced, so it is the last resort.
#[inline(always)]
pub fn put(
    lines: &impl Lines,
    places: Places,
    new: TaggedId,
    is_left: impl Fn(u32) -> bool,
) -> bool {
    let is_free = |word| word == TaggedId::FREE;
    let is_left = |word: TaggedId| is_left(word.id());
    if swap_in_front(lines, places, is_free, new) {
        return true;
    }
    // Before the word is there, and a barrier: a CPU that reads a count of 0 has indexed its flow before, and this one will see it.
    count_behind(lines, places, 1);
    if swap_behind(lines, places, is_free, new) {
        return true;
    }
    let is_in_front = swap_in_front(lines, places, is_left, new);
    let is_put = is_in_front || swap_behind(lines, places, is_left, new);
    if is_in_front || !is_put {
        count_behind(lines, places, -1);
    }
    is_put
}

/// Changes the first word in the line in front that is one of those; returns whether there is one.
#[inline(always)]
fn swap_in_front(
    lines: &impl Lines,
    places: Places,
    is_old: impl Fn(TaggedId) -> bool,
    new: TaggedId,
) -> bool {
    let [front, ..] = places.lines;
    let line = lines.line(front);
    line.is_some_and(|line| swap(&line, COUNT, is_old, new))
}

/// The same in the lines behind.
#[inline(always)]
fn swap_behind(
    lines: &impl Lines,
    places: Places,
    is_old: impl Fn(TaggedId) -> bool,
    new: TaggedId,
) -> bool {
    let [_, behind @ ..] = places.lines;
    for number in behind {
        let line = lines.line(number);
        if line.is_some_and(|line| swap(&line, WORDS, &is_old, new)) {
            return true;
        }
    }
    false
}

/// The same in the first `words` of a line.
#[inline(always)]
fn swap(line: &impl Line, words: u32, is_old: impl Fn(TaggedId) -> bool, new: TaggedId) -> bool {
    for place in 0..words {
        let word = line.load(place);
        if is_old(word) && line.swap(place, word, new) {
            return true;
        }
    }
    false
}

/// Counts a flow that stands behind.
#[inline(always)]
fn count_behind(lines: &impl Lines, places: Places, more: i32) {
    let [front, ..] = places.lines;
    if let Some(line) = lines.line(front) {
        line.add(COUNT, more.cast_unsigned());
    }
}

#[cfg(test)]
mod tests;
