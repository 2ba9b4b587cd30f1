//! The keys of services that share a VIP.

use std::{ops::RangeInclusive, time::Duration};

use super::{
    declare::{Declared as _, section},
    kinds::{Clients, Flag, Name, Texts, kinds},
    mapping::{Mapping, Scope},
    reader::{at, list_not_empty, text},
    values::{all_checked, only_word, time_in, within, word},
};
use crate::config::{
    list::List,
    place::{At, Location, quote},
    problem::Findings,
    server_names::whole,
    shared::{Balance, Ech, LateBinding, MAX_HEADER, MAX_HELLO, SynCookies},
    yaml::{Kind, Node},
};

section! {
    /// A shared VIP whose clients are distinguished by the name in their ClientHello.
    struct RawSni = "sni" {
        /// Where each name goes; at least one. A route has `names` or `regex`, `no_name: true` or `cluster_ids`, and a
        /// target. An exact name comes before a longer wildcard, that before a shorter one, and regular expressions
        /// come last, in their order.
        required routes: SniRoutes,
        /// For a client that sends no name and has no route: `alert` (the TLS alert `unrecognized_name`), `close`, or
        /// `{ pool: NAME }`.
        optional no_name: Fallback = "alert",
        /// The same for a name without a route.
        optional no_match: Fallback = "alert",
        /// For a ClientHello that may hide another name (ECH; browsers send the like to every server): `route` (the
        /// visible name decides), `count` (it decides, and `lb status` counts it) or `deny`.
        optional ech: OnEch = "route",
        /// How long a client may take to send its ClientHello, 100ms to 1m.
        optional hello_timeout: BeginTime = "5s",
        /// The maximum size of a ClientHello in bytes, 1024 to 131396, the longest that there can be.
        optional max_hello: HelloBytes = "65536",
        /// How a client's SYN is answered: `never` by a SYN cookie, but by the kernel, as on a host network; or `always`, by
        /// XDP, so that nothing is kept of a client before its first bytes, and a flood of SYNs costs others nothing.
        optional syn_cookies: WhenCookies = "always",
        /// How a connection to a name's pool is opened: `always` by XDP, where the name in the ClientHello, with the client's
        /// address and protocols, leads to a pool over IPv4: the fastest way, and one that needs no running process; what XDP
        /// leaves goes to the process. Or `never`, by the process alone.
        optional late_binding: WhenBound => "`always`, or `never` with `syn_cookies: never`",
        /// Proxies in front, by their addresses. Each of their connections must begin with a header of the PROXY
        /// protocol, version 2, whose client counts for `from` and `cluster_ids`; a connection of any other client with
        /// one is refused. `allow` must let the proxies in.
        optional proxy_protocol_from: Clients,
    }
}

section! {
    /// A shared VIP whose requests are distinguished by their Host.
    struct RawHttp = "http" {
        /// Where each name goes, as of `sni`.
        required routes: HttpRoutes,
        /// For a Host without a route: `alert` (status 421), `close`, or `{ pool: NAME }`.
        optional no_match: Fallback = "alert",
        /// How a request gets its backend: by the `client`, or by the `host`, where requests for one name get the same
        /// one.
        optional balance: RequestBalance = "client",
        /// How long a client may take to send the head of a request, 100ms to 1m.
        optional header_timeout: BeginTime = "5s",
        /// How long the body of a request may stop, 100ms to 1d; then the answer is 408.
        optional body_timeout: PauseTime = "1m",
        /// How long a backend may take to begin its answer, which is then 504, and a client to read more of it: 100ms
        /// to 1d. An answer that has begun and stops, such as a stream of events, has `idle_timeout`.
        optional response_timeout: PauseTime = "1m",
        /// The maximum size of the head of a request in bytes, 1024 to 65536.
        optional max_header: HeaderBytes = "16384",
    }
}

section! {
    /// A route of a shared VIP.
    struct RawNameRoute = "route" {
        /// Whole names, in any case; `*.` in front stands for one label or more.
        optional names: Texts,
        /// Regular expressions that match whole names.
        optional regex: Expressions,
        /// For clients that send no name, instead of `names` and `regex`. The first such route for the client and its
        /// protocols is taken; a client without one falls under `no_name` of `sni`.
        optional[only(sni)] no_name: Flag => "`false`",
        /// For clients of these clusters, by the header of a proxy in front (TLV 0x20, which the nodes of a hosted
        /// cluster send), whatever name they send.
        optional[only(sni)] cluster_ids: ClusterIds,
        /// The proxies that may name these clusters, in `proxy_protocol_from`; required where the network has more
        /// than one cluster.
        optional[only(sni)] proxies: Clients => "all proxies",
        /// Protocols (ALPN) of which the client offers one; for others the route does not exist.
        optional[only(sni)] alpn: Protocols => "any client",
        /// The clients that these names are for; for others the names are without a route, whatever a wildcard says.
        optional from: Clients => "all that the service lets in",
        /// The pool that gets the flows.
        optional pool: Name => "required unless there is `redirect`",
        /// `https`, instead of a pool: a redirect to the same URL by https.
        optional[only(http)] redirect: Redirect,
    }
    also(keys) {
        /// Whether neither `pool` nor `redirect` is written.
        leads_nowhere: bool = keys.is_absent("pool") && keys.is_absent("redirect"),
        /// Whether neither `names`, `regex` nor `cluster_ids` is written.
        without_names: bool = ["names", "regex", "cluster_ids"].iter().all(|key| keys.is_absent(key)),
        /// Whether `no_name` is not written.
        without_no_name: bool = keys.is_absent("no_name"),
    }
}

