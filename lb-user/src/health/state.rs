//! The verdict: what one check after the other makes of a backend, and when the next one is due.
//!
//! Pure: time and chance come in as arguments.

use std::time::{Duration, Instant};

use super::{HealthVerdict, Standing};
use crate::config::Health;

/// Departures that are remembered one by one, and for how long; one more in that time, and a backend
/// flaps. Also how long it must stay up for one of them to be forgotten.
const DEPARTURES: u8 = 2;
const MEMORY: Duration = Duration::from_secs(300);
/// Flaps from which on a backend is held back.
const HELD_FROM: u32 = DEPARTURES as u32 + 1;
/// The longest that it is held back, but for a longer `flap_hold`.
const MAX_HOLD: Duration = Duration::from_secs(300);
/// First checks are spread over this time, or over an interval if that is less.
const FIRST_SPREAD: Duration = Duration::from_secs(1);
/// The part of an interval that a check may be early or late, so that checks that began together do
/// not go on together.
const JITTER: f64 = 0.1;

/// The course of a backend: its standing, and what it takes to change it.
///
/// Its first check decides alone. From then on it leaves [`HealthVerdict::Up`] after `fall` checks in a row that
/// were not good, changes between [`HealthVerdict::NotReady`] and [`HealthVerdict::Dead`] after `fall` in a row that
/// found the other, and comes back after `rise` good ones. A backend that leaves the third time within five
/// minutes, and each time after that, comes back only after a time of nothing but good ones, which doubles
/// from one time to the next.
#[derive(Debug)]
pub(super) struct Course {
    rise: u32,
    fall: u32,
    interval: Duration,
    fast_interval: Duration,
    flap_hold: Duration,
    standing: Standing,
    /// What the checks against the verdict found; of those against `Up`, the last one.
    said: HealthVerdict,
    /// When the first of them ended.
    since: Instant,
    /// Up to when what it has forgotten of its flaps, being up, is settled.
    settled: Instant,
    /// When it left `Up`, the latest departures, as long as they may make it flap.
    departures: Vec<Instant>,
}

impl Course {
    /// Goes on from what is known at `now`.
    pub(super) fn new(health: &Health, saved: &Standing, now: Instant) -> Self {
        let known = saved.flaps.min(u32::from(DEPARTURES));
        let good_for = Duration::from_millis(saved.good_ms);
        Self {
            rise: health.rise,
            fall: health.fall,
            interval: health.interval,
            fast_interval: health.fast_interval,
            flap_hold: health.flap_hold,
            standing: saved.clone(),
            // What those against the verdict have found is known of good ones only; against `Up` all still
            // count.
            said: match saved.good_ms {
                0 => HealthVerdict::Unknown,
                _ => HealthVerdict::Up,
            },
            since: now.checked_sub(good_for).unwrap_or(now),
            settled: now,
            departures: (0..known).map(|_| now).collect(),
        }
    }

    /// Where it stands.
    pub(super) const fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Notes a check that ended `now` with the verdict `said`. Returns whether that is another verdict than
    /// before.
    pub(super) fn note(&mut self, said: HealthVerdict, now: Instant) -> bool {
        self.forget(now);
        let verdict = self.standing.verdict;
        if said == verdict {
            self.standing.against = 0;
            self.standing.good_ms = 0;
            return false;
        }
        // Whatever is bad counts against `Up`; the others are left one way or the other.
        let goes_on = verdict == HealthVerdict::Up || said == self.said;
        if self.standing.against == 0 || !goes_on {
            self.standing.against = 0;
            self.since = now;
        }
        self.standing.against = self.standing.against.saturating_add(1);
        self.said = said;
        let good_for = match said {
            HealthVerdict::Up => now.saturating_duration_since(self.since),
            _ => Duration::ZERO,
        };
        self.standing.good_ms = u64::try_from(good_for.as_millis()).unwrap_or(u64::MAX);
        let is_decided = match (verdict, said) {
            (HealthVerdict::Unknown, _) => true,
            (_, HealthVerdict::Up) => self.standing.against >= self.rise && good_for >= self.hold(),
            _ => self.standing.against >= self.fall,
        };
        if is_decided {
            self.turn(said, now);
        }
        is_decided
    }

    /// Whether the next check that is not good would be enough for another verdict than `Up`.
    pub(super) const fn is_about_to_leave(&self) -> bool {
        let Standing {
            verdict, against, ..
        } = &self.standing;
        matches!(verdict, HealthVerdict::Up) && against.saturating_add(1) >= self.fall
    }

    /// Whether the next check without an answer would make it [`HealthVerdict::Dead`], where something else is known.
    pub(super) const fn is_about_to_die(&self) -> bool {
        let against = match (self.standing.verdict, self.said) {
            (HealthVerdict::Unknown | HealthVerdict::Dead, _) => return false,
            (HealthVerdict::NotReady, HealthVerdict::Unknown | HealthVerdict::Up) => 0,
            _ => self.standing.against,
        };
        against.saturating_add(1) >= self.fall
    }

    /// When the first check begins; `chance` is at least 0 and less than 1.
    pub(super) fn first(&self, now: Instant, chance: f64) -> Instant {
        now + self.interval.min(FIRST_SPREAD).mul_f64(chance)
    }

    /// When the check after the one from `start` to `end` begins; `chance` as in [`Self::first`].
    pub(super) fn next(&self, start: Instant, end: Instant, chance: f64) -> Instant {
        let period = match self.standing.against {
            0 => self.interval,
            _ => self.fast_interval,
        };
        let spread = (1.0 - JITTER) + 2.0 * JITTER * chance;
        end.max(start + period.mul_f64(spread))
    }

    /// How long it must be good without a break to come back.
    fn hold(&self) -> Duration {
        let Some(beyond) = self.standing.flaps.checked_sub(HELD_FROM) else {
            return Duration::ZERO;
        };
        let doubled = 2_u32.saturating_pow(beyond);
        let longest = MAX_HOLD.max(self.flap_hold);
        self.flap_hold.saturating_mul(doubled).min(longest)
    }

    fn turn(&mut self, verdict: HealthVerdict, now: Instant) {
        if self.standing.verdict == HealthVerdict::Up {
            self.depart(now);
        }
        self.standing.verdict = verdict;
        self.standing.against = 0;
        self.standing.good_ms = 0;
        self.settled = now;
    }

    /// Counts a departure. Below the number that makes it flap, only those of the last minutes count.
    fn depart(&mut self, now: Instant) {
        self.departures
            .retain(|&at| now.saturating_duration_since(at) < MEMORY);
        if self.standing.flaps < HELD_FROM {
            self.standing.flaps = u32::try_from(self.departures.len()).unwrap_or(HELD_FROM);
        }
        self.standing.flaps = self.standing.flaps.saturating_add(1);
        self.departures.push(now);
        let old = self.departures.len().saturating_sub(DEPARTURES.into());
        self.departures.drain(..old);
    }

    /// Forgets one flap for each five minutes that it has stayed up.
    fn forget(&mut self, now: Instant) {
        if self.standing.verdict != HealthVerdict::Up {
            return;
        }
        while self.standing.flaps > 0 && now.saturating_duration_since(self.settled) >= MEMORY {
            self.standing.flaps -= 1;
            self.settled += MEMORY;
        }
    }
}

#[cfg(test)]
mod tests;
