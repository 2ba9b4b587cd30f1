//! The records of datagrams in pieces: the only code that touches their memory.

use lb_common::{
    addr::Be16,
    datagram::{self, RecordState, Seen},
    fragment::{Extents, Piece},
    maps::fragment::{Datagram, FragmentKey, PLACES},
    verdict::DropReason,
};

use crate::{
    flow::{
        atomic,
        entry::{Entry, now},
    },
    maps::{DATAGRAMS, HASH_KEY},
    subprogram::Pair,
};

/// Swaps that are tried while other CPUs add fragments of the same datagram.
const MAX_SWAPS: u32 = 4;
/// No place.
const NONE: u32 = u32::MAX;
/// Beside the first place of a set: it has no such datagram.
const ABSENT: u32 = 1 << 31;

macro_rules! load {
    ($record:expr, $($field:tt)+) => {{
        // SAFETY: the pointer is to a value of an array map, which is never freed; the field is aligned
        // and any bits are valid for it.
        unsafe { (&raw const (*$record.0).$($field)+).read_volatile() }
    }};
}

macro_rules! store {
    ($record:expr, $field:ident, $value:expr) => {{
        // SAFETY: as for `load!`; only the CPU that has taken the record stores.
        unsafe { (&raw mut (*$record.0).$field).write_volatile($value) }
    }};
}

/// A record in the map.
#[derive(Clone, Copy)]
struct Record(*mut Datagram);

impl Record {
    #[inline(always)]
    fn at(place: u32) -> Option<Self> {
        Some(Self(DATAGRAMS.get_ptr_mut(place)?))
    }

    #[inline(always)]
    fn word(self) -> RecordState {
        RecordState::from_raw(load!(self, word))
    }

    /// Changes the word if no other CPU did since it was read as `old`; a full barrier either way.
    #[inline(always)]
    fn swap(self, old: RecordState, new: RecordState) -> bool {
        // SAFETY: the field is inside the map value that the pointer is to.
        let word = unsafe { &raw mut (*self.0).word };
        // SAFETY: the word is the record's first field, aligned to eight bytes.
        unsafe { atomic::compare_and_swap_long(word, old.raw(), new.raw()) }
    }

    #[inline(always)]
    fn is_followed(self) -> bool {
        self.word().extents().is_some()
    }

    /// Whether its key has these [`FragmentKey::words`].
    #[inline(always)]
    fn is_of(self, [source, destination, both, protocol]: [u32; 4]) -> bool {
        let network = load!(self, key.network);
        let identification = load!(self, key.identification);
        load!(self, key.source).raw() == source
            && load!(self, key.destination).raw() == destination
            && Pair::new(network, identification.raw()).raw() == both
            && load!(self, key.protocol) == protocol
    }
}

/// What the record at a place has: its word, its owner and when it began.
#[inline(always)]
fn seen(place: u32) -> Option<Seen> {
    let record = Record::at(place)?;
    Some(Seen {
        word: record.word(),
        owner: load!(record, owner),
        began: load!(record, began),
    })
}

/// Where the datagram with this key stands, as [`lb_datagram`].
#[inline(always)]
fn find(key: &FragmentKey) -> u32 {
    let [source, destination, both, protocol] = key.words();
    lb_datagram(source, destination, both, protocol)
}

/// The place of the datagram with these [`FragmentKey::words`], or the first one of its set and [`ABSENT`]. The
/// record may change meanwhile: a caller that goes by it reads it again. A subprogram: the verifier does not walk
/// what follows for each place.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_datagram(
    source: u32,
    destination: u32,
    both: u32,
    protocol: u32,
) -> u32 {
    let words = [source, destination, both, protocol];
    let Some(key) = HASH_KEY.get(0) else {
        return NONE;
    };
    let first = datagram::first_place(key.of(words));
    for place in first..first + PLACES {
        if Record::at(place).is_some_and(|record| record.is_of(words) && record.is_followed()) {
            return place;
        }
    }
    first | ABSENT
}

/// How many places this network has of the set that begins at `first`. A subprogram: the verifier does not walk
/// what follows for each number.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_own(first: u32, owner: u32) -> u32 {
    datagram::count(first, owner as u8, now(), seen)
}

