//! The keys of how backends are checked, taken out and brought back: of pools, and of the parts of a
//! cluster for theirs.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    declare::{Declared as _, section},
    kinds::{All, Inside, Kind, kinds},
    mapping::Mapping,
    values::{parsed, time_in, time_or_none, within, word},
};
use crate::config::{
    check::Checks,
    duration::{self, NEVER},
    health::OnDead,
    model::BelowMinUp,
    number::number,
    place::{At, Location, quote},
    problem::Findings,
    yaml,
};

section! {
    /// How backends are checked, taken out and brought back, of a pool and of a part of a cluster.
    struct Care = "care" {
        /// How backends are checked, from a SNAT address of their network, with `ha` from `checks_from`: by one kind of check, or `none`. A backend that does not answer, or refuses, is dead; one with another answer is not ready.
        /// Neither gets new flows, nor does one before its first check.
        optional health: Health => "no checks, and all backends count as up",
        /// How long the flows of a backend that is drained, or not in the file any more, may go on before they get a
        /// reset: 0s to 30d, or `never`.
        optional drain_timeout: DrainTime = "5m",
        /// How long a backend that comes back takes to its full share of new flows, in steps of 5%: 0s to 1h.
        optional slow_start: HoldTime = "0s",
        /// The part of the backends that must be up.
        optional min_up: Percentage = "0%",
        /// What becomes of new flows below `min_up`, and with no backend up: `refuse`, or `all` (they go to any backend
        /// that the operator has not taken out, whatever its checks say).
        optional below_min_up: BelowMinUpWord = "refuse",
    }
}

impl Care {
    /// Where those of its keys stand that are written.
    pub(in crate::config) fn places(&self) -> impl Iterator<Item = &Location> {
        let Self {
            health,
            drain_timeout,
            slow_start,
            min_up,
            below_min_up,
        } = self;
        let health = health.iter().map(|at| &at.place);
        health
            .chain(drain_timeout.iter().map(|at| &at.place))
            .chain(slow_start.iter().map(|at| &at.place))
            .chain(min_up.iter().map(|at| &at.place))
            .chain(below_min_up.iter().map(|at| &at.place))
            .filter(|place| place.is_written())
    }
}

section! {
    /// What is checked, by one kind of check, and what its answers mean.
    struct RawHealth = "health" {
        optional checks: All<Checks>,
        /// From one check to the next, 100ms to 1h; starts are spread by a tenth.
        optional interval: CheckTime = "5s",
        /// How long a check may take, 100ms to `interval`.
        optional timeout: CheckTime = "3s",
        /// How many good checks in a row bring a backend back, 1 to 100. The very first check decides alone. `lb check`
        /// warns where that, or `fall`, may take more than the 30s that OpenShift expects of an API.
        optional rise: InARow = "2",
        /// How many bad checks in a row take a backend out, 1 to 100.
        optional fall: InARow = "3",
        /// The interval while checks differ from the known state, 100ms to `interval`.
        optional fast_interval: CheckTime = "1s",
        /// How long a backend that has come and gone too often must be good without a break, 0s to 1h.
        optional flap_hold: HoldTime = "30s",
        /// What becomes of the flows of a dead backend: `reselect` (those that it has not answered end without a reset,
        /// so that what the client repeats goes to another backend; the others stay), `drain` (also, and the others
        /// end after `drain_timeout`), `reset` (also, and of the others both ends get a reset at once) or `none`
        /// (all stay).
        optional on_dead: OnDeadWord = "reselect",
    }
}

const HOUR: Duration = Duration::from_secs(60 * 60);

/// From one check to the next, and how long one may take.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=HOUR;

/// How long a backend may be held back, and take to come back; 0 for not at all.
const HOLD: RangeInclusive<Duration> = Duration::ZERO..=HOUR;

/// How long a drain may take; with 0 flows end at once.
const DRAIN: RangeInclusive<Duration> = Duration::ZERO..=*duration::RANGE.end();

kinds! {
    /// None in it: it could not be read.
    CheckTime("time"): Option<At<Option<Duration>>> = time_or_none(INTERVAL);
    HoldTime("time"): Option<At<Duration>> = time_in(HOLD);
    /// None in it: for ever.
    DrainTime("time"): Option<At<Option<Duration>>> = parsed(drain_time);
    Percentage("percentage"): Option<At<u8>> = parsed(percentage);
    /// How many checks in a row may be required.
    InARow("number"): Option<At<u32>> = within(1..=100);
    BelowMinUpWord("word"): Option<At<BelowMinUp>> = word(&[BelowMinUp::Refuse, BelowMinUp::All]);
    OnDeadWord("word"): Option<At<OnDead>> = word(&[OnDead::Reselect, OnDead::Drain, OnDead::Reset, OnDead::None]);
}

fn drain_time(text: &str) -> Result<Option<Duration>, String> {
    if text == NEVER {
        return Ok(None);
    }
    duration::parse_in(text, DRAIN).map(Some)
}

fn percentage(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').and_then(number);
    let percent = percent.and_then(|percent| u8::try_from(percent).ok());
    percent
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| format!("found {}, expected 0% to 100%", quote(text)))
}

/// The value of `health` for no check.
const NONE: &str = "none";

/// A mapping, or `none`: then there is no check, and not that of the defaults either. Of the mapping each key
/// counts on its own; the checks are one.
#[derive(Debug)]
pub(in crate::config) struct Health;

impl Kind for Health {
    type Field = Option<At<Option<RawHealth>>>;
    const NAME: &'static str = "mapping, or `none`";
    const INSIDE: Inside = Inside::Keys(&[RawHealth::SECTION]);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field {
        if keys.is_absent(key) {
            // Defaults without a check are for the pools that have one.
            let usual = Self::field(keys.defaults_of(key)?, key, &mut Findings::new(""));
            return usual.filter(|at| {
                at.value
                    .as_ref()
                    .is_none_or(|health| health.checks.is_written)
            });
        }
        let defaults = keys.defaults_inside(key, RawHealth::SECTION);
        keys.own(key, findings, |node, place, findings| {
            if matches!(&node.kind, yaml::Kind::Scalar { text, .. } if text == NONE) {
                return Some(At { place, value: None });
            }
            let own = keys.inside(key, RawHealth::SECTION, findings)?;
            let health = RawHealth::read(&own.with_defaults(defaults.as_ref()), findings);
            if !health.checks.is_written && !keys.is_default() {
                let words = format!("found no check; expected one of {}", Checks::keys());
                findings.add(&place, words);
            }
            refuse_more_checks(&health, findings);
            Some(At {
                place,
                value: Some(health),
            })
        })
    }
}

fn refuse_more_checks(health: &RawHealth, findings: &mut Findings) {
    if let Some(((first, at), others)) = health.checks.written().split_first() {
        for (_, other) in others {
            let words = format!(
                "a pool has one check, and {} is already there in {}",
                quote(first),
                findings.line(&at.place, &other.place)
            );
            findings.add(&other.place, words);
        }
    }
}
