//! The keys of services that share a VIP.

use super::{
    List,
    reader::{Mapping, boolean, list_not_empty, text, texts_not_empty, whole_number},
    service::{Sources, sources},
};
use crate::config::{
    place::{At, Location},
    problem::Findings,
    yaml::{Kind, Node},
};

/// The key `sni` or `http`; each has some of these.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct RawShared {
    pub(in crate::config) routes: List<At<RawNameRoute>>,
    pub(in crate::config) no_name: Option<At<RawOtherwise>>,
    pub(in crate::config) no_match: Option<At<RawOtherwise>>,
    pub(in crate::config) ech: Option<At<String>>,
    pub(in crate::config) balance: Option<At<String>>,
    pub(in crate::config) timeout: Option<At<String>>,
    pub(in crate::config) body_timeout: Option<At<String>>,
    pub(in crate::config) response_timeout: Option<At<String>>,
    pub(in crate::config) max_bytes: Option<At<u64>>,
    pub(in crate::config) proxies: Option<At<Sources>>,
}

/// An element of `routes`.
#[derive(Clone, Debug)]
pub(in crate::config) struct RawNameRoute {
    pub(in crate::config) names: List<At<String>>,
    pub(in crate::config) expressions: List<At<String>>,
    pub(in crate::config) no_name: Option<At<bool>>,
    pub(in crate::config) clusters: List<At<String>>,
    pub(in crate::config) proxies: Option<At<Sources>>,
    pub(in crate::config) alpn: List<At<String>>,
    pub(in crate::config) from: Option<At<Sources>>,
    pub(in crate::config) pool: Option<At<String>>,
    pub(in crate::config) redirect: Option<At<String>>,
    /// Whether neither `pool` nor `redirect` is written.
    pub(in crate::config) leads_nowhere: bool,
    /// Whether neither `names`, `regex` nor `cluster_ids` is written, nor that it is for who asks for none.
    pub(in crate::config) nameless: bool,
}

/// A word, or a pool.
#[derive(Clone, Debug)]
pub(in crate::config) enum RawOtherwise {
    Word(String),
    Pool(Option<At<String>>),
}

const SNI: [&str; 7] = [
    "routes",
    "no_name",
    "no_match",
    "ech",
    "hello_timeout",
    "max_hello",
    "proxy_protocol_from",
];

const HTTP: [&str; 7] = [
    "routes",
    "no_match",
    "balance",
    "header_timeout",
    "body_timeout",
    "response_timeout",
    "max_header",
];

const OF_SNI: [&str; 8] = [
    "names",
    "regex",
    "no_name",
    "cluster_ids",
    "proxies",
    "alpn",
    "from",
    "pool",
];

const OF_HTTP: [&str; 5] = ["names", "regex", "from", "pool", "redirect"];

pub(super) fn sni(node: &Node, place: Location, findings: &mut Findings) -> Option<At<RawShared>> {
    let keys = Mapping::open(node, place.clone(), &SNI, findings)?;
    let mut value = shared(&keys, &OF_SNI, findings);
    value.no_name = keys.optional("no_name", findings, otherwise);
    value.ech = keys.optional("ech", findings, text);
    value.timeout = keys.optional("hello_timeout", findings, text);
    value.max_bytes = keys.optional("max_hello", findings, whole_number);
    value.proxies = keys.optional("proxy_protocol_from", findings, sources);
    Some(At { place, value })
}

pub(super) fn http(node: &Node, place: Location, findings: &mut Findings) -> Option<At<RawShared>> {
    let keys = Mapping::open(node, place.clone(), &HTTP, findings)?;
    let mut value = shared(&keys, &OF_HTTP, findings);
    value.balance = keys.optional("balance", findings, text);
    value.timeout = keys.optional("header_timeout", findings, text);
    value.body_timeout = keys.optional("body_timeout", findings, text);
    value.response_timeout = keys.optional("response_timeout", findings, text);
    value.max_bytes = keys.optional("max_header", findings, whole_number);
    Some(At { place, value })
}

/// The keys that both have; the routes have those of `known`.
fn shared(keys: &Mapping<'_>, known: &[&'static str], findings: &mut Findings) -> RawShared {
    let routes = keys.required("routes", findings, |node, place, findings| {
        list_not_empty(node, &place, findings, |node, place, findings| {
            name_route(node, place, known, findings)
        })
    });
    RawShared {
        routes: routes.unwrap_or_default(),
        no_match: keys.optional("no_match", findings, otherwise),
        ..RawShared::default()
    }
}

fn name_route(
    node: &Node,
    place: Location,
    known: &[&'static str],
    findings: &mut Findings,
) -> Option<At<RawNameRoute>> {
    let keys = Mapping::open(node, place.clone(), known, findings)?;
    let texts = |key: &str, findings: &mut Findings| {
        let texts = keys.optional(key, findings, texts_not_empty);
        texts.unwrap_or_else(|| List::absent(&keys, key))
    };
    let no_name = keys.optional("no_name", findings, boolean);
    let is_named = matches!(no_name, Some(At { value: false, .. })) || keys.is_absent("no_name");
    let value = RawNameRoute {
        names: texts("names", findings),
        expressions: texts("regex", findings),
        clusters: texts("cluster_ids", findings),
        proxies: keys.optional("proxies", findings, sources),
        alpn: texts("alpn", findings),
        from: keys.optional("from", findings, sources),
        pool: keys.optional("pool", findings, text),
        redirect: keys.optional("redirect", findings, text),
        leads_nowhere: keys.is_absent("pool") && keys.is_absent("redirect"),
        nameless: is_named
            && ["names", "regex", "cluster_ids"]
                .iter()
                .all(|key| keys.is_absent(key)),
        no_name,
    };
    Some(At { place, value })
}

/// A word, or `{ pool: NAME }`.
fn otherwise(node: &Node, place: Location, findings: &mut Findings) -> Option<At<RawOtherwise>> {
    let value = match &node.kind {
        Kind::Mapping(_) => {
            let keys = Mapping::open(node, place.clone(), &["pool"], findings)?;
            RawOtherwise::Pool(keys.required("pool", findings, text))
        }
        _ => RawOtherwise::Word(text(node, place.clone(), findings)?.value),
    };
    Some(At { place, value })
}
