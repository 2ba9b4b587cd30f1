//! Which flows have been doubted for a pass. Pure.
//!
//! Nearly every FIN behind data in flight is acknowledged within a round trip: its flow needs no probe.

use std::{collections::HashSet, mem};

use lb_common::conntrack::FlowState;

/// The doubted flows of this pass and of the one before, by id and generation.
#[derive(Debug, Default)]
pub struct Doubts {
    before: HashSet<(u32, u32)>,
    now: HashSet<(u32, u32)>,
}

impl Doubts {
    /// Notes a flow that is doubted; whether it was so in the pass before.
    pub fn is_old(&mut self, id: u32, word: FlowState) -> bool {
        let flow = (id, word.generation());
        self.now.insert(flow);
        self.before.contains(&flow)
    }

    /// Ends a pass.
    pub fn end_pass(&mut self) {
        self.before = mem::take(&mut self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::idle::words::*, *};

    #[test]
    fn a_doubt_is_old_in_the_pass_after_the_one_that_saw_it() {
        let mut doubts = Doubts::default();
        let word = established().doubted();
        let next = word.close().claim(false).publish();
        for (id, word, olds) in [
            (7, word, [false, true, true]),
            (8, word, [false, true, true]),
        ] {
            let mut doubts = Doubts::default();
            for old in olds {
                assert_eq!(doubts.is_old(id, word), old);
                doubts.end_pass();
            }
            doubts.end_pass();
            assert!(!doubts.is_old(id, word), "it was settled in between");
        }
        assert!(!doubts.is_old(7, word) && !doubts.is_old(7, word));
        doubts.end_pass();
        assert!(!doubts.is_old(7, next), "another flow");
    }
}
