//! The keys of how backends are checked, taken out and brought back: of pools, and of the parts of a
//! cluster for theirs.

use super::{
    declare::{Declared as _, section},
    kinds::{Choice, File, Inside, Kind, Number, Percentage, Port, Text, Time},
    mapping::{Mapping, Scope},
};
use crate::config::{
    place::{At, Location, quote},
    problem::Findings,
    yaml,
};

section! {
    /// How backends are checked, taken out and brought back, of a pool and of a part of a cluster.
    struct Care = "care" {
        /// How backends are checked, from a SNAT address of their network: by one of `tcp`, `tls`, `http` and `https`,
        /// or `none`. A backend that does not answer, or refuses, is dead; one with another answer is not ready.
        /// Neither gets new flows, nor does one before its first check.
        optional health: Health = "no checks, and all backends count as up",
        /// How long the flows of a backend that is drained, or not in the file any more, may go on before they get a
        /// reset: 0s to 30d, or `never`.
        optional drain_timeout: Time = "5m",
        /// How long a backend that comes back takes to its full share of new flows, in steps of 5%: 0s to 1h.
        optional slow_start: Time = "0s",
        /// The part of the backends that must be up.
        optional min_up: Percentage = "0%",
        /// What becomes of new flows below `min_up`, and with no backend up: `refuse`, or `all` (they go to any backend
        /// that the operator has not taken out, whatever its checks say).
        optional below_min_up: Choice = "`refuse`",
    }
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

section! {
    /// What is checked, by one of `tcp`, `tls`, `http` and `https`, and what its answers mean.
    struct RawHealth = "health" {
        /// A check that a connection can be made.
        optional tcp: Check = "none",
        /// A check that a TLS handshake can be done.
        optional tls: Check = "none",
        /// A check that a GET request is answered with an expected status. Redirects are not followed.
        optional http: Check = "none",
        /// The same by TLS.
        optional https: Check = "none",
        /// From one check to the next, 100ms to 1h; starts are spread by a tenth.
        optional interval: Time = "5s",
        /// How long a check may take, 100ms to `interval`.
        optional timeout: Time = "3s",
        /// How many good checks in a row bring a backend back, 1 to 100. The very first check decides alone. `lb check`
        /// warns where that, or `fall`, may take more than the 30s that OpenShift expects of an API.
        optional rise: Number = "2",
        /// How many bad checks in a row take a backend out, 1 to 100.
        optional fall: Number = "3",
        /// The interval while checks differ from the known state, 100ms to `interval`.
        optional fast_interval: Time = "1s",
        /// How long a backend that has come and gone too often must be good without a break, 0s to 1h.
        optional flap_hold: Time = "30s",
        /// What becomes of the flows of a dead backend: `none` (they stay), `drain` (they end after
        /// `drain_timeout`) or `reset` (both ends get a reset at once).
        optional on_dead: Choice = "`none`",
    }
    also(keys) {
        /// Whether a check is written, here or in the defaults.
        has_check: bool = !CHECKS.iter().all(|(check, _)| keys.lacks(check)),
    }
}

section! {
    /// A check, with the keys of its kind.
    struct RawCheck = "check" {
        /// The path, with its query.
        optional[only(http, https)] path: Text = "`/`",
        /// The Host header.
        optional[only(http, https)] host: Text = "the address and port",
        /// The expected status, or a range of them such as `200-299`.
        optional[only(http, https)] status: Text = "200-299",
        /// The name in the ClientHello.
        optional[only(tls, https)] sni: Text = "no name",
        /// A PEM file with the CAs of which one must have signed the certificate, which is for `sni` or the address. It
        /// is read with the configuration.
        optional[only(tls, https)] ca: File = "any certificate",
        /// The port of the check.
        optional port: Port = "that of the backend",
    }
    also(_keys) {
        kind: CheckKind = CheckKind::Tcp,
    }
}

/// The protocol of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::config) enum CheckKind {
    #[default]
    Tcp,
    Tls,
    Http,
    Https,
}

/// The checks by their keys.
const CHECKS: [(&str, CheckKind); 4] = [
    ("tcp", CheckKind::Tcp),
    ("tls", CheckKind::Tls),
    ("http", CheckKind::Http),
    ("https", CheckKind::Https),
];

/// The value of `health` for no check.
const NONE: &str = "none";

impl RawHealth {
    /// The checks that are written, with the places of their keys; one is meant.
    fn checks(&self) -> Vec<(&'static str, &At<Option<RawCheck>>)> {
        let checks = [&self.tcp, &self.tls, &self.http, &self.https];
        let checks = CHECKS.iter().zip(checks);
        let mut checks: Vec<_> = checks
            .filter_map(|((key, _), check)| Some((*key, check.as_ref()?)))
            .collect();
        checks.sort_by_key(|(_, at)| (at.place.line, at.place.column));
        checks
    }

    /// The first check.
    pub(in crate::config) fn check(&self) -> Option<&RawCheck> {
        self.checks().first()?.1.value.as_ref()
    }
}

/// A check; those of the defaults are for a mapping that has none.
#[derive(Debug)]
pub(in crate::config) struct Check;

impl Kind for Check {
    type Field = Option<At<Option<RawCheck>>>;
    const NAME: &'static str = "mapping";
    const INSIDE: Inside = Inside::Keys(&[RawCheck::SECTION]);

    fn field(keys: &Mapping<'_>, key: &str, findings: &mut Findings) -> Self::Field {
        let is_absent = CHECKS.iter().all(|(check, _)| keys.is_absent(check));
        if let Some(defaults) = keys.defaults_of(key).filter(|_| is_absent) {
            return Self::field(defaults, key, &mut Findings::new(""));
        }
        let &(form, kind) = CHECKS.iter().find(|(check, _)| *check == key)?;
        keys.has(key).then(|| At {
            place: keys.place_of_key(key),
            value: keys.own(key, findings, |node, place, findings| {
                let form = Scope::Form(form);
                let keys = Mapping::open(node, place, RawCheck::SECTION, form, findings)?;
                let check = RawCheck::read(&keys, findings);
                Some(RawCheck { kind, ..check })
            }),
        })
    }
}

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
            return usual.filter(|at| at.value.as_ref().is_none_or(|health| health.has_check));
        }
        let defaults = keys.defaults_inside(key, RawHealth::SECTION);
        keys.own(key, findings, |node, place, findings| {
            if matches!(&node.kind, yaml::Kind::Scalar { text, .. } if text == NONE) {
                return Some(At { place, value: None });
            }
            let own = keys.inside(key, RawHealth::SECTION, findings)?;
            let health = RawHealth::read(&own.with_defaults(defaults.as_ref()), findings);
            if !health.has_check && !keys.is_default() {
                let words = "found no check; expected one of tcp, tls, http, https";
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
    if let Some(((first, at), others)) = health.checks().split_first() {
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
