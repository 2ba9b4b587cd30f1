//! The lines on the host, changed by threads as data plane and userspace change them.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    vec::Vec,
};

use super::*;

/// Threads, ids of each, and rounds: few enough of the last for an interpreter.
const THREADS: u32 = 4;
const IDS: u32 = 16;
const ROUNDS: u64 = if cfg!(miri) { 40 } else { 30_000 };

/// The memory of the lines.
struct Memory(Vec<AtomicU32>);

impl Memory {
    fn new(lines: u32) -> Self {
        Self((0..lines * WORDS).map(|_| AtomicU32::new(0)).collect())
    }

    fn words(&self) -> impl Iterator<Item = TaggedId> {
        let words = self.0.iter().map(|word| word.load(Ordering::SeqCst));
        words.map(TaggedId::from_raw).filter(|word| word.is_flow())
    }
}

impl<'m> Lines for &'m Memory {
    type Line = &'m [AtomicU32];

    fn line(&self, number: u32) -> Option<Self::Line> {
        let first = (number * WORDS) as usize;
        self.0.get(first..first + WORDS as usize)
    }
}

impl Line for &[AtomicU32] {
    fn load(&self, place: u32) -> TaggedId {
        TaggedId::from_raw(self[place as usize].load(Ordering::SeqCst))
    }

    fn load_pair(&self, place: u32) -> WordPair {
        WordPair::new([self.load(place), self.load(place + 1)])
    }

    fn swap(&self, place: u32, old: TaggedId, new: TaggedId) -> bool {
        let word = &self[place as usize];
        let swapped = word.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst);
        swapped.is_ok()
    }

    fn add(&self, place: u32, amount: u32) {
        self[place as usize].fetch_add(amount, Ordering::SeqCst);
    }
}

/// The entries: what the flow of an id is, and of which key.
struct Flows(Vec<AtomicU32>);

const LIVE: u32 = 1;
const OVER: u32 = 2;

impl Flows {
    fn new(flows: u32) -> Self {
        Self((0..=flows).map(|_| AtomicU32::new(0)).collect())
    }

    fn set(&self, id: u32, key: u32, state: u32) {
        self.0[id as usize].store(key << 2 | state, Ordering::SeqCst);
    }

    /// What it was; it is none's then.
    fn claim(&self, id: u32) -> Option<u32> {
        let earlier = self.0[id as usize].swap(0, Ordering::SeqCst);
        (earlier != 0).then_some(earlier >> 2)
    }

    fn standing(&self, id: u32, key: u32) -> Option<Indexed> {
        match self.0[id as usize].load(Ordering::SeqCst) {
            found if found >> 2 != key => None,
            found if found & 3 == LIVE => Some(Indexed::Live),
            found if found & 3 == OVER => Some(Indexed::Over),
            _ => None,
        }
    }
}

/// The lines of a key, with the entries of all.
struct Keyed<'m> {
    lines: &'m Memory,
    flows: &'m Flows,
    places: Places,
    key: u32,
}

impl Keyed<'_> {
    fn find(&self) -> Option<u32> {
        find(&self.lines, self.places, |id| {
            self.flows.standing(id, self.key).is_some()
        })
    }

    fn remove(&self, id: u32) {
        self.change(self.places.word(id), TaggedId::FREE);
    }
}

impl Index for Keyed<'_> {
    fn other(&self, id: u32) -> Option<(u32, Indexed)> {
        let is_flow = |found| found != id && self.flows.standing(found, self.key).is_some();
        let found = find(&self.lines, self.places, is_flow)?;
        let standing = self.flows.standing(found, self.key);
        Some((found, standing.unwrap_or(Indexed::Over)))
    }

    fn change(&self, old: TaggedId, new: TaggedId) -> bool {
        change(&self.lines, self.places, old, new)
    }

    fn put(&self, word: TaggedId) -> bool {
        let is_left = |id: u32| self.flows.0[id as usize].load(Ordering::SeqCst) == 0;
        put(&self.lines, self.places, word, is_left)
    }
}

/// A hash as good as any.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Of so many lines behind those in front.
fn places(key: u32, behind: u32) -> Places {
    Places::new(mix(key.into()), behind.into(), front(behind).into())
}

