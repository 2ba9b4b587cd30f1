//! Validate: the second word of a change. Typed values become a [`Config`], or the reasons why not.
//!
//! Networks come first, then services, because a VIP must be known before a backend can be found to
//! be one, then pools. The result is whole only if there was no problem; what could not be read is
//! absent from it, and the caller drops it.

mod network;
mod pool;
mod service;

use std::{collections::HashMap, ops::RangeInclusive};

use lb_common::maps::{MAX_NETWORKS, MAX_SNAT_ADDRESSES};

use super::{
    model::{Config, Limits},
    place::{At, Place, quote},
    problem::Findings,
    schema::{List, Named, RawConfig, RawLimits},
    suggest::closest,
};

/// The one version of the file format.
const VERSION: u64 = 1;

/// The largest `limits.snat_addresses`.
const MAX_SNAT: u16 = 32;

const _: () = assert!(MAX_SNAT as u32 == MAX_SNAT_ADDRESSES);

/// The longest name of a network, pool, service or backend, in characters.
const MAX_NAME: usize = 32;

/// The most names that a problem lists as the known ones.
const MAX_LISTED: usize = 8;

/// Checks everything that the schema cannot know.
pub(super) fn validate(raw: &RawConfig, findings: &mut Findings) -> Config {
    if let Some(version) = raw.version.as_ref().filter(|at| at.value != VERSION) {
        let words = format!("found {}, expected {VERSION}", version.value);
        findings.add(&version.place, words);
    }
    let limits = limits(&raw.limits, findings);
    check_capacities(raw, limits, findings);

    let (networks, known) = network::validate(&raw.networks, findings);
    let pool_names = Names::new("pool", &raw.pools);
    let (services, usage) = service::validate(&raw.services, &known, &pool_names, findings);
    let pools = pool::validate(&raw.pools, &known, &usage, findings);
    Config {
        networks,
        pools,
        services,
        limits,
    }
}

fn limits(raw: &RawLimits, findings: &mut Findings) -> Limits {
    let default = Limits::default();
    Limits {
        snat_addresses: limit(
            &raw.snat_addresses,
            1..=MAX_SNAT,
            default.snat_addresses,
            findings,
        ),
        services: limit(&raw.services, 1..=65_535, default.services, findings),
        backends: limit(&raw.backends, 1..=65_535, default.backends, findings),
        pools: limit(&raw.pools, 1..=4096, default.pools, findings),
    }
}

/// The limit as written, or its default. One that is out of range counts as the largest possible:
/// it is a problem, and not the entries that would exceed the default.
fn limit<T: Copy + TryFrom<u64> + Into<u64>>(
    raw: &Option<At<u64>>,
    range: RangeInclusive<T>,
    default: T,
    findings: &mut Findings,
) -> T {
    let Some(At { place, value }) = raw else {
        return default;
    };
    let (least, most) = ((*range.start()).into(), (*range.end()).into());
    let fits = (least..=most).contains(value);
    match T::try_from(*value) {
        Ok(value) if fits => value,
        _ => {
            findings.add(place, format!("found {value}, expected {least} to {most}"));
            *range.end()
        }
    }
}

fn check_capacities(raw: &RawConfig, limits: Limits, findings: &mut Findings) {
    let networks = raw.networks.elements.iter();
    let pools = raw.pools.elements.iter();
    let services = raw.services.elements.iter();
    let snat = networks
        .clone()
        .flat_map(|network| &network.value.snat.elements);
    let backends = pools.clone().flat_map(|pool| &pool.value.backends.elements);
    let listen = services.flat_map(|service| &service.value.listen.elements);
    let mut check = |places: Vec<&Place>, what: &str, limit: u32, source: &str| {
        let first_beyond = usize::try_from(limit)
            .ok()
            .and_then(|limit| places.get(limit));
        if let Some(place) = first_beyond {
            let total = places.len();
            findings.add(
                place,
                format!("{total} {what} in all, but {source} {limit}"),
            );
        }
    };
    // Network 0 is "none".
    let networks = networks.map(|named| &named.place).collect();
    check(networks, "networks", MAX_NETWORKS - 1, "there is room for");
    let snat = snat.map(|at| &at.place).collect();
    let most = limits.snat_addresses.into();
    check(snat, "SNAT addresses", most, "limits.snat_addresses is");
    let pools = pools.map(|named| &named.place).collect();
    check(pools, "pools", limits.pools, "limits.pools is");
    let backends = backends.map(|at| &at.place).collect();
    check(backends, "backends", limits.backends, "limits.backends is");
    let listen = listen.map(|at| &at.place).collect();
    check(
        listen,
        "listen entries",
        limits.services,
        "limits.services is",
    );
}

/// The names of one section, for those who refer to them.
struct Names<'r> {
    /// What bears them: `network` or `pool`.
    kind: &'static str,
    names: Vec<&'r str>,
    index: HashMap<&'r str, usize>,
    /// Whether these are all the names; only then one can be unknown.
    whole: bool,
}

impl<'r> Names<'r> {
    fn new<T>(kind: &'static str, section: &'r List<Named<T>>) -> Self {
        let names: Vec<&str> = section
            .elements
            .iter()
            .map(|named| named.name.as_str())
            .collect();
        let index = names.iter().copied().zip(0..).collect();
        Self {
            kind,
            names,
            index,
            whole: section.whole,
        }
    }

    /// The index of the entry that is referred to.
    fn find(&self, reference: &At<String>, findings: &mut Findings) -> Option<usize> {
        let found = self.index.get(reference.value.as_str()).copied();
        if found.is_none() && self.whole {
            let hint = match closest(&reference.value, self.names.iter().copied()) {
                Some(name) => format!("did you mean {}?", quote(name)),
                None => self.known(),
            };
            let words = format!(
                "no {} is called {}; {hint}",
                self.kind,
                quote(&reference.value)
            );
            findings.add(&reference.place, words);
        }
        found
    }

    fn known(&self) -> String {
        if self.names.is_empty() {
            return "there is none".to_owned();
        }
        let mut names: Vec<String> = self.names.iter().map(|name| quote(name)).collect();
        if names.len() > MAX_LISTED {
            names.truncate(MAX_LISTED);
            names.push("...".to_owned());
        }
        format!("expected one of {}", names.join(", "))
    }
}

/// Names become parts of file names, metrics and tables: `[a-z0-9][a-z0-9-]*`.
fn check_name(name: &str, place: &Place, findings: &mut Findings) {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let starts_well = name.bytes().next().is_some_and(letter);
    if !starts_well || !name.bytes().all(|byte| letter(byte) || byte == b'-') {
        let words = format!(
            "{} is not a name; expected a-z, 0-9 and -, with a letter or a digit in front",
            quote(name)
        );
        findings.add(place, words);
    } else if name.len() > MAX_NAME {
        let words = format!(
            "a name of {} characters, expected at most {MAX_NAME}",
            name.len()
        );
        findings.add(place, words);
    }
}
