//! The request index: the flow of a request, by its key. See `lb_common::maps::flow_line`.
//!
//! Each operation is a subprogram: the loops over a line are walked once, and not once for each way to them.

use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        flow::{FlowKey, PackedKey},
        flow_line::{
            self, FlowLine, Index, Indexed, Line, Lines, NotIndexed, Places, TaggedId, WORDS,
            WordPair,
        },
    },
    verdict::DropReason,
};

use crate::{
    flow::{atomic, entry::Entry},
    maps::{FLOW_LINES, LINE_KEY},
    subprogram::Earlier,
};

/// No flow has this id.
const NONE: u32 = 0;

/// The lines in the map.
struct Mapped;

/// One of them.
#[derive(Clone, Copy)]
struct MappedLine(*mut FlowLine);

impl Lines for Mapped {
    type Line = MappedLine;

    #[inline(always)]
    fn line(&self, number: u32) -> Option<MappedLine> {
        FLOW_LINES.get_ptr_mut(number).map(MappedLine)
    }
}

impl MappedLine {
    /// The mask is for the verifier, and clears no bit.
    #[inline(always)]
    fn word(self, place: u32) -> *mut u32 {
        self.0
            .cast::<u32>()
            .wrapping_add((place & (WORDS - 1)) as usize)
    }
}

impl Line for MappedLine {
    #[inline(always)]
    fn load(&self, place: u32) -> TaggedId {
        // SAFETY: a word of a live value of an array map, which is never freed; other CPUs change it by atomic
        // operations only.
        TaggedId::from_raw(unsafe { self.word(place).read_volatile() })
    }

    #[inline(always)]
    fn load_pair(&self, place: u32) -> WordPair {
        // SAFETY: as for `load`; the place is even, and a line aligned to eight bytes.
        WordPair::from_raw(unsafe { self.word(place).cast::<u64>().read_volatile() })
    }

    #[inline(always)]
    fn swap(&self, place: u32, old: TaggedId, new: TaggedId) -> bool {
        // SAFETY: as for `load`; the word is aligned to four bytes.
        unsafe { atomic::compare_and_swap(self.word(place), old.raw(), new.raw()) }
    }

    #[inline(always)]
    fn add(&self, place: u32, amount: u32) {
        // SAFETY: as for `swap`.
        let _before: u32 = unsafe { atomic::add(self.word(place), amount) };
    }
}

/// The id in the index for the flow of this key that is live, over and still translating, ended, or held; [`NONE`] if
/// there is none. Its word may change as soon as this returns.
#[inline(always)]
pub(crate) fn find(key: &FlowKey) -> u32 {
    let PackedKey { ends, rest } = key.packed();
    lb_find(ends, rest, NONE)
}

/// [`find`], by the two numbers of a [`PackedKey`], among the flows of the key but for that with the id `except`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_find(ends: u64, rest: u64, except: u32) -> u32 {
    let key = PackedKey { ends, rest };
    let Some(places) = places(key) else {
        return NONE;
    };
    let is_flow = |id| is_found(id, key) && id != except;
    flow_line::find(&Mapped, places, is_flow).unwrap_or(NONE)
}

/// Makes a published flow findable by its requests.
#[inline(always)]
pub(crate) fn insert(entry: &Entry, word: FlowState) -> Result<(), DropReason> {
    match lb_insert(entry.id, word.is_udp().into()) {
        INSERTED => Ok(()),
        RACE => Err(DropReason::FlowRace),
        _ => Err(DropReason::FlowTableFull),
    }
}

/// What [`lb_insert`] returns.
const INSERTED: u32 = 0;
const RACE: u32 = 1;
const FULL: u32 = 2;

/// Makes the published flow with this id findable: [`INSERTED`], [`RACE`] or [`FULL`]. `udp` is 1 or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_insert(id: u32, udp: u32) -> u32 {
    let Some((key, places)) = key(id, udp).and_then(|key| Some((key, places(key)?))) else {
        return FULL;
    };
    match flow_line::insert(&Keyed(key), places, id) {
        Ok(()) => INSERTED,
        Err(NotIndexed::Race) => RACE,
        Err(NotIndexed::Full) => FULL,
    }
}

