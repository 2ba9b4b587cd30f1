//! Samples of dropped and refused packets: the latest one for each network and reason.

use super::MAX_NETWORKS;
use crate::pod::pod_struct;

/// Words of four bytes of a frame that a sample keeps.
pub const SAMPLE_WORDS: usize = 16;
/// Reasons that have a place.
pub const REASONS: u32 = 56;
/// Entries of the map `DROP_SAMPLES`, which is 1.1 MB for all CPUs.
pub const ENTRIES: u32 = MAX_NETWORKS * REASONS;
/// Shortest time between two samples in one place, in units of [`super::flow::TIME_SHIFT`]: about
/// 16 ms, so that a flood costs a look at the clock and nothing else.
pub const INTERVAL: u32 = 16;

pod_struct! {
    /// A sampled packet, at the [`index`] of its network and reason. 80 bytes.
    pub struct Sample {
        /// When: as `Flow::last_seen`; 0 for a place that was never taken.
        pub seen: u32,
        /// Bytes of the whole frame.
        pub length: u32,
        /// Id of its network.
        pub network: u16,
        /// Number of the hook.
        pub hook: u16,
        /// Zero.
        pub _reserved: u32,
        /// Its first bytes, as native loads; zeros behind its last whole word.
        pub words: [u32; SAMPLE_WORDS],
    }
}

/// Index in the map `DROP_SAMPLES` of the latest packet of a network that was dropped for the reason with this number;
/// beyond the end for a reason that has no place.
#[inline(always)]
pub const fn index(network: u32, reason: u32) -> u32 {
    if reason >= REASONS {
        return ENTRIES;
    }
    network % MAX_NETWORKS * REASONS + reason
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::DropReason;

    #[test]
    fn each_reason_of_each_network_has_a_place_of_its_own() {
        let mut taken = vec![false; ENTRIES as usize];
        for network in 0..MAX_NETWORKS {
            for &reason in DropReason::ALL {
                let place = &mut taken[index(network, reason as u32) as usize];
                assert!(!*place, "{network} {reason:?}");
                *place = true;
            }
        }
        assert_eq!(index(3, REASONS), ENTRIES);
        assert_eq!(index(MAX_NETWORKS - 1, REASONS - 1), ENTRIES - 1);
    }
}
