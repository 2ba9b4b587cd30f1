//! How backends answer SYNs, in this process's memory: counted by the data plane, read here.
#![expect(
    unsafe_code,
    reason = "the numbers are shared with the kernel's programs"
)]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Result;
use lb_common::maps::backend_answers::BackendAnswers;
use memmap2::MmapRaw;

use super::flows::map;

/// Bytes from one value of the mapped array to the next.
const STRIDE: usize = size_of::<BackendAnswers>();
/// Words of eight bytes of a value: two counts, a count and the time, and the clients.
const WORDS: usize = 3;
const _: () = assert!(STRIDE == WORDS * size_of::<u64>());

/// A value as it is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnswerWords([u64; WORDS]);

/// The mapped array `BACKEND_ANSWERS`.
#[derive(Clone, Debug)]
pub struct AnswerTable {
    memory: Arc<MmapRaw>,
}

impl AnswerTable {
    /// Maps the array that is pinned in `folder`; none of a data plane that is older than it is.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        const NAME: &str = "BACKEND_ANSWERS";
        if !folder.join(NAME).exists() {
            return Ok(None);
        }
        let memory = map(folder, NAME, STRIDE)?;
        Ok(Some(Self { memory }))
    }

    /// Of the backend with this id, as it is now; nothing beyond the end.
    pub fn get(&self, backend_id: u32) -> BackendAnswers {
        self.words(backend_id).answers()
    }

    /// The same, to be compared.
    pub fn words(&self, backend_id: u32) -> AnswerWords {
        AnswerWords([0, 1, 2].map(|index| {
            let word = self.word(backend_id, index);
            word.map_or(0, |word| word.load(Ordering::Relaxed))
        }))
    }

    /// Forgets its clients so far, which it gives.
    pub fn take_clients(&self, backend_id: u32) -> u64 {
        let word = self.word(backend_id, 2);
        word.map_or(0, |word| word.swap(0, Ordering::Relaxed))
    }

    fn word(&self, backend_id: u32, index: usize) -> Option<&AtomicU64> {
        let value = usize::try_from(backend_id).ok()?.checked_mul(STRIDE)?;
        let place = value.checked_add(index * size_of::<u64>())?;
        if place >= self.memory.len() {
            return None;
        }
        let word = self.memory.as_mut_ptr().wrapping_add(place);
        // SAFETY: the word is inside the mapping, which lives as long as `self`, and aligned to eight bytes; the
        // kernel's side changes its halves by atomic operations and single stores.
        Some(unsafe { AtomicU64::from_ptr(word.cast()) })
    }
}

impl AnswerWords {
    /// What they say.
    pub fn answers(self) -> BackendAnswers {
        let Self([first, second, clients]) = self;
        let [first, second] = [first, second].map(halves);
        BackendAnswers {
            unanswered: first[0],
            refused: first[1],
            redispatched: second[0],
            last_answer: second[1],
            clients,
        }
    }

    /// The same without clients.
    #[must_use]
    pub const fn without_clients(self) -> Self {
        let Self([first, second, _]) = self;
        Self([first, second, 0])
    }
}

/// The two numbers of four bytes of a word, in the order of memory.
const fn halves(word: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    [
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::flows::twin, *};

    #[test]
    fn a_value_is_read_field_by_field() {
        let memory = twin::memory(2 * STRIDE);
        let table = AnswerTable { memory };
        let set = |index, [low, high]: [u32; 2]| {
            let bytes = [low.to_ne_bytes(), high.to_ne_bytes()].concat();
            let word = u64::from_ne_bytes(bytes.try_into().unwrap());
            table.word(1, index).unwrap().store(word, Ordering::Relaxed);
        };
        set(0, [1, 2]);
        set(1, [3, 4]);
        set(2, [5, 0]);
        let wanted = BackendAnswers {
            unanswered: 1,
            refused: 2,
            redispatched: 3,
            last_answer: 4,
            clients: 5,
        };
        assert_eq!(table.get(1), wanted);
        assert_eq!(table.get(0), BackendAnswers::default());
        assert_eq!(table.get(2), BackendAnswers::default(), "beyond the end");
        assert_eq!((table.take_clients(1), table.take_clients(1)), (5, 0));
    }
}
