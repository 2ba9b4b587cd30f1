//! How backends are checked, taken out and brought back: what of it a pool has, and what does not fit together.

use std::time::Duration;

use super::timeouts::is_own;
use crate::config::{
    authorities::Library,
    duration::text,
    health::Health,
    list::Named,
    model::BelowMinUp,
    place::{At, Location, value_of},
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
            drain_timeout: value_of(&raw.drain_timeout),
            slow_start: value_of(&raw.slow_start),
            min_up: value_of(&raw.min_up),
            below_min_up: value_of(&raw.below_min_up),
        }
    }
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
    let interval = raw.interval.as_ref();
    let timeout = or_less("timeout", raw.timeout.as_ref(), interval, findings);
    let fast_interval = or_less(
        "fast_interval",
        raw.fast_interval.as_ref(),
        interval,
        findings,
    );
    let check = raw.checks.first()?;
    Some(Health {
        check: check.check(library, findings),
        port: check.port.as_ref().map(|at| at.value),
        interval: value_of(&raw.interval).unwrap_or_default(),
        timeout,
        rise: value_of(&raw.rise),
        fall: value_of(&raw.fall),
        fast_interval,
        flap_hold: value_of(&raw.flap_hold),
        on_dead: value_of(&raw.on_dead),
    })
}

/// A time of a check that is no longer than its interval; one that is not written is as long, if it were longer.
fn or_less(
    key: &str,
    time: Option<&At<Option<Duration>>>,
    interval: Option<&At<Option<Duration>>>,
    findings: &mut Findings,
) -> Duration {
    let (Some(time), Some(interval)) = (time, interval) else {
        return Duration::ZERO;
    };
    // What could not be read is reported.
    let (Some(value), Some(most)) = (time.value, interval.value) else {
        return time.value.unwrap_or_default();
    };
    if value > most && time.place.is_written() {
        // Reported at the entry's own key, not at the default that it is in conflict with.
        let mut places = [&time.place, &interval.place].into_iter();
        let own = places.find(|place| place.is_written() && is_own(place));
        let place = own.unwrap_or(&time.place);
        let origin = if interval.place.is_written() {
            format!(" in {}", findings.line(&interval.place, place))
        } else {
            ", which is the default".to_owned()
        };
        let words = format!(
            "a {key} of {} is longer than the interval of {}{origin}; expected at most as long",
            text(value),
            text(most)
        );
        findings.add(place, words);
        return value;
    }
    value.min(most)
}
