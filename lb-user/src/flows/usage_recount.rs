//! Flows in full use counted anew from the entries, so that what a crash has lost is found. Pure.
//!
//! Flows come and go while they are counted, so one count proves nothing. The usage is read between
//! two looks at all entries. Where both saw the same flows, those were live in between, all of them
//! and no others, and the usage must be their number. Where the flows changed, the usage is wrong
//! only if both looks have it wrong, the same way and by far.

pub(super) mod pass;

use lb_common::{conntrack::FlowState, maps::usage};

/// What a look at all entries saw, by the indexes of [`lb_common::maps::usage`], or of
/// [`lb_common::maps::quota`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Up to the last one that something was noted at: most have none.
    tallies: Vec<FlowTally>,
    most: usize,
}

/// Flows of one network, service or quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FlowTally {
    live: u32,
    /// Sum of the scattered ids, generations and states, of flows that are over as well: had a flow come
    /// and gone in between, it would be another one.
    print: u64,
}

impl Look {
    /// Before the first entry; `most` is the length of the map.
    pub const fn new(most: usize) -> Self {
        Self {
            tallies: Vec::new(),
            most,
        }
    }

    /// Notes an entry: a flow, or what is left of one.
    pub fn note(&mut self, network: u16, service: u16, id: u32, word: FlowState) {
        for index in [usage::network(network), usage::service(service)] {
            self.note_at(index, id, word);
        }
    }

    fn at(&self, index: usize) -> FlowTally {
        self.tallies.get(index).copied().unwrap_or_default()
    }

    /// Notes an entry that counts at this index.
    pub fn note_at(&mut self, index: u32, id: u32, word: FlowState) {
        let state = word.generation() << 3 | word.state() as u32;
        let print = scatter(u64::from(id) << 32 | u64::from(state));
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if index < self.most && index >= self.tallies.len() {
            self.tallies.resize(index + 1, FlowTally::default());
        }
        if let Some(seen) = self.tallies.get_mut(index) {
            seen.live += u32::from(word.in_use());
            seen.print = seen.print.wrapping_add(print);
        }
    }
}

/// A bijection that spreads every bit (the finaliser of SplitMix64).
const fn scatter(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// What is to be added to each index whose value was wrong `between` the two looks.
pub fn corrections(first: &Look, between: &[u32], second: &Look) -> Vec<(u32, i32)> {
    let wrong = |(place, (index, &value))| {
        let amount = correction(&first.at(place), value, &second.at(place));
        (amount != 0).then_some((index, amount))
    };
    let all = (0..).zip((0..).zip(between));
    all.filter_map(wrong).collect()
}

fn correction(first: &FlowTally, value: u32, second: &FlowTally) -> i32 {
    // A value below zero has wrapped, as the data plane's additions do.
    let missing = |seen: &FlowTally| seen.live.wrapping_sub(value).cast_signed();
    if first == second {
        return missing(first);
    }
    let (before, after) = (missing(first), missing(second));
    let smaller = if before.unsigned_abs() < after.unsigned_abs() {
        before
    } else {
        after
    };
    // Flows that came and went while they were counted.
    let noise = first.live.max(second.live) / 8 + first.live.abs_diff(second.live) + 64;
    let agree = before.signum() == after.signum();
    if agree && smaller.unsigned_abs() > noise {
        smaller
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use lb_common::conntrack::State;

    use super::*;

    const NETWORK: u16 = 2;
    const SERVICE: u16 = 5;

    fn live(generation: u32) -> FlowState {
        let before = FlowState::from_raw((generation - 1) << 10);
        in_state(before.claim(false).publish(), State::Established)
    }

    fn in_state(word: FlowState, state: State) -> FlowState {
        FlowState::from_raw(word.raw() & !7 | state as u32)
    }

    fn look(flows: impl IntoIterator<Item = (u32, u32)>) -> Look {
        let mut look = Look::new(usize::try_from(usage::entries(10)).unwrap());
        for (id, generation) in flows {
            look.note(NETWORK, SERVICE, id, live(generation));
        }
        look
    }

    /// The usage with these values for the network and the service.
    fn usage_of(network: u32, service: u32) -> Vec<u32> {
        let mut values = vec![0; usize::try_from(usage::entries(10)).unwrap()];
        values[usize::from(NETWORK)] = network;
        values[usize::try_from(usage::service(SERVICE)).unwrap()] = service;
        values
    }

    #[test]
    fn what_two_looks_agree_on_is_right() {
        let flows = || look((0..100).map(|id| (id, 1)));
        assert_eq!(corrections(&flows(), &usage_of(100, 100), &flows()), []);
        assert_eq!(
            corrections(&flows(), &usage_of(101, 98), &flows()),
            [(2, -1), (usage::service(SERVICE), 2)]
        );
        let none = look([]);
        assert_eq!(
            corrections(&none, &usage_of(u32::MAX, 0), &none),
            [(2, 1)],
            "a value below zero"
        );
    }

    #[test]
    fn flows_that_come_and_go_are_no_error() {
        let before = look((0..100).map(|id| (id, 1)));
        for after in [
            look((0..101).map(|id| (id, 1))),
            look((0..99).map(|id| (id, 1))),
            look((0..99).map(|id| (id, 1)).chain([(99, 2)])),
            look((0..99).map(|id| (id, 1)).chain([(500, 1)])),
        ] {
            for value in [99, 100, 101, 103] {
                assert_eq!(corrections(&before, &usage_of(value, value), &after), []);
            }
        }
    }

    /// It is in the usage, but neither look saw it live.
    #[test]
    fn nor_is_a_flow_that_lived_between_the_looks_only() {
        let look = |closed: Option<FlowState>| {
            let mut look = look((0..100).map(|id| (id, 1)));
            if let Some(word) = closed {
                look.note(NETWORK, SERVICE, 200, word);
            }
            look
        };
        let before = look(Some(live(6).close()));
        let after = look(Some(live(7).close()));
        assert_eq!(corrections(&before, &usage_of(101, 101), &after), []);
        assert_eq!(corrections(&look(None), &usage_of(101, 101), &after), []);
        let still = [(2, -1), (usage::service(SERVICE), -1)];
        assert_eq!(corrections(&after, &usage_of(101, 101), &after), still);
    }

    #[test]
    fn what_is_wrong_by_far_is_corrected_in_spite_of_them() {
        let before = look((0..1000).map(|id| (id, 1)));
        let after = look((10..1020).map(|id| (id, 1)));
        assert_eq!(
            corrections(&before, &usage_of(3000, 0), &after),
            [(2, -1990), (usage::service(SERVICE), 1000)]
        );
        assert_eq!(corrections(&before, &usage_of(1100, 900), &after), []);
    }

    /// A handshake and its end may both lie between the looks.
    #[test]
    fn nor_is_one_that_was_half_open_before_and_is_over_afterwards() {
        let look = |word: FlowState| {
            let mut look = look((0..100).map(|id| (id, 1)));
            look.note(NETWORK, SERVICE, 200, word);
            look
        };
        let half_open = in_state(live(7), State::Replied);
        let looks = [half_open, live(7).close()].map(look);
        assert_eq!(looks[0].at(2).live, 100, "it does not count");
        assert_eq!(corrections(&looks[0], &usage_of(101, 101), &looks[1]), []);
    }

    #[test]
    fn an_unknown_service_is_not_counted() {
        let mut look = Look::new(300);
        look.note(1, 60_000, 1, live(1));
        assert_eq!(look.at(1).live, 1);
    }
}