/// The lines of a key. Each walk over them is a subprogram.
struct Keyed(PackedKey);

impl Index for Keyed {
    #[inline(always)]
    fn other(&self, id: u32) -> Option<(u32, Indexed)> {
        let other = lb_find(self.0.ends, self.0.rest, id);
        let is_over = Entry::at(other)?.word().claimable();
        let standing = if is_over {
            Indexed::Over
        } else {
            Indexed::Live
        };
        (other != NONE).then_some((other, standing))
    }

    #[inline(always)]
    fn change(&self, old: TaggedId, new: TaggedId) -> bool {
        lb_line_change(self.0.ends, self.0.rest, old.raw(), new.raw()) != 0
    }

    #[inline(always)]
    fn put(&self, word: TaggedId) -> bool {
        lb_line_put(self.0.ends, self.0.rest, word.raw()) != 0
    }
}

/// [`flow_line::change`] in the lines of a [`PackedKey`]: 1 if it did.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_line_change(ends: u64, rest: u64, old: u32, new: u32) -> u32 {
    let (old, new) = (TaggedId::from_raw(old), TaggedId::from_raw(new));
    let places = places(PackedKey { ends, rest });
    places
        .is_some_and(|places| flow_line::change(&Mapped, places, old, new))
        .into()
}

/// [`flow_line::put`] in the lines of a [`PackedKey`]: 1 if there was a place.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_line_put(ends: u64, rest: u64, word: u32) -> u32 {
    let word = TaggedId::from_raw(word);
    let is_left = |id| !Entry::at(id).is_some_and(|entry| entry.word().has_flow());
    let places = places(PackedKey { ends, rest });
    places
        .is_some_and(|places| flow_line::put(&Mapped, places, word, is_left))
        .into()
}

/// Takes the earlier flow of a newly claimed entry, whose fields are still its own, out of the index.
#[inline(always)]
pub(crate) fn remove(entry: &Entry, earlier: Earlier) {
    if earlier != Earlier::NONE {
        lb_remove(entry.id, earlier.is_udp().into());
    }
}

/// The same for the flow of this key, if it is over but still translates: its client has opened its port
/// again, and not to a flow.
#[inline(always)]
pub(crate) fn remove_closed(key: &FlowKey) {
    if let Some(entry) = Entry::at(find(key)) {
        let word = entry.word();
        if matches!(word.state(), State::Closed) && entry.key(word) == *key {
            lb_remove(entry.id, word.is_udp().into());
        }
    }
}

/// Takes the flow with this id, whose fields are in its entry, out of the index. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_remove(id: u32, udp: u32) -> u32 {
    if let Some(key) = key(id, udp)
        && let Some(places) = places(key)
    {
        let _was_there = Keyed(key).change(places.word(id), TaggedId::FREE);
    }
    0
}

/// Puts a flow back that a swap of another CPU has pushed out: see `flow_line`.
#[inline(always)]
pub(crate) fn ensure(entry: &Entry, key: &FlowKey, word: FlowState) {
    if find(key) != entry.id {
        // The flow that is there now has won, or there is no room: nothing to do either way.
        let _there: Result<(), DropReason> = insert(entry, word);
    }
}

#[inline(always)]
fn places(key: PackedKey) -> Option<Places> {
    Some(LINE_KEY.get(0)?.places(key))
}

/// The key in the entry with this id.
#[inline(always)]
fn key(id: u32, udp: u32) -> Option<PackedKey> {
    Some(Entry::at(id)?.packed_key(udp != 0))
}

#[inline(always)]
fn is_found(id: u32, key: PackedKey) -> bool {
    let Some(entry) = Entry::at(id) else {
        return false;
    };
    let word = entry.word();
    let is_there = word.translates() || word.is_held() || matches!(word.state(), State::Ended);
    is_there && entry.packed_key(word.is_udp()) == key
}
