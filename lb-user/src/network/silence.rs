//! Which neighbours do not answer. Pure.
//!
//! The kernel gives an entry up (`NUD_FAILED`) after all probes of a neighbour that it knew, or after the one
//! solicitation for one that it did not know. One solicitation may be lost, so only the second in a row counts.

use std::{collections::BTreeSet, net::IpAddr};

/// Where the neighbours of a network stand.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Those that do not answer.
    silent: BTreeSet<IpAddr>,
    /// Those whose entry has a MAC: it is given up after several probes.
    known: BTreeSet<IpAddr>,
    /// Those that one solicitation was in vain for.
    doubted: BTreeSet<IpAddr>,
}

impl Silence {
    /// Whether a neighbour is known not to answer.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.silent.contains(&address)
    }

    /// The neighbours that do not answer.
    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.silent.iter().copied()
    }

    /// Forgets all neighbours but these.
    pub(super) fn retain(&mut self, targets: &BTreeSet<IpAddr>) {
        for addresses in [&mut self.silent, &mut self.known, &mut self.doubted] {
            addresses.retain(|address| targets.contains(address));
        }
    }

    /// The entry of a neighbour was removed: we have it resolved anew, or another process did so.
    pub(super) fn note_removal(&mut self, address: IpAddr) {
        self.known.remove(&address);
    }

    /// The entry of a neighbour has a MAC. `answers`: because the neighbour has just shown that it is there;
    /// an entry that has been valid for a while shows nothing.
    pub(super) fn note_valid(&mut self, address: IpAddr, answers: bool) {
        self.known.insert(address);
        if answers {
            self.doubted.remove(&address);
            self.silent.remove(&address);
        }
    }

    /// The kernel has given up the entry of a neighbour; returns whether the neighbour is silent from now on.
    pub(super) fn note_failure(&mut self, address: IpAddr) -> bool {
        let was_known = self.known.remove(&address);
        let was_doubted = !self.doubted.insert(address);
        (was_known || was_doubted) && self.silent.insert(address)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn a_neighbour_that_was_known_is_silent_at_once() {
        let mut silence = Silence::default();
        silence.note_valid(NODE, true);
        assert!(silence.note_failure(NODE));
        assert!(silence.has(NODE));
        assert!(!silence.note_failure(NODE), "it is known already");
        assert_eq!(silence.all().collect::<Vec<_>>(), [NODE]);
    }

    #[test]
    fn one_lost_solicitation_is_no_silence() {
        let mut silence = Silence::default();
        assert!(!silence.note_failure(NODE));
        silence.note_valid(NODE, true);
        silence.note_removal(NODE);
        assert!(!silence.note_failure(NODE), "it has answered since");
        assert!(silence.note_failure(NODE));
    }

    #[test]
    fn only_an_answer_ends_it() {
        let mut silence = Silence::default();
        silence.note_valid(NODE, true);
        silence.note_failure(NODE);
        silence.note_valid(NODE, false);
        assert!(silence.has(NODE), "another station spoke of it");
        silence.note_valid(NODE, true);
        assert!(!silence.has(NODE));
    }

    #[test]
    fn what_is_no_target_any_more_is_forgotten() {
        let mut silence = Silence::default();
        silence.note_valid(NODE, true);
        silence.note_failure(NODE);
        silence.retain(&BTreeSet::from([NODE]));
        assert!(silence.has(NODE));
        silence.retain(&BTreeSet::new());
        assert!(!silence.has(NODE));
        assert!(!silence.note_failure(NODE), "it begins anew");
    }
}
