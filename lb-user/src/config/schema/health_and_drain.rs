//! The keys of how backends are checked, taken out and brought back: of pools, and of the parts of a
//! cluster for theirs.

use super::reader::{Mapping, Preset, text, whole_number};
use crate::config::{
    place::{At, Location, quote},
    problem::Findings,
    yaml::{Kind, Node},
};

/// What a pool and a part of a cluster can say.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct Care {
    /// None in it: there is no check, and not that of the defaults either.
    pub(in crate::config) health: Option<At<Option<RawHealth>>>,
    pub(in crate::config) drain_timeout: Option<At<String>>,
    pub(in crate::config) slow_start: Option<At<String>>,
    pub(in crate::config) min_up: Option<At<String>>,
    pub(in crate::config) below_min_up: Option<At<String>>,
}

impl Care {
    /// Where its keys stand.
    pub(in crate::config) fn places(&self) -> impl Iterator<Item = &Location> {
        let Self {
            health,
            drain_timeout,
            slow_start,
            min_up,
            below_min_up,
        } = self;
        let texts = [drain_timeout, slow_start, min_up, below_min_up];
        let texts = texts.into_iter().flatten().map(|at| &at.place);
        health.iter().map(|at| &at.place).chain(texts)
    }
}

/// The key `health`.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct RawHealth {
    pub(in crate::config) check: Option<RawCheck>,
    /// Whether somebody wrote what is asked.
    has_check: bool,
    pub(in crate::config) interval: Option<At<String>>,
    pub(in crate::config) timeout: Option<At<String>>,
    pub(in crate::config) rise: Option<At<u64>>,
    pub(in crate::config) fall: Option<At<u64>>,
    pub(in crate::config) fast_interval: Option<At<String>>,
    pub(in crate::config) flap_hold: Option<At<String>>,
    pub(in crate::config) on_dead: Option<At<String>>,
}

/// What is asked, with the keys that its kind has.
#[derive(Clone, Debug)]
pub(in crate::config) struct RawCheck {
    pub(in crate::config) kind: CheckKind,
    pub(in crate::config) path: Option<At<String>>,
    pub(in crate::config) host: Option<At<String>>,
    pub(in crate::config) status: Option<At<String>>,
    pub(in crate::config) sni: Option<At<String>>,
    pub(in crate::config) ca: Option<At<String>>,
    pub(in crate::config) port: Option<At<u64>>,
}

/// By which protocol is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum CheckKind {
    Tcp,
    Tls,
    Http,
    Https,
}

/// The keys of [`Care`].
pub(super) const KEYS: [&str; 5] = [
    "health",
    "drain_timeout",
    "slow_start",
    "min_up",
    "below_min_up",
];

/// The value of `health` for no check.
const NONE: &str = "none";

/// The kinds of checks, each with its keys.
const CHECKS: [(&str, CheckKind, &[&str]); 4] = [
    ("tcp", CheckKind::Tcp, &["port"]),
    ("tls", CheckKind::Tls, &["sni", "ca", "port"]),
    ("http", CheckKind::Http, &["path", "host", "status", "port"]),
    (
        "https",
        CheckKind::Https,
        &["path", "host", "status", "sni", "ca", "port"],
    ),
];

const HEALTH: [&str; 11] = [
    "tcp",
    "tls",
    "http",
    "https",
    "interval",
    "timeout",
    "rise",
    "fall",
    "fast_interval",
    "flap_hold",
    "on_dead",
];

