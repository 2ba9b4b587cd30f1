//! Claims that nothing comes of. An entry is claimed for microseconds, while XDP writes its fields,
//! and nothing can stop it in between; so one that stays claimed is reported, once, and not touched.

use std::{collections::BTreeMap, mem, time::Duration};

use lb_common::conntrack::FlowState;

use super::idle::{Ticks, age, ticks};

/// How long is too long.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(60);
/// Claims that are watched at a time.
const MAX_CLAIMS: usize = 1024;

/// An entry that was found claimed.
#[derive(Clone, Copy, Debug)]
struct Claim {
    word: FlowState,
    since: Ticks,
    reported: bool,
}

/// The claims of the last pass, and those of this one so far.
#[derive(Debug, Default)]
pub(super) struct Claims {
    before: BTreeMap<u32, Claim>,
    now: BTreeMap<u32, Claim>,
}

impl Claims {
    /// Notes an entry that is claimed. Whether it is to be reported.
    pub(super) fn note(&mut self, id: u32, word: FlowState, now: Ticks) -> bool {
        let known = self.before.get(&id).filter(|claim| claim.word == word);
        let mut claim = known.copied().unwrap_or(Claim {
            word,
            since: now,
            reported: false,
        });
        let report = !claim.reported && age(now, claim.since) >= ticks(CLAIM_TIMEOUT);
        claim.reported |= report;
        if self.now.len() < MAX_CLAIMS {
            self.now.insert(id, claim);
        }
        report
    }

    /// The pass is over: what it has not found claimed is not any more.
    pub(super) fn end_pass(&mut self) {
        self.before = mem::take(&mut self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u32 = 7;

    /// Passes that find the entry claimed with `words`, every half minute; which of them report it.
    fn reported(words: &[Option<FlowState>]) -> Vec<usize> {
        let mut claims = Claims::default();
        let half = ticks(CLAIM_TIMEOUT / 2);
        let mut reported = Vec::new();
        let mut now = Ticks::MAX - half;
        for (pass, word) in words.iter().enumerate() {
            if word.is_some_and(|word| claims.note(ID, word, now)) {
                reported.push(pass);
            }
            claims.end_pass();
            now = now.wrapping_add(half);
        }
        reported
    }

    #[test]
    fn a_claim_that_stays_is_reported_once() {
        let claim = Some(FlowState::default().claim(false));
        assert_eq!(reported(&[claim; 8]), [2]);
    }

    #[test]
    fn claims_that_come_and_go_are_not() {
        let claim = Some(FlowState::default().claim(false));
        let next = Some(FlowState::default().claim(false).close().claim(false));
        assert_eq!(reported(&[claim, claim, next, next]), [0usize; 0]);
        assert_eq!(reported(&[claim, claim, None, claim, claim]), [0usize; 0]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut claims = Claims::default();
        for id in 0..2 * u32::try_from(MAX_CLAIMS).unwrap() {
            claims.note(id, FlowState::default().claim(false), 0);
        }
        assert_eq!(claims.now.len(), MAX_CLAIMS);
    }
}
