//! The coarse time of a peer, by that of this box: both count the same units, from starts of their own. Pure.

/// Units that the clocks may drift apart between two samples, which are up to a second old: 0.1 %, more than any clock does.
const DRIFT: u32 = 1;

/// How far the clocks are apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerClock {
    /// What is added to the peer's time. None before the first sample.
    offset: Option<u32>,
}

impl PeerClock {
    /// The peer said `theirs`, and it came at `ours`: later than it was said, so the least difference is the truest.
    pub fn note(&mut self, theirs: u32, ours: u32) {
        let sample = ours.wrapping_sub(theirs);
        self.offset = Some(match self.offset {
            Some(known) if sample.wrapping_sub(known).cast_signed() > 0 => {
                let later = sample.wrapping_sub(known);
                known.wrapping_add(later.min(DRIFT))
            }
            _ => sample,
        });
    }

    /// The time here at which it was that time there.
    pub fn here(self, theirs: u32) -> u32 {
        theirs.wrapping_add(self.offset.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_on_its_way_is_not_later_than_it_was() {
        let mut clock = PeerClock::default();
        clock.note(100, 1_003);
        assert_eq!(clock.here(90), 993);
        // A second behind: the link was full.
        clock.note(200, 2_103);
        assert_eq!(clock.here(190), 1_094);
        clock.note(300, 1_202);
        assert_eq!(clock.here(290), 1_192);
        // The clock there is slower.
        for second in 1..=100 {
            clock.note(300 + second * 1000, 1_202 + second * 1000 + second / 2);
        }
        assert_eq!(clock.here(100_300), 101_252);
    }

    #[test]
    fn both_clocks_wrap() {
        let mut clock = PeerClock::default();
        clock.note(u32::MAX - 1, 5);
        assert_eq!(clock.here(3), 10);
        clock.note(3, u32::MAX);
        assert_eq!(clock.here(3), u32::MAX);
    }
}