/// Reads the keys of `keys`, or else those of the `defaults`, which have theirs in `care`. Of `health`
/// each key counts on its own; the kinds of checks are one.
pub(super) fn care<D>(
    keys: &Mapping<'_>,
    defaults: &Preset<D>,
    care: fn(&D) -> &Care,
    findings: &mut Findings,
) -> Care {
    let default = care(&defaults.value);
    let time = |key: &str, default: &Option<At<String>>, findings: &mut Findings| {
        own_or(keys, key, default, findings, text)
    };
    Care {
        health: if keys.is_absent("health") {
            // Defaults that do not say what to ask are for those who do.
            let of_all = default.health.clone();
            of_all.filter(|at| at.value.as_ref().is_none_or(|health| health.has_check))
        } else {
            let usual = default.health.as_ref().and_then(|at| at.value.clone());
            keys.optional("health", findings, |node, place, findings| {
                health(node, place, &usual.unwrap_or_default(), keys, findings)
            })
        },
        drain_timeout: time("drain_timeout", &default.drain_timeout, findings),
        slow_start: time("slow_start", &default.slow_start, findings),
        min_up: time("min_up", &default.min_up, findings),
        below_min_up: time("below_min_up", &default.below_min_up, findings),
    }
}

/// The own value, or else the `default`.
fn own_or<T: Clone>(
    keys: &Mapping<'_>,
    key: &str,
    default: &Option<T>,
    findings: &mut Findings,
    read: impl FnOnce(&Node, Location, &mut Findings) -> Option<T>,
) -> Option<T> {
    if keys.is_absent(key) {
        default.clone()
    } else {
        keys.optional(key, findings, read)
    }
}

fn health(
    node: &Node,
    place: Location,
    default: &RawHealth,
    outer: &Mapping<'_>,
    findings: &mut Findings,
) -> Option<At<Option<RawHealth>>> {
    if matches!(&node.kind, Kind::Scalar { text, .. } if text == NONE) {
        return Some(At { place, value: None });
    }
    let keys = Mapping::open(node, place.clone(), &HEALTH, findings)?;
    let own = CHECKS.iter().any(|(kind, ..)| !keys.is_absent(kind));
    let check = if own {
        check(&keys, findings)
    } else {
        default.check.clone()
    };
    let has_check = own || default.has_check;
    if !has_check && !outer.is_lenient() {
        let words = "found no check; expected one of tcp, tls, http, https";
        findings.add(&place, words);
    }
    let time = |key: &str, default: &Option<At<String>>, findings: &mut Findings| {
        own_or(&keys, key, default, findings, text)
    };
    let value = RawHealth {
        check,
        has_check,
        interval: time("interval", &default.interval, findings),
        timeout: time("timeout", &default.timeout, findings),
        rise: own_or(&keys, "rise", &default.rise, findings, whole_number),
        fall: own_or(&keys, "fall", &default.fall, findings, whole_number),
        fast_interval: time("fast_interval", &default.fast_interval, findings),
        flap_hold: time("flap_hold", &default.flap_hold, findings),
        on_dead: time("on_dead", &default.on_dead, findings),
    };
    Some(At {
        place,
        value: Some(value),
    })
}

/// The one check of `keys`: the first that is written.
fn check(keys: &Mapping<'_>, findings: &mut Findings) -> Option<RawCheck> {
    let written = CHECKS.iter().filter(|(key, ..)| keys.has(key));
    let mut written: Vec<_> = written
        .map(|check| (keys.place_of_key(check.0), check))
        .collect();
    written.sort_by_key(|(place, _)| (place.line, place.column));
    let mut first = None;
    for (place, (key, kind, known)) in written {
        let read = keys.optional(key, findings, |node, place, findings| {
            let keys = Mapping::open(node, place, known, findings)?;
            Some(RawCheck {
                kind: *kind,
                path: keys.optional("path", findings, text),
                host: keys.optional("host", findings, text),
                status: keys.optional("status", findings, text),
                sni: keys.optional("sni", findings, text),
                ca: keys.optional("ca", findings, text),
                port: keys.optional("port", findings, whole_number),
            })
        });
        match &first {
            None => first = Some((read, key, place)),
            Some((_, other, at)) => {
                let words = format!(
                    "a pool has one check, and {} is already there in {}",
                    quote(other),
                    findings.line(at, &place)
                );
                findings.add(&place, words);
            }
        }
    }
    first.and_then(|(read, ..)| read)
}
