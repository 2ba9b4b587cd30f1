//! The keys of a service, and who may use it.

use super::{
    List,
    reader::{Mapping, Preset, prefixes, text, texts_not_empty, whole_number},
    shared::{self, RawShared},
    timeouts::{Life, life},
};
use crate::config::{
    place::{At, Location},
    problem::Findings,
    yaml::{Kind, Node},
};

/// An entry of `services`.
#[derive(Debug, Default)]
pub(in crate::config) struct RawService {
    pub(in crate::config) network: Option<At<String>>,
    pub(in crate::config) pool: Option<At<String>>,
    pub(in crate::config) sni: Option<At<RawShared>>,
    pub(in crate::config) http: Option<At<RawShared>>,
    pub(in crate::config) allow: Option<At<Sources>>,
    pub(in crate::config) deny: Option<At<Sources>>,
    pub(in crate::config) life: Life,
    pub(in crate::config) max_flows: Option<At<u64>>,
    pub(in crate::config) listen: List<At<String>>,
}

/// Prefixes, or the word `any`.
#[derive(Clone, Debug)]
pub(in crate::config) enum Sources {
    Any,
    Prefixes(List<At<String>>),
}

/// The keys, first those that can have a default.
const KEYS: [&str; 11] = [
    "network",
    "pool",
    "allow",
    "deny",
    "idle_timeout",
    "keepalive",
    "reject",
    "max_flows",
    "listen",
    "sni",
    "http",
];

pub(super) fn read_defaults(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<Preset<RawService>> {
    let keys = Mapping::open(node, place, &KEYS[..8], findings)?.lenient();
    let value = service(&keys, &Preset::default(), findings);
    Some(Preset::new(&keys, value))
}

pub(super) fn read(
    node: &Node,
    place: Location,
    defaults: &Preset<RawService>,
    findings: &mut Findings,
) -> Option<RawService> {
    let keys = Mapping::open(node, place, &KEYS, findings)?;
    Some(service(&keys, defaults, findings))
}

fn service(
    keys: &Mapping<'_>,
    defaults: &Preset<RawService>,
    findings: &mut Findings,
) -> RawService {
    RawService {
        network: keys.required_or(
            "network",
            defaults,
            |service| &service.network,
            findings,
            text,
        ),
        // Who looks at what a client asks for has no pool for all of them.
        pool: if keys.has("sni") || keys.has("http") {
            keys.optional("pool", findings, text)
        } else {
            keys.required_or("pool", defaults, |service| &service.pool, findings, text)
        },
        sni: keys.optional("sni", findings, shared::sni),
        http: keys.optional("http", findings, shared::http),
        allow: keys.optional_or(
            "allow",
            defaults,
            |service| &service.allow,
            findings,
            sources,
        ),
        deny: keys.optional_or("deny", defaults, |service| &service.deny, findings, sources),
        life: life(keys, defaults, |service| &service.life, findings),
        max_flows: keys.optional_or(
            "max_flows",
            defaults,
            |service| &service.max_flows,
            findings,
            whole_number,
        ),
        listen: keys
            .required("listen", findings, texts_not_empty)
            .unwrap_or_default(),
    }
}

/// A list of prefixes, or `any`. One that cannot be read is one of unknown content: it must not
/// look as if nobody had been named.
pub(super) fn sources(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<At<Sources>> {
    let any = matches!(&node.kind, Kind::Scalar { text, .. } if text == "any");
    let value = if any {
        Sources::Any
    } else {
        Sources::Prefixes(prefixes(node, place.clone(), findings).unwrap_or_default())
    };
    Some(At { place, value })
}