impl RawNameRoute {
    /// Whether it says neither a name, nor that it is for clients without one.
    pub(in crate::config) fn is_nameless(&self) -> bool {
        let needs_name = self.no_name.as_ref().is_some_and(|at| !at.value);
        self.without_names && (self.without_no_name || needs_name)
    }
}

section! {
    /// A pool instead of a word.
    struct RawToPool = "fallback" {
        /// The pool.
        required pool: Name,
    }
}

/// A word, or a pool.
#[derive(Clone, Debug)]
pub(in crate::config) enum RawOtherwise {
    Alert,
    Close,
    Pool(Option<At<String>>),
}

const MIN_TIMEOUT: Duration = Duration::from_millis(100);

/// How long a client may take for its hello, or the head of a request.
const BEGIN: RangeInclusive<Duration> = MIN_TIMEOUT..=Duration::from_secs(60);

/// How long nothing may come of a body or an answer.
const PAUSE: RangeInclusive<Duration> = MIN_TIMEOUT..=Duration::from_secs(24 * 60 * 60);

/// The most bytes of a ClientHello or a head, at least.
const MIN_BYTES: u32 = 1 << 10;

/// The most bytes of the name of a protocol: RFC 7301 section 3.1.
const MAX_ALPN: usize = 255;

/// The most bytes of what a proxy calls a cluster.
const MAX_CLUSTER: usize = 255;

kinds! {
    Expressions("list of texts"): List<At<String>> = all_checked(check_expression);
    ClusterIds("list of texts"): List<At<String>> = all_checked(check_cluster);
    Protocols("list of texts"): List<At<String>> = all_checked(check_protocol);
    OnEch("word"): Option<At<Ech>> = word(&[Ech::Route, Ech::Count, Ech::Deny]);
    WhenCookies("word"): Option<At<SynCookies>> = word(&[SynCookies::Never, SynCookies::Always]);
    WhenBound("word"): Option<At<LateBinding>> = word(&[LateBinding::Never, LateBinding::Always]);
    RequestBalance("word"): Option<At<Balance>> = word(&[Balance::Client, Balance::Host]);
    /// Whether it is to https, or what is reported.
    Redirect("word"): Option<At<bool>> = only_word("https");
    BeginTime("time"): Option<At<Duration>> = time_in(BEGIN);
    PauseTime("time"): Option<At<Duration>> = time_in(PAUSE);
    HelloBytes("number"): Option<At<u32>> = within(MIN_BYTES..=MAX_HELLO);
    HeaderBytes("number"): Option<At<u32>> = within(MIN_BYTES..=MAX_HEADER);
    SniRoutes("list of routes", RawNameRoute): List<At<RawNameRoute>> = |node, place, findings| routes("sni", node, &place, findings);
    HttpRoutes("list of routes", RawNameRoute): List<At<RawNameRoute>> = |node, place, findings| routes("http", node, &place, findings);
    /// A word, or `{ pool: NAME }`.
    Fallback("word, or `{ pool }`", RawToPool): Option<At<RawOtherwise>> = otherwise;
}

/// An expression that the whole of a name must match.
fn check_expression(text: &str, place: &Location, findings: &mut Findings) {
    if let Err(error) = whole(text) {
        let last = error.lines().last().unwrap_or_default();
        let words = format!("{} is not a regular expression: {last}", quote(text));
        findings.add(place, words);
    }
}

fn check_cluster(text: &str, place: &Location, findings: &mut Findings) {
    if !(1..=MAX_CLUSTER).contains(&text.len()) {
        let words = format!(
            "{} has {} bytes, expected 1 to {MAX_CLUSTER}",
            quote(text),
            text.len()
        );
        findings.add(place, words);
    }
}

fn check_protocol(text: &str, place: &Location, findings: &mut Findings) {
    if !(1..=MAX_ALPN).contains(&text.len()) {
        let words = format!("{} is not a protocol; expected one such as h2", quote(text));
        findings.add(place, words);
    }
}

fn routes(
    form: &'static str,
    node: &Node,
    place: &Location,
    findings: &mut Findings,
) -> Option<List<At<RawNameRoute>>> {
    list_not_empty(node, place, findings, |node, place, findings| {
        let section = RawNameRoute::SECTION;
        let keys = Mapping::open(node, place.clone(), section, Scope::Form(form), findings)?;
        let value = RawNameRoute::read(&keys, findings);
        Some(At { place, value })
    })
}

fn otherwise(node: &Node, place: Location, findings: &mut Findings) -> Option<At<RawOtherwise>> {
    let value = match &node.kind {
        Kind::Mapping(_) => {
            let to = at::<RawToPool>(node, place.clone(), findings)?;
            RawOtherwise::Pool(to.value.pool)
        }
        _ => match text(node, place.clone(), findings)?.value.as_str() {
            "alert" => RawOtherwise::Alert,
            "close" => RawOtherwise::Close,
            word => {
                let words = format!(
                    "found {}, expected alert, close or {{ pool: NAME }}",
                    quote(word)
                );
                findings.add(&place, words);
                return None;
            }
        },
    };
    Some(At { place, value })
}
