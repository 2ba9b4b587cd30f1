//! Random choices that can be made again: a failure names its seed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable that makes a run choose as an earlier one did.
pub const SEED: &str = "LB_TEST_SEED";

/// Choices that follow from a seed.
#[derive(Clone, Debug)]
pub struct Dice {
    seed: u64,
    state: u64,
}

impl Dice {
    /// With the seed that [`SEED`] gives, or else with another one each time.
    pub fn from_environment() -> Self {
        let given = std::env::var(SEED).ok().and_then(|text| text.parse().ok());
        Self::new(given.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.unwrap_or_default().as_secs() << 20 | u64::from(std::process::id())
        }))
    }

    /// With this seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// What to set [`SEED`] to for the same choices.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// A time from zero to `most`.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        most.mul_f64(f64::from(self.roll()) / f64::from(u32::MAX))
    }

    /// A number below `most`, which is not 0.
    pub fn below(&mut self, most: u32) -> u32 {
        self.roll() % most
    }

    /// One of two.
    pub fn coin(&mut self) -> bool {
        self.roll() & 1 == 1
    }

    /// SplitMix64, of which the upper half.
    fn roll(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((word ^ word >> 31) >> 32).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_choices_and_another_one_others() {
        let second = Duration::from_secs(1);
        let rolls = |seed| {
            let mut dice = Dice::new(seed);
            (0..8).map(|_| dice.up_to(second)).collect::<Vec<_>>()
        };
        assert_eq!(rolls(7), rolls(7));
        assert_ne!(rolls(7), rolls(8));
        assert!(rolls(7).iter().all(|time| *time <= second));
    }
}