#[test]
fn lines_are_two_fifths_full_at_most_and_two_at_least() {
    for (flows, expected) in [
        (0, [2, 2]),
        (10, [2, 2]),
        (12, [2, 2]),
        (13, [3, 2]),
        (57_344, [9_408, 4096]),
        (1_127_424, [184_968, 4096]),
    ] {
        assert_eq!(lines(flows), expected.iter().sum::<u32>(), "{flows}");
        let key = LineKey::new(HashKey::default(), flows);
        assert_eq!([key.behind, key.front], expected.map(u64::from));
    }
}

#[test]
fn a_key_has_a_line_in_front_and_two_anywhere() {
    for behind in [2, 3, MAX_FRONT, 270_001] {
        for key in 0..10_000 {
            let [near, first, second] = places(key, behind).lines;
            let front = front(behind);
            assert!(near < front && front <= behind);
            assert!(
                [first, second]
                    .iter()
                    .all(|line| (front..front + behind).contains(line))
            );
        }
    }
}

/// Clients' ports and addresses come in rows: lines must not.
#[test]
fn tuples_in_rows_are_spread_over_lines_and_tags() {
    const BEHIND: u32 = 1 << 10;
    let key = LineKey::new(
        HashKey([
            0x0123_4567_89ab_cdef,
            0xfedc_ba98_7654_3210,
            0x0f1e_2d3c_4b5a_6978,
            0x1122_3344_5566_7788,
            0x99aa_bbcc_ddee_ff01,
        ]),
        8 * WORDS * BEHIND / 21,
    );
    let mut of_line = [0; CHOICES].map(|_| vec![0u32; BEHIND as usize]);
    let mut of_tag = vec![0u32; 1 << TAG_BITS];
    for client in 0..64u32 {
        for port in 0..64u16 {
            let ends = u64::from((10u32 << 24 | client).swap_bytes());
            let rest = u64::from((40_000 + port).swap_bytes()) | 6 << 32;
            let places = key.places(PackedKey { ends, rest });
            for (of_line, line) in of_line.iter_mut().zip(places.lines) {
                of_line[(line % BEHIND) as usize] += 1;
            }
            of_tag[(places.tag >> ID_BITS) as usize] += 1;
        }
    }
    // Four are expected of a line and eight of a tag; 16 or more in a line: once in 10^5.
    for of_line in of_line {
        assert!(of_line.iter().all(|count| *count <= WORDS), "{of_line:?}");
        assert!(of_line.iter().filter(|count| **count == 0).count() < 60);
    }
    assert!(of_tag.iter().all(|count| *count <= 28), "{of_tag:?}");
}

/// Of lines that are a quarter full those in front are full, few keys stand in their last one, and each is found.
#[test]
fn a_quarter_full_overflows_seldom() {
    let count = if cfg!(miri) { 1 << 4 } else { 1 << 16 };
    let (memory, flows) = (Memory::new(count + front(count)), Flows::new(count * 4));
    let keyed = |key| Keyed {
        lines: &memory,
        flows: &flows,
        places: places(key, count),
        key,
    };
    let mut of_choice = [0; CHOICES];
    for id in 1..=count * 4 {
        let keyed = keyed(id);
        flows.set(id, id, LIVE);
        insert(&keyed, keyed.places, id).expect("room");
        let word = keyed.places.word(id);
        let stands = |number: &u32| {
            let line = (&memory).line(*number).expect("a line");
            (0..WORDS).any(|place| line.load(place) == word)
        };
        let choice = keyed.places.lines.iter().position(stands);
        of_choice[choice.expect("a word")] += 1;
    }
    let in_front = front(count) * WORDS;
    assert!(
        of_choice[0] > in_front.min(count * 4) * 9 / 10,
        "{of_choice:?}"
    );
    assert!(of_choice[2] < 20, "{of_choice:?}");
    for id in 1..=count * 4 {
        assert_eq!(keyed(id).find(), Some(id));
    }
    for id in 1..=count * 4 {
        keyed(id).remove(id);
    }
    assert_eq!(memory.words().count(), 0);
    let counts = memory.0.iter().map(|word| word.load(Ordering::SeqCst));
    assert_eq!(counts.max(), Some(0), "every count is back");
}

