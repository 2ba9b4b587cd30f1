//! Where the record of a datagram in pieces stands, and the word by which it is that datagram's.
//!
//! A record has one of the [`PLACES`] of a set, which the datagram's key selects. No network has more than
//! [`SHARE`] of them while there are others that are in use: with one more it gives up its own oldest. So a
//! network's datagrams, however many, take no place of another's.

use crate::{
    fragment::{Extents, LIFETIME},
    maps::fragment::{PLACES, SETS},
};

/// Places of a set that a network may have at a time.
pub const SHARE: u32 = 2;

/// What has passed of a datagram, and a count of the datagrams that the record was of: a reader that has found
/// the same count before and after has read one datagram's record, and a swap that succeeds is of that one.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordState(u64);

/// Bits of [`Extents`]. The 21 above count: no record is of two million datagrams while a packet is looked at.
const COUNT: u32 = Extents::BITS;
const EXTENTS: u64 = (1 << COUNT) - 1;
/// Extents that no datagram has: without an end.
const VACANT: u64 = 0;
const IN_WRITING: u64 = 1 << (COUNT - 1);

impl RecordState {
    /// From the word in the record.
    #[inline(always)]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The word for the record.
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// What has passed of the datagram, if there is one.
    #[inline(always)]
    pub const fn extents(self) -> Option<Extents> {
        match self.0 & EXTENTS {
            VACANT | IN_WRITING => None,
            extents => Some(Extents::from_raw(extents)),
        }
    }

    /// Of the next datagram, whose record is being written: no other CPU reads it, or takes its place.
    #[inline(always)]
    pub const fn take(self) -> Self {
        Self((self.0 & !EXTENTS).wrapping_add(1 << COUNT) | IN_WRITING)
    }

    /// Of the same datagram, of which so much has passed.
    #[inline(always)]
    pub const fn with(self, extents: Extents) -> Self {
        Self(self.0 & !EXTENTS | extents.raw() & EXTENTS)
    }

    /// Nothing more of the datagram will pass.
    #[inline(always)]
    pub const fn vacate(self) -> Self {
        Self(self.0 & !EXTENTS | VACANT)
    }

    /// Whether both are of the same datagram.
    #[inline(always)]
    pub const fn is_same(self, other: Self) -> bool {
        self.0 >> COUNT == other.0 >> COUNT
    }

    #[inline(always)]
    const fn is_in_writing(self) -> bool {
        self.0 & EXTENTS == IN_WRITING
    }
}

/// What a record has when it is read.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Its word, read first.
    pub word: RecordState,
    /// Id of the network whose datagram it is: of the client, whichever way it goes.
    pub owner: u8,
    /// When the first fragment passed, in coarse time.
    pub began: u32,
}

impl Seen {
    /// Whether fragments may follow.
    #[inline(always)]
    const fn is_in_use(&self, now: u32) -> bool {
        self.word.extents().is_some() && is_fresh(self.began, now)
    }
}

/// Whether fragments may still follow a first one of that time.
#[inline(always)]
pub const fn is_fresh(began: u32, now: u32) -> bool {
    now.wrapping_sub(began) <= LIFETIME
}

/// The first place of the set of a datagram whose key has this hash.
#[inline(always)]
pub const fn first_place(hash: u32) -> u32 {
    hash % SETS * PLACES
}

/// How many places `owner` has of the set that begins at `first`.
#[inline(always)]
pub fn count(first: u32, owner: u8, now: u32, look: impl Fn(u32) -> Option<Seen>) -> u32 {
    let mut own = 0;
    for place in 0..PLACES {
        if let Some(seen) = look(first + place) {
            own += u32::from(seen.owner == owner && seen.is_in_use(now));
        }
    }
    own
}

