//! Samples of dropped and refused packets: the latest one for each reason and CPU.

use crate::pod::pod_struct;

/// Words of four bytes of a frame that a sample keeps.
pub const SAMPLE_WORDS: usize = 16;
/// Reasons that have a place.
pub const REASONS: u32 = 56;
/// Shortest time between two samples in one place, in units of [`super::flow::TIME_SHIFT`]: about
/// 16 ms, so that a flood costs a look at the clock and nothing else.
pub const INTERVAL: u32 = 16;

pod_struct! {
    /// A sampled packet, at the index of its reason. 80 bytes.
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