#[test]
fn full_lines_refuse_and_left_over_words_do_not() {
    let (memory, flows) = (Memory::new(4), Flows::new(80));
    let keyed = |key| Keyed {
        lines: &memory,
        flows: &flows,
        places: places(key, 2),
        key,
    };
    let insert_one = |id: &u32| {
        flows.set(*id, *id, LIVE);
        let keyed = keyed(*id);
        insert(&keyed, keyed.places, *id)
    };
    let refused = (1..80).find(|id| insert_one(id) == Err(NotIndexed::Full));
    let one_more = refused.expect("full lines");
    assert_eq!(memory.words().count(), one_more as usize - 1);
    let line = keyed(one_more).places.lines[0];
    let left = (&memory).line(line).expect("a line").load(5).id();
    assert_eq!(flows.claim(left), Some(left));
    assert_eq!(insert_one(&one_more), Ok(()));
    assert_eq!(
        (keyed(one_more).find(), keyed(left).find()),
        (Some(one_more), None)
    );
}

#[test]
fn a_flow_that_is_over_gives_its_place_and_a_live_one_does_not() {
    let (memory, flows) = (Memory::new(4), Flows::new(4));
    let keyed = Keyed {
        lines: &memory,
        flows: &flows,
        places: places(1, 2),
        key: 1,
    };
    flows.set(1, 1, LIVE);
    flows.set(2, 1, LIVE);
    assert_eq!(insert(&keyed, keyed.places, 1), Ok(()));
    assert_eq!(insert(&keyed, keyed.places, 2), Err(NotIndexed::Race));
    flows.set(1, 1, OVER);
    assert_eq!(insert(&keyed, keyed.places, 2), Ok(()));
    let words: Vec<_> = memory.words().map(TaggedId::id).collect();
    assert_eq!((words, keyed.find()), (vec![2], Some(2)));
}

/// Also where no other place is free.
#[test]
fn in_full_lines_a_flow_takes_the_place_of_the_last_one_of_its_key() {
    let (memory, flows) = (Memory::new(4), Flows::new(100));
    let keyed = |key| Keyed {
        lines: &memory,
        flows: &flows,
        places: places(key, 2),
        key,
    };
    let insert_one = |id: u32, key: u32| {
        flows.set(id, key, LIVE);
        let keyed = keyed(key);
        insert(&keyed, keyed.places, id)
    };
    assert_eq!(insert_one(1, 1), Ok(()));
    for id in 2..100 {
        let _full_or_not = insert_one(id, id);
    }
    assert_eq!(insert_one(100, 100), Err(NotIndexed::Full));
    flows.set(1, 1, OVER);
    assert_eq!(insert_one(100, 1), Ok(()));
    assert_eq!(keyed(1).find(), Some(100));
    assert!(memory.words().all(|word| word.id() != 1));
}

/// Threads that open and close flows of few keys, each with ids of its own: of one key there is one live flow that its
/// maker takes for indexed, it is found, and at the end no key has two words.
#[test]
fn of_one_key_there_is_one_live_flow() {
    const KEYS: u32 = 3;
    let (memory, flows) = (&Memory::new(4), &Flows::new(THREADS * IDS));
    let live: &Vec<AtomicU32> = &(0..KEYS).map(|_| AtomicU32::new(0)).collect();
    let keyed = |key| Keyed {
        lines: memory,
        flows,
        places: places(key, 2),
        key,
    };
    let round = |id: u32, key: u32| {
        if let Some(earlier) = flows.claim(id) {
            keyed(earlier).remove(id);
        }
        flows.set(id, key, LIVE);
        let keyed = keyed(key);
        if insert(&keyed, keyed.places, id).is_err() {
            flows.claim(id);
            return;
        }
        let others = live[key as usize].fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two live flows of key {key}");
        // One that is about to lose may stand before it for a moment.
        assert_eq!(find(&memory, keyed.places, |found| found == id), Some(id));
        live[key as usize].fetch_sub(1, Ordering::SeqCst);
        flows.set(id, key, OVER);
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut seed = u64::from(thread);
                for number in 0..ROUNDS {
                    seed = mix(seed ^ number);
                    let id = 1 + thread * IDS + (seed >> 32) as u32 % IDS;
                    round(id, (seed & 0xffff) as u32 % KEYS);
                }
            });
        }
    });
    for key in 0..KEYS {
        let of_key = |id: &u32| flows.standing(*id, key).is_some();
        let words: Vec<_> = memory.words().map(TaggedId::id).filter(of_key).collect();
        assert!(words.len() <= 1, "{key}: {words:?}");
    }
}
