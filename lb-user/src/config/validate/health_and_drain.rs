//! How backends are checked, taken out and brought back.

use std::{
    collections::BTreeMap, fmt::Display, ops::RangeInclusive, path::PathBuf, time::Duration,
};

use super::{
    limit,
    timeouts::{file, is_own},
};
use crate::config::{
    authorities::Authorities,
    duration::{self, NEVER, text},
    health::{Check, Get, Health, OnDead, Tls},
    list::Named,
    model::{BelowMinUp, DRAIN_TIMEOUT},
    names,
    number::number,
    place::{At, Location, quote},
    problem::Findings,
    schema::{CheckKind, LiteralPool, RawCheck, RawHealth},
};

/// What of a pool says how its backends are checked, taken out and brought back.
pub(super) struct Care {
    pub(super) health: Option<Health>,
    pub(super) drain_timeout: Option<Duration>,
    pub(super) slow_start: Duration,
    pub(super) min_up: u8,
    pub(super) below_min_up: BelowMinUp,
}

const HOUR: Duration = Duration::from_secs(60 * 60);

/// From one check to the next, and how long one may take.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;

/// How long a backend may be held back, and take to come back; 0 for not at all.
const HOLD: RangeInclusive<Duration> = Duration::ZERO..=HOUR;

/// How long a drain may take; with 0 flows end at once.
const DRAIN: RangeInclusive<Duration> = Duration::ZERO..=*duration::RANGE.end();

/// How many checks in a row may be required.
const IN_A_ROW: RangeInclusive<u32> = 1..=100;

/// The longest path with its query, in characters.
const MAX_PATH: usize = 1024;

/// Statuses of HTTP (RFC 9110 section 15).
const STATUS: RangeInclusive<u16> = 100..=599;

/// What a check has that does not say otherwise; times that are longer than its interval are as long.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3);
const FAST_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
const FLAP_HOLD_DEFAULT: Duration = Duration::from_secs(30);
const RISE_DEFAULT: u32 = 2;
const FALL_DEFAULT: u32 = 3;
const STATUS_DEFAULT: (u16, u16) = (200, 299);

/// What OpenShift requires of a load balancer of its API: a server whose `/readyz` changes is out, or back in,
/// within this time.
const OPENSHIFT: Duration = Duration::from_secs(30);

/// The CAs of the files that were read, by their paths: the file that is usual for all pools is read
/// once.
#[derive(Default)]
pub(super) struct Library(BTreeMap<PathBuf, Authorities>);

impl Library {
    fn authorities(&mut self, at: &At<String>, findings: &mut Findings) -> Option<Authorities> {
        let path = file(at, "/etc/lb/ca.pem", findings)?;
        let known = self
            .0
            .entry(path)
            .or_insert_with_key(|path| Authorities::read(path.clone()));
        if let Err(why) = known.roots() {
            findings.add_of_file(&at.place, format!("{} {why}", quote(&at.value)));
        }
        Some(known.clone())
    }
}

