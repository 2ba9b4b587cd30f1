//! The request index beside a model of it: flows that begin, end and leave, in any order.

use std::{cell::Cell, collections::BTreeMap};

use lb_common::maps::flow_line::{
    self, Index, Indexed, Line, Lines, NotIndexed, Places, TaggedId, WORDS, WordPair,
};

use crate::each_input;

/// Lines: one in front and two behind, so that some keys share all of theirs.
const LINES: usize = 3;
/// Keys, and ids: more than there are words.
const KEYS: u8 = 8;
const IDS: u32 = 64;

/// What is in the memory of the maps: the words, and the flow of each id.
struct Maps {
    words: Vec<Cell<TaggedId>>,
    flows: Vec<Cell<Option<(u8, Indexed)>>>,
}

/// The words of one line.
struct OneLine<'m>(&'m [Cell<TaggedId>]);

impl<'m> Lines for &'m Maps {
    type Line = OneLine<'m>;

    fn line(&self, number: u32) -> Option<OneLine<'m>> {
        let mut lines = self.words.chunks(WORDS as usize);
        lines.nth(number as usize).map(OneLine)
    }
}

impl Line for OneLine<'_> {
    fn load(&self, place: u32) -> TaggedId {
        self.0[place as usize].get()
    }

    fn load_pair(&self, place: u32) -> WordPair {
        WordPair::new([self.load(place), self.load(place + 1)])
    }

    fn swap(&self, place: u32, old: TaggedId, new: TaggedId) -> bool {
        let word = &self.0[place as usize];
        let is_old = word.get() == old;
        if is_old {
            word.set(new);
        }
        is_old
    }

    fn add(&self, place: u32, amount: u32) {
        let count = &self.0[place as usize];
        let sum = count.get().raw().wrapping_add(amount);
        count.set(TaggedId::from_raw(sum));
    }
}

struct Keyed<'m> {
    maps: &'m Maps,
    key: u8,
    places: Places,
}

impl<'m> Keyed<'m> {
    fn new(maps: &'m Maps, key: u8) -> Self {
        // Two tags, and all halves of both lines behind.
        let hash = u64::from(key & 1) | u64::from(key) << 30 | u64::from(key) << 61;
        Self {
            maps,
            key,
            places: Places::new(hash, 2, 1),
        }
    }

    fn flow(&self, id: u32) -> Option<Indexed> {
        let (key, flow) = self.maps.flows.get(id as usize)?.get()?;
        (key == self.key).then_some(flow)
    }
}

impl Index for Keyed<'_> {
    fn other(&self, id: u32) -> Option<(u32, Indexed)> {
        let is_flow = |found| found != id && self.flow(found).is_some();
        let found = flow_line::find(&self.maps, self.places, is_flow)?;
        Some((found, self.flow(found)?))
    }

    fn change(&self, old: TaggedId, new: TaggedId) -> bool {
        flow_line::change(&self.maps, self.places, old, new)
    }

    fn put(&self, word: TaggedId) -> bool {
        let is_left = |id: u32| {
            let flow = self.maps.flows.get(id as usize);
            flow.is_none_or(|flow| flow.get().is_none())
        };
        flow_line::put(&self.maps, self.places, word, is_left)
    }
}

/// A key's flow is found until it leaves, a second one is refused while it lives, and takes its place afterwards.
#[test]
fn flow_lines() {
    each_input(|_, input| {
        let maps = Maps {
            words: vec![Cell::default(); LINES * WORDS as usize],
            flows: vec![Cell::new(None); IDS as usize],
        };
        let mut model: BTreeMap<u8, u32> = BTreeMap::new();
        let mut refusals = 0;
        for &[what, id] in input.as_chunks().0 {
            let (key, id) = (what % KEYS, 1 + u32::from(id) % (IDS - 1));
            let step = what / KEYS % 4;
            let entry = &maps.flows[id as usize];
            match (step, entry.get()) {
                // The id of a flow that is over is the next one's; or it is given back, and the word may be left over.
                (0 | 1, Some((earlier, Indexed::Over))) => {
                    let keyed = Keyed::new(&maps, earlier);
                    if step == 0 {
                        keyed.change(keyed.places.word(id), TaggedId::FREE);
                    }
                    entry.set(None);
                    model.retain(|_, indexed| *indexed != id);
                }
                (2, Some((key, Indexed::Live))) => entry.set(Some((key, Indexed::Over))),
                (_, None) => {
                    entry.set(Some((key, Indexed::Live)));
                    let is_live = model
                        .get(&key)
                        .is_some_and(|id| Keyed::new(&maps, key).flow(*id) == Some(Indexed::Live));
                    let keyed = Keyed::new(&maps, key);
                    match flow_line::insert(&keyed, keyed.places, id) {
                        Ok(()) => {
                            assert!(!is_live, "two live flows of {key}");
                            model.insert(key, id);
                        }
                        Err(NotIndexed::Race) => {
                            assert!(is_live, "no live flow of {key}");
                            entry.set(None);
                        }
                        Err(NotIndexed::Full) => {
                            entry.set(None);
                            refusals += 1;
                        }
                    }
                }
                _ => {}
            }
            for key in 0..KEYS {
                let keyed = Keyed::new(&maps, key);
                let found = keyed.other(0).map(|(id, _)| id);
                assert_eq!(found, model.get(&key).copied(), "{key}");
            }
        }
        assert_eq!(refusals, 0, "{KEYS} words are no line");
        !model.is_empty()
    });
}
