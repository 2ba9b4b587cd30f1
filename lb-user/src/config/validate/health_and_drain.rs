//! How backends are checked, taken out and brought back: what of it a pool has, and what does not fit together.

use std::time::Duration;

use super::timeouts::is_own;
use crate::config::{
    authorities::Library,
    duration::text,
    health::{Health, OnDead},
    list::Named,
    model::{BelowMinUp, DRAIN_TIMEOUT},
    place::{At, Location},
    problem::Findings,
    schema::{LiteralPool, RawHealth},
};

/// What of a pool says how its backends are checked, taken out and brought back.
pub(super) struct Care {
    pub(super) health: Option<Health>,
    pub(super) drain_timeout: Option<Duration>,
    pub(super) slow_start: Duration,
    pub(super) min_up: u8,
    pub(super) below_min_up: BelowMinUp,
}

/// What a check has that does not say otherwise; times that are longer than its interval are as long.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);
const FAST_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
const FLAP_HOLD_DEFAULT: Duration = Duration::from_secs(30);
const RISE_DEFAULT: u32 = 2;
const FALL_DEFAULT: u32 = 3;

/// What OpenShift requires of a load balancer of its API: a server whose `/readyz` changes is out, or back in,
/// within this time.
const OPENSHIFT: Duration = Duration::from_secs(30);

impl Care {
    pub(super) fn read(
        named: &Named<LiteralPool>,
        library: &mut Library,
        findings: &mut Findings,
    ) -> Self {
        let raw = &named.value.keys.care;
        let health = raw.health.as_ref().and_then(|At { place, value }| {
            let health = health(value.as_ref()?, library, findings)?;
            check_openshift(named, place, &health, findings);
            Some(health)
        });
        Self {
            health,
            drain_timeout: written(&raw.drain_timeout, Some(DRAIN_TIMEOUT)),
            slow_start: written(&raw.slow_start, Duration::ZERO),
            min_up: written(&raw.min_up, 0),
            below_min_up: written(&raw.below_min_up, BelowMinUp::default()),
        }
    }
}

fn written<T: Copy>(raw: &Option<At<T>>, default: T) -> T {
    raw.as_ref().map_or(default, |at| at.value)
}

/// Warns of checks that are too slow for an API of OpenShift.
fn check_openshift(
    named: &Named<LiteralPool>,
    place: &Location,
    health: &Health,
    findings: &mut Findings,
) {
    let (down, up) = (health.worst_case_down(), health.worst_case_up());
    if down.max(up) > OPENSHIFT {
        let words = format!(
            "a backend of pool {} that fails is out after at most {}, and one that recovers is back \
             after at most {}; OpenShift expects at most {} of an API",
            named.name,
            text(down),
            text(up),
            text(OPENSHIFT)
        );
        findings.warn(named.blame(place), "slow-check", words);
    }
}

fn health(raw: &RawHealth, library: &mut Library, findings: &mut Findings) -> Option<Health> {
    let interval = Interval::read(raw.interval.as_ref());
    let timeout = interval.or_less("timeout", raw.timeout.as_ref(), TIMEOUT_DEFAULT, findings);
    let fast_interval = interval.or_less(
        "fast_interval",
        raw.fast_interval.as_ref(),
        FAST_INTERVAL_DEFAULT,
        findings,
    );
    let check = raw.checks.first()?;
    Some(Health {
        check: check.check(library, findings),
        port: check.port.as_ref().map(|at| at.value),
        interval: interval.time,
        timeout,
        rise: written(&raw.rise, RISE_DEFAULT),
        fall: written(&raw.fall, FALL_DEFAULT),
        fast_interval,
        flap_hold: written(&raw.flap_hold, FLAP_HOLD_DEFAULT),
        on_dead: written(&raw.on_dead, OnDead::default()),
    })
}

/// The interval of checks, which other times must not exceed.
struct Interval<'r> {
    time: Duration,
    /// Where it was written, readable or not.
    place: Option<&'r Location>,
    /// Whether it is what was meant.
    known: bool,
}

impl<'r> Interval<'r> {
    fn read(raw: Option<&'r At<Option<Duration>>>) -> Self {
        let written = raw.and_then(|at| at.value);
        Self {
            time: written.unwrap_or(INTERVAL_DEFAULT),
            place: raw.map(|at| &at.place),
            known: raw.is_none() || written.is_some(),
        }
    }

    /// The time `key`, which is no longer than this one.
    fn or_less(
        &self,
        key: &str,
        raw: Option<&At<Option<Duration>>>,
        default: Duration,
        findings: &mut Findings,
    ) -> Duration {
        let Some(&At {
            ref place,
            value: Some(time),
        }) = raw
        else {
            return default.min(self.time);
        };
        if self.known && time > self.time {
            // Reported at the entry's own key, not at the default that it is in conflict with.
            let mut places = [Some(place), self.place].into_iter().flatten();
            let place = places.find(|place| is_own(place)).unwrap_or(place);
            let origin = match self.place {
                Some(at) => format!(" in {}", findings.line(at, place)),
                None => ", which is the default".to_owned(),
            };
            let words = format!(
                "a {key} of {} is longer than the interval of {}{origin}; expected at most as long",
                text(time),
                text(self.time)
            );
            findings.add(place, words);
        }
        time
    }
}