impl Care {
    pub(super) fn read(
        named: &Named<LiteralPool>,
        library: &mut Library,
        findings: &mut Findings,
    ) -> Self {
        let raw = &named.value.keys.care;
        let drain_timeout = match &raw.drain_timeout {
            Some(at) if at.value == NEVER => None,
            at => Some(time(at.as_ref(), DRAIN, findings).unwrap_or(DRAIN_TIMEOUT)),
        };
        let health = raw.health.as_ref().and_then(|At { place, value }| {
            let health = health(value.as_ref()?, library, findings)?;
            check_openshift(named, place, &health, findings);
            Some(health)
        });
        Self {
            health,
            drain_timeout,
            slow_start: time(raw.slow_start.as_ref(), HOLD, findings).unwrap_or_default(),
            min_up: min_up(raw.min_up.as_ref(), findings),
            below_min_up: one_of(
                raw.below_min_up.as_ref(),
                &[BelowMinUp::Refuse, BelowMinUp::All],
                findings,
            ),
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
    let RawHealth {
        interval,
        timeout,
        rise,
        fall,
        fast_interval,
        flap_hold,
        on_dead,
        ..
    } = raw;
    let interval = Interval::read(interval.as_ref(), findings);
    let timeout = interval.or_less("timeout", timeout.as_ref(), TIMEOUT_DEFAULT, findings);
    let fast_interval = interval.or_less(
        "fast_interval",
        fast_interval.as_ref(),
        FAST_INTERVAL_DEFAULT,
        findings,
    );
    let rise = limit(rise, IN_A_ROW, RISE_DEFAULT, findings);
    let fall = limit(fall, IN_A_ROW, FALL_DEFAULT, findings);
    let flap_hold = time(flap_hold.as_ref(), HOLD, findings).unwrap_or(FLAP_HOLD_DEFAULT);
    let all = [OnDead::None, OnDead::Drain, OnDead::Reset];
    let on_dead = one_of(on_dead.as_ref(), &all, findings);
    let raw_check = raw.check()?;
    let port = raw_check.port.is_some();
    let port = port.then(|| limit(&raw_check.port, 1..=u16::MAX, u16::MAX, findings));
    Some(Health {
        check: check(raw_check, library, findings),
        port,
        interval: interval.time,
        timeout,
        rise,
        fall,
        fast_interval,
        flap_hold,
        on_dead,
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
    fn read(raw: Option<&'r At<String>>, findings: &mut Findings) -> Self {
        let written = time(raw, INTERVAL, findings);
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
        raw: Option<&At<String>>,
        default: Duration,
        findings: &mut Findings,
    ) -> Duration {
        let written = time(raw, INTERVAL, findings);
        let (Some(time), Some(At { place, .. })) = (written, raw) else {
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

fn check(raw: &RawCheck, library: &mut Library, findings: &mut Findings) -> Check {
    match raw.kind {
        CheckKind::Tcp => Check::Tcp,
        CheckKind::Tls => Check::Tls(tls(raw, library, findings)),
        CheckKind::Http => Check::Http(get(raw, findings)),
        CheckKind::Https => Check::Https {
            tls: tls(raw, library, findings),
            get: get(raw, findings),
        },
    }
}

/// RFC 6066 section 3: the name of a server is no address.
fn tls(raw: &RawCheck, library: &mut Library, findings: &mut Findings) -> Tls {
    if let Some(At { place, value }) = &raw.sni {
        names::check_domain(value, place, findings);
    }
    let ca = raw.ca.as_ref();
    Tls {
        sni: raw.sni.as_ref().map(|at| at.value.clone()),
        ca: ca.and_then(|ca| library.authorities(ca, findings)),
    }
}

fn get(raw: &RawCheck, findings: &mut Findings) -> Get {
    let path = raw.path.as_ref();
    if let Some(At { place, value }) = path.filter(|at| !is_path(&at.value)) {
        let words = format!(
            "{} is not a path; expected one such as /readyz or /health?full, in at most {MAX_PATH} \
             characters of a URL and without a fragment",
            quote(value)
        );
        findings.add(place, words);
    }
    if let Some(At { place, value }) = &raw.host {
        names::check_authority(value, place, findings);
    }
    let written = raw.status.as_ref();
    let status = written.and_then(|At { place, value }| findings.check(place, status(value)));
    Get {
        path: path.map_or_else(|| "/".to_owned(), |at| at.value.clone()),
        host: raw.host.as_ref().map(|at| at.value.clone()),
        status: status.unwrap_or(STATUS_DEFAULT),
    }
}

/// A path with or without a query, as RFC 3986 sections 3.3 and 3.4 have them.
fn is_path(text: &str) -> bool {
    let digits = |rest: &[u8]| {
        let two = rest.get(..2);
        two.is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit))
    };
    let bytes = text.as_bytes();
    let legal = |(at, byte): (usize, &u8)| match byte {
        b'%' => digits(&bytes[at + 1..]),
        byte => byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?".contains(byte),
    };
    text.starts_with('/') && text.len() <= MAX_PATH && bytes.iter().enumerate().all(legal)
}

/// `200`, or `200-399`.
fn status(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let one = |text: &str| {
        let status = u16::try_from(number(text)?).ok()?;
        STATUS.contains(&status).then_some(status)
    };
    let (Some(first), Some(last)) = (one(first), one(last)) else {
        return Err(format!(
            "{} is not a status; expected {} to {}, or a range such as 200-399",
            quote(text),
            STATUS.start(),
            STATUS.end()
        ));
    };
    if first > last {
        return Err(format!("{first}-{last} ends before it starts"));
    }
    Ok((first, last))
}

fn min_up(raw: Option<&At<String>>, findings: &mut Findings) -> u8 {
    let Some(At { place, value }) = raw else {
        return 0;
    };
    let percent = value.strip_suffix('%').and_then(number);
    let percent = percent.and_then(|percent| u8::try_from(percent).ok());
    percent
        .filter(|percent| *percent <= 100)
        .unwrap_or_else(|| {
            let words = format!("found {}, expected 0% to 100%", quote(value));
            findings.add(place, words);
            0
        })
}

pub(super) fn time(
    raw: Option<&At<String>>,
    range: RangeInclusive<Duration>,
    findings: &mut Findings,
) -> Option<Duration> {
    let At { place, value } = raw?;
    findings.check(place, duration::parse_in(value, range))
}

/// The one of `all` that is written, or the default.
pub(super) fn one_of<T: Copy + Default + Display>(
    raw: Option<&At<String>>,
    all: &[T],
    findings: &mut Findings,
) -> T {
    let Some(At { place, value }) = raw else {
        return T::default();
    };
    let mut words: Vec<String> = all.iter().map(T::to_string).collect();
    if let Some(index) = words.iter().position(|word| word == value) {
        return all[index];
    }
    let last = words.pop().unwrap_or_default();
    let expected = match words.as_slice() {
        [] => last,
        words => format!("{} or {last}", words.join(", ")),
    };
    let words = format!("found {}, expected {expected}", quote(value));
    findings.add(place, words);
    T::default()
}