/// How well a place with this record suits a new datagram of `owner`, which has `own` places of the set; 0 if
/// it cannot be taken. Best is its own oldest one if it has its share, then a vacant one, then its own one.
/// Where each is in use by others, of which there are four then, it is the oldest of theirs.
#[inline(always)]
pub fn score(seen: &Seen, owner: u8, own: u32, now: u32) -> u64 {
    let rank: u64 = match (seen.is_in_use(now), seen.owner == owner) {
        _ if seen.word.is_in_writing() => return 0,
        (true, true) if own >= SHARE => 4,
        (false, _) => 3,
        (true, true) => 2,
        (true, false) => 1,
    };
    rank << 32 | u64::from(now.wrapping_sub(seen.began))
}

/// The place with the highest `score` of the set that begins at `first`, if any can be taken; with its word from
/// before the score was made, from which it is to be taken: a swap that succeeds is of what was judged.
#[inline(always)]
pub fn choose(
    first: u32,
    word: impl Fn(u32) -> Option<RecordState>,
    score: impl Fn(u32) -> u64,
) -> Option<(u32, RecordState)> {
    let mut best = 0;
    let mut chosen = None;
    for place in first..first + PLACES {
        let word = word(place)?;
        let score = score(place);
        if score > best {
            best = score;
            chosen = Some((place, word));
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::{
        array,
        cell::RefCell,
        sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        thread,
    };

    use super::*;
    use crate::{fragment::Piece, maps::addr6::HashKey};

    const START: Extents = Extents::first(1480);

    /// The places of one set.
    struct Set(RefCell<Vec<Seen>>);

    impl Set {
        fn new() -> Self {
            let word = RecordState::from_raw(0);
            let vacant = Seen {
                word,
                owner: 0,
                began: 0,
            };
            Self(RefCell::new(vec![vacant; 8]))
        }

        fn begin(&self, owner: u8, now: u32) -> Option<usize> {
            let look = |place: u32| self.0.borrow().get(place as usize).copied();
            let own = count(0, owner, now, look);
            let score = |place| look(place).map_or(0, |seen| score(&seen, owner, own, now));
            let (place, word) = choose(0, |place| Some(look(place)?.word), score)?;
            let seen = Seen {
                word: word.take().with(START),
                owner,
                began: now,
            };
            let place = place as usize;
            assert!(self.0.borrow()[place].word == word);
            self.0.borrow_mut()[place] = seen;
            Some(place)
        }

        fn owners(&self) -> Vec<u8> {
            let seen = self.0.borrow();
            seen.iter().map(|seen| seen.owner).collect()
        }

        fn set_word(&self, place: usize, change: impl Fn(RecordState) -> RecordState) {
            let word = &mut self.0.borrow_mut()[place].word;
            *word = change(*word);
        }
    }

    #[test]
    fn a_network_has_its_share_of_a_set_and_no_more() {
        let set = Set::new();
        let places: Vec<_> = (1..=6).map(|now| set.begin(7, now).unwrap()).collect();
        assert_eq!(places[..2], [0, 1]);
        assert_eq!(places[2..], [0, 1, 0, 1], "its own oldest");
        assert_eq!(set.owners(), [7, 7, 0, 0, 0, 0, 0, 0]);
    }

    /// A flood of one network, and of three, in whatever order: no other network loses a datagram.
    #[test]
    fn no_network_takes_the_place_of_another() {
        let set = Set::new();
        let mine = set.begin(1, 1).unwrap();
        for now in 2..1000 {
            for flood in [2, 3, 4] {
                assert_ne!(set.begin(flood, now), Some(mine));
            }
        }
        let second = set.begin(1, 1000).unwrap();
        assert_ne!(second, mine);
        assert_eq!(set.0.borrow()[mine].began, 1);
        let mut owners = set.owners();
        owners.sort_unstable();
        assert_eq!(owners, [1, 1, 2, 2, 3, 3, 4, 4]);
        // A fifth one, where all have their share: the oldest goes, whose fragments are the least likely to come.
        assert_eq!(set.begin(5, 1001), Some(mine));
    }

    #[test]
    fn places_come_free_when_a_datagram_is_over_or_too_old() {
        let set = Set::new();
        for owner in [1, 2, 3, 4, 1, 2, 3, 4] {
            set.begin(owner, 10).unwrap();
        }
        set.set_word(6, RecordState::vacate);
        assert_eq!(set.begin(1, 11), Some(0), "it has its share");
        assert_eq!(set.begin(5, 12), Some(6));
        assert_eq!(
            set.begin(1, 10 + LIFETIME + 1),
            Some(1),
            "too old to be followed"
        );
        // What another CPU writes is left alone, also if that is all.
        for place in 0..8 {
            set.set_word(place, RecordState::take);
        }
        assert_eq!(set.begin(1, 20), None);
    }

    #[test]
    fn a_word_says_whose_turn_it_is() {
        let mut word = RecordState::from_raw(0);
        for _ in 0..300 {
            assert_eq!(word.extents(), None);
            let taken = word.take();
            assert!(taken.is_in_writing() && taken.extents().is_none());
            assert!(!taken.is_same(word));
            let begun = taken.with(START);
            assert_eq!(begun.extents(), Some(START));
            let more = Piece {
                from: 185,
                to: 8190,
                more: false,
            };
            let whole = START.add(&more).unwrap();
            assert_eq!(begun.with(whole).extents(), Some(whole));
            assert!(begun.with(whole).is_same(taken));
            word = begun.vacate();
            assert!(word.is_same(taken));
        }
    }

    #[test]
    fn sets_are_used_alike() {
        let key = HashKey([
            0x0123_4567_89ab_cdef,
            3 << 50 | 7,
            5 << 50 | 11,
            7 << 50 | 13,
            11 << 50 | 17,
        ]);
        let mut used = vec![0_u32; (SETS * PLACES) as usize];
        for number in 0..SETS * 16 {
            used[first_place(key.of([1, 2, number, 17])) as usize] += 1;
        }
        let most = used.iter().max().unwrap();
        let sets = used.iter().filter(|count| **count > 0).count();
        assert!(
            *most < 64 && sets > SETS as usize * 99 / 100,
            "{most} {sets}"
        );
        assert!(
            used.iter()
                .enumerate()
                .all(|(at, count)| at % 8 == 0 || *count == 0)
        );
    }

    /// Two that begin datagrams at one record, and two that follow: what is read between two looks at the word is
    /// of one datagram.
    #[test]
    fn what_is_read_is_of_one_datagram() {
        let record: [AtomicU64; 5] = array::from_fn(|_| AtomicU64::new(0));
        let [word, fields @ ..] = &record;
        let over = AtomicBool::new(false);
        let look = || RecordState::from_raw(word.load(SeqCst));
        let swap = |old: RecordState, new: RecordState| {
            word.compare_exchange(old.raw(), new.raw(), SeqCst, SeqCst)
                .is_ok()
        };
        thread::scope(|scope| {
            let readers = [0, 1].map(|_| {
                scope.spawn(|| {
                    let mut read = 0;
                    while read < 20_000 {
                        let before = look();
                        let found = fields.each_ref().map(|field| field.load(SeqCst));
                        if before.extents().is_some() && look().is_same(before) {
                            assert_eq!(found, [found[0]; 4]);
                            read += 1;
                        }
                    }
                })
            });
            for writer in [1_u64, 2] {
                let over = &over;
                scope.spawn(move || {
                    for number in (0..).take_while(|_| !over.load(SeqCst)) {
                        let old = look();
                        if old.is_in_writing() || !swap(old, old.take()) {
                            continue;
                        }
                        for field in fields {
                            field.store(number << 2 | writer, SeqCst);
                        }
                        let taken = look();
                        assert!(swap(taken, taken.with(START)), "no other flow's");
                    }
                });
            }
            let ends = readers.map(thread::ScopedJoinHandle::join);
            over.store(true, SeqCst);
            assert!(ends.iter().all(Result::is_ok));
        });
    }
}
