//! Counters that never fall: what is read may wrap, begin anew with another id, or be read while it changes. Pure.

use std::collections::HashMap;

/// How wide a counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// It begins anew after 2^32 - 1.
    Bits32,
    /// It does not.
    Bits64,
}

/// `N` counters of each object, by its name, as long as it is followed.
#[derive(Debug)]
pub(super) struct Rising<const N: usize> {
    width: Width,
    objects: HashMap<String, Followed<N>>,
    round: u64,
}

/// The counters of an object.
#[derive(Clone, Copy, Debug)]
struct Followed<const N: usize> {
    /// Of the object that had the name: with another one, the counters are others.
    id: u32,
    raw: [u64; N],
    total: [u64; N],
    round: u64,
}

impl<const N: usize> Rising<N> {
    /// None yet.
    pub(super) fn new(width: Width) -> Self {
        Self {
            width,
            objects: HashMap::new(),
            round: 0,
        }
    }

    /// What the counters of an object have come to.
    pub(super) fn follow(&mut self, name: &str, id: u32, raw: [u64; N]) -> [u64; N] {
        let round = self.round;
        let Some(known) = self.objects.get_mut(name) else {
            let first = Followed {
                id,
                raw,
                total: raw,
                round,
            };
            self.objects.insert(name.to_owned(), first);
            return raw;
        };
        let is_same = known.id == id;
        for (index, now) in raw.into_iter().enumerate() {
            let added = match is_same {
                true => grown(known.raw[index], now, self.width),
                false => now,
            };
            known.total[index] = known.total[index].saturating_add(added);
        }
        known.raw = raw;
        known.id = id;
        known.round = round;
        known.total
    }

    /// Forgets the objects that were not followed since the last call.
    pub(super) fn forget_others(&mut self) {
        let round = self.round;
        self.objects.retain(|_, known| known.round == round);
        self.round += 1;
    }
}

/// By how much a counter has grown; one that has fallen has begun anew.
fn grown(before: u64, now: u64, width: Width) -> u64 {
    let grown = match width {
        Width::Bits32 => now.wrapping_sub(before) & u64::from(u32::MAX),
        Width::Bits64 => now.wrapping_sub(before),
    };
    let half = match width {
        Width::Bits32 => u64::from(u32::MAX / 2),
        Width::Bits64 => u64::MAX / 2,
    };
    if grown <= half { grown } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_of_32_bits_goes_on_after_its_end() {
        let mut rising = Rising::new(Width::Bits32);
        let end = u64::from(u32::MAX);
        assert_eq!(rising.follow("a", 1, [end - 1]), [end - 1]);
        assert_eq!(rising.follow("a", 1, [3]), [end + 4]);
        assert_eq!(rising.follow("a", 1, [3]), [end + 4]);
    }

    #[test]
    fn what_begins_anew_is_added() {
        for width in [Width::Bits32, Width::Bits64] {
            let mut rising = Rising::new(width);
            assert_eq!(rising.follow("a", 1, [50, 7]), [50, 7]);
            assert_eq!(rising.follow("a", 1, [2, 8]), [52, 8], "{width:?}");
            assert_eq!(rising.follow("a", 2, [60, 1]), [112, 9], "another id");
            assert_eq!(rising.follow("b", 2, [1, 1]), [1, 1], "another name");
        }
    }

    #[test]
    fn what_is_followed_no_more_is_forgotten() {
        let mut rising = Rising::new(Width::Bits64);
        rising.follow("a", 1, [5]);
        rising.follow("b", 2, [5]);
        rising.forget_others();
        rising.follow("a", 1, [6]);
        rising.forget_others();
        assert_eq!(rising.objects.len(), 1);
        assert_eq!(rising.follow("a", 1, [1]), [7]);
    }
}