/// [`datagram::score`] of a place for a network, which has `own` of the set: as [`lb_own`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_score(place: u32, owner: u32, own: u32, now: u32) -> u64 {
    let Some(seen) = seen(place) else {
        return 0;
    };
    datagram::score(&seen, owner as u8, own, now)
}

/// Takes a place for a datagram of this network, which has `own` of the set that begins at `first`; [`NONE`] if
/// another CPU was faster. The record is the caller's to write, and to publish. As [`lb_own`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_take_record(first: u32, owner: u32, own: u32) -> u32 {
    let word = |place| Some(Record::at(place)?.word());
    let now = now();
    let score = |place| lb_score(place, owner, own, now);
    let Some((place, word)) = datagram::choose(first, word, score) else {
        return NONE;
    };
    match Record::at(place) {
        Some(record) if record.swap(word, word.take()) => place,
        _ => NONE,
    }
}

/// What a first fragment tells of its datagram.
pub(crate) struct First {
    pub(crate) flow: u32,
    pub(crate) direction: u16,
    pub(crate) extents: Extents,
    pub(crate) identification: Be16,
}

/// Notes a first fragment. A second one begins the record anew, and with another identification: it is another
/// datagram for the receiver. `None` if the others will come too early, because there was no place for it.
#[inline(always)]
pub(crate) fn begin(key: &FragmentKey, first: &First) -> Option<()> {
    let found = find(key);
    if let Some(record) = Record::at(found) {
        let word = record.word();
        record.swap(word, word.vacate());
    }
    let set = found & !ABSENT & !(PLACES - 1);
    let entry = Entry::at(first.flow)?;
    let generation = entry.word().generation();
    let (owner, _) = entry.owners();
    let owner = u32::from(owner);
    let record = Record::at(lb_take_record(set, owner, lb_own(set, owner)))?;
    let word = record.word();
    store!(record, key, *key);
    store!(record, flow, first.flow);
    store!(record, generation, generation);
    store!(record, began, now());
    store!(record, identification, first.identification);
    store!(record, direction, first.direction as u8);
    store!(record, owner, owner as u8);
    record.swap(word, word.with(first.extents)).then_some(())
}

/// The record of a datagram, as it was when a fragment of it came.
pub(crate) struct Followed {
    pub(crate) flow: u32,
    pub(crate) generation: u32,
    pub(crate) identification: Be16,
    pub(crate) direction: u16,
    record: Record,
    word: RecordState,
}

impl Followed {
    /// The record of the datagram, if its first fragment has passed not too long ago.
    #[inline(always)]
    pub(crate) fn of(key: &FragmentKey) -> Option<Self> {
        let record = Record::at(find(key))?;
        let before = record.word();
        let followed = Self {
            flow: load!(record, flow),
            generation: load!(record, generation),
            identification: load!(record, identification),
            direction: u16::from(load!(record, direction)),
            record,
            word: before,
        };
        let is_it = before.extents().is_some()
            && record.is_of(key.words())
            && datagram::is_fresh(load!(record, began), now())
            && record.word().is_same(before);
        is_it.then_some(followed)
    }

    /// Adds a fragment to what has passed. The record is vacant when the datagram is complete, and when two of its
    /// fragments overlap: nothing more of it passes.
    #[inline(always)]
    pub(crate) fn add(&self, piece: &Piece) -> Result<(), DropReason> {
        let mut word = self.word;
        for _ in 0..MAX_SWAPS {
            let extents = word.extents().ok_or(DropReason::FragmentEarly)?;
            let (next, end) = match extents.add(piece) {
                Ok(next) if next.is_complete() => (word.vacate(), Ok(())),
                Ok(next) => (word.with(next), Ok(())),
                Err(DropReason::FragmentOverlap) => {
                    (word.vacate(), Err(DropReason::FragmentOverlap))
                }
                Err(reason) => return Err(reason),
            };
            if self.record.swap(word, next) {
                return end;
            }
            word = self.record.word();
            if !word.is_same(self.word) {
                return Err(DropReason::FragmentEarly);
            }
        }
        Err(DropReason::FlowRace)
    }
}
