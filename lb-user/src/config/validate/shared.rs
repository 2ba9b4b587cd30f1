//! Services that share a VIP: names, and where the clients that request them go.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
};

use ipnet::{IpNet, Ipv4Net};

use super::{family::check_family, service::prefixes};
use crate::config::{
    list::{List, Named},
    listen::{Listen, Protocol},
    model::any,
    names,
    place::{At, Location, quote, value_of},
    problem::Findings,
    schema::{AnyOrPrefixes, RawNameRoute, RawOtherwise, RawService, RawSni},
    shared::{Http, LateBinding, NameRoute, Otherwise, Sni, SynCookies, Target, To},
};

/// The clients of a shared VIP.
const IPV4: [IpNet; 1] = [IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0))];

/// What a service says of where its flows go; none if it cannot be read.
pub(super) fn target(named: &Named<RawService>, findings: &mut Findings) -> Option<Target> {
    let RawService {
        pool, sni, http, ..
    } = &named.value;
    let pool_place = pool.as_ref().map(|at| &at.place);
    let sni_place = sni.as_ref().map(|at| &at.place);
    let http_place = http.as_ref().map(|at| &at.place);
    let mut written = [pool_place, sni_place, http_place].into_iter().flatten();
    if let (Some(first), Some(place)) = (written.next(), written.next()) {
        let line = findings.line(first, place);
        let words =
            format!("a service has one of pool, sni and http; another of them is in {line}");
        findings.add(place, words);
    }
    if let Some(At { value, .. }) = sni {
        let proxies = proxies(named, value.proxy_protocol_from.as_ref(), findings);
        check_clusters(value, findings);
        // A proxy may have clients of both families.
        let clients = match value.proxy_protocol_from {
            Some(_) => &any()[..],
            None => &IPV4,
        };
        return Some(Target::Sni(Sni {
            routes: routes(named, &value.routes, clients, &proxies, findings),
            no_name: otherwise(value.no_name.as_ref()),
            no_match: otherwise(value.no_match.as_ref()),
            ech: value_of(&value.ech),
            hello_timeout: value_of(&value.hello_timeout),
            max_hello: value_of(&value.max_hello),
            syn_cookies: value_of(&value.syn_cookies),
            late_binding: late_binding(value, findings),
            proxies,
        }));
    }
    if let Some(At { value, .. }) = http {
        return Some(Target::Http(Http {
            routes: routes(named, &value.routes, &IPV4, &[], findings),
            no_match: otherwise(value.no_match.as_ref()),
            balance: value_of(&value.balance),
            header_timeout: value_of(&value.header_timeout),
            body_timeout: value_of(&value.body_timeout),
            response_timeout: value_of(&value.response_timeout),
            max_header: value_of(&value.max_header),
        }));
    }
    pool.as_ref().map(|at| Target::Pool(at.value.clone()))
}

/// XDP opens connections of clients whose SYNs it has answered.
fn late_binding(sni: &RawSni, findings: &mut Findings) -> LateBinding {
    let has_cookies = value_of(&sni.syn_cookies) == SynCookies::Always;
    let Some(At { value, place }) = &sni.late_binding else {
        return match has_cookies {
            true => LateBinding::Always,
            false => LateBinding::Never,
        };
    };
    if *value == LateBinding::Always && !has_cookies {
        let words = "late_binding: always needs syn_cookies: always, since XDP opens the connections of clients \
                     that it has answered itself";
        findings.add(place, words);
    }
    *value
}

/// Every mention of a pool.
pub(super) fn pools(raw: &RawService) -> impl Iterator<Item = &At<String>> {
    let sni = raw.sni.iter().map(|at| &at.value);
    let sni = sni.map(|sni| (&sni.routes, [Some(&sni.no_name), Some(&sni.no_match)]));
    let http = raw.http.iter().map(|at| &at.value);
    let http = http.map(|http| (&http.routes, [None, Some(&http.no_match)]));
    let shared = sni.chain(http).flat_map(|(routes, otherwise)| {
        let routes = routes.elements.iter();
        let routed = routes.filter_map(|route| route.value.pool.as_ref());
        let otherwise = otherwise.into_iter().flatten();
        routed.chain(otherwise.filter_map(|at| match &at.as_ref()?.value {
            RawOtherwise::Pool(pool) => pool.as_ref(),
            RawOtherwise::Alert | RawOtherwise::Close => None,
        }))
    });
    raw.pool.iter().chain(shared)
}

/// Connections alone can be looked into.
pub(super) fn check_listen(
    raw: &RawService,
    listen: Listen,
    place: &Location,
    findings: &mut Findings,
) {
    let is_shared = raw.sni.is_some() || raw.http.is_some();
    if is_shared && listen.protocol == Protocol::Udp {
        let words =
            format!("{listen} is UDP, which sends no name to route by; expected tcp, or pool");
        findings.add(place, words);
    }
}

fn routes(
    named: &Named<RawService>,
    raw: &List<At<RawNameRoute>>,
    clients: &[IpNet],
    all: &[IpNet],
    findings: &mut Findings,
) -> Vec<NameRoute> {
    let mut routes = Vec::new();
    let mut taken = Taken::default();
    for At { place, value } in &raw.elements {
        if value.is_nameless() {
            let words =
                "found no name; expected names or regex, or no_name: true or cluster_ids with sni";
            findings.add(place, words);
        }
        let from = prefixes(value.from.as_ref(), clients);
        check_family(named, &from, clients, findings);
        let alpn = texts(&value.alpn);
        let is_for_all = alpn.is_empty() && value.from.is_none();
        let names = names(&value.names, is_for_all, &mut taken, findings);
        let no_name = no_name(value, is_for_all, &mut taken, findings);
        let clusters = clusters(value, is_for_all, &mut taken, findings);
        let proxies = claimants(named, all, value, findings);
        routes.extend(to(value, place, findings).map(|to| {
            NameRoute {
                names,
                expressions: texts(&value.regex),
                no_name,
                clusters,
                proxies,
                alpn,
                from: from
                    .iter()
                    .map(|(prefix, _)| *prefix)
                    .collect::<Vec<IpNet>>(),
                to,
            }
        }));
    }
    routes
}

fn texts(raw: &List<At<String>>) -> Vec<String> {
    raw.elements.iter().map(|at| at.value.clone()).collect()
}

/// What leads somewhere for all clients already, and where that is written.
#[derive(Default)]
struct Taken {
    names: HashMap<String, Location>,
    no_name: Option<Location>,
    clusters: HashMap<String, Location>,
}

fn names(
    raw: &List<At<String>>,
    is_for_all: bool,
    taken: &mut Taken,
    findings: &mut Findings,
) -> Vec<String> {
    let mut names = Vec::new();
    for At { place, value } in &raw.elements {
        let Some(name) = findings.check(place, name(value)) else {
            continue;
        };
        if let Some(first) = taken.names.get(&name) {
            let line = findings.line(first, place);
            let words = format!("{} has a route already, in {line}", quote(value));
            findings.add(place, words);
        } else if is_for_all {
            taken.names.insert(name.clone(), place.clone());
        }
        names.push(name);
    }
    names
}

/// Whether a route is for clients that request no name.
fn no_name(
    raw: &RawNameRoute,
    is_for_all: bool,
    taken: &mut Taken,
    findings: &mut Findings,
) -> bool {
    let Some(At { place, value: true }) = &raw.no_name else {
        return false;
    };
    if !raw.names.elements.is_empty() || !raw.regex.elements.is_empty() {
        findings.add(
            place,
            "a route has names, or no_name: true; expected two routes",
        );
    } else if let Some(first) = &taken.no_name {
        let line = findings.line(first, place);
        let words = format!("clients that send no name (SNI) have a route already, in {line}");
        findings.add(place, words);
    } else if is_for_all {
        taken.no_name = Some(place.clone());
    }
    true
}

/// The clusters that a route is for.
fn clusters(
    raw: &RawNameRoute,
    is_for_all: bool,
    taken: &mut Taken,
    findings: &mut Findings,
) -> Vec<String> {
    let is_by_name = !raw.names.elements.is_empty() || !raw.regex.elements.is_empty();
    let is_other = is_by_name || raw.no_name.as_ref().is_some_and(|at| at.value);
    let mut clusters = Vec::new();
    for At { place, value } in &raw.cluster_ids.elements {
        if is_other && clusters.is_empty() {
            let words =
                "a route has names, no_name: true or cluster_ids; expected one route for each";
            findings.add(place, words);
        }
        if let Some(first) = taken.clusters.get(value) {
            let line = findings.line(first, place);
            let words = format!("{} has a route already, in {line}", quote(value));
            findings.add(place, words);
        } else if is_for_all {
            taken.clusters.insert(value.clone(), place.clone());
        }
        clusters.push(value.clone());
    }
    clusters
}

/// Without a proxy no header names the cluster of a client.
fn check_clusters(raw: &RawSni, findings: &mut Findings) {
    let routes = raw.routes.elements.iter();
    let mut clusters = routes.flat_map(|route| &route.value.cluster_ids.elements);
    if raw.proxy_protocol_from.is_none()
        && let Some(first) = clusters.next()
    {
        let words =
            "a client's cluster is known from the PROXY header alone; expected proxy_protocol_from";
        findings.add(&first.place, words);
    }
}

/// Which of the proxies may announce clients of the clusters of a route.
fn claimants(
    named: &Named<RawService>,
    all: &[IpNet],
    route: &RawNameRoute,
    findings: &mut Findings,
) -> Vec<IpNet> {
    let Some(at) = &route.proxies else {
        return Vec::new();
    };
    if route.cluster_ids.elements.is_empty() {
        let words = "proxies are those that may name the clusters of a route; expected cluster_ids beside proxies";
        findings.add(&at.place, words);
    }
    let mut claimants = Vec::new();
    for (prefix, place) in prefixes(Some(at), &IPV4) {
        if !all.iter().any(|proxies| proxies.contains(&prefix)) {
            let words = format!(
                "{prefix} is not in proxy_protocol_from of service {}",
                named.name
            );
            findings.add(place, words);
        }
        claimants.push(prefix);
    }
    claimants
}

/// Where a network has more than one cluster, the proxies of one must not name another.
pub(super) fn check_claims(services: &List<Named<RawService>>, findings: &mut Findings) {
    let mut of_networks: HashMap<&str, (BTreeSet<&str>, Vec<&Location>)> = HashMap::new();
    for Named { value, .. } in &services.elements {
        let (Some(network), Some(sni)) = (&value.network, &value.sni) else {
            continue;
        };
        let (clusters, open) = of_networks.entry(&network.value).or_default();
        for At { value: route, .. } in &sni.value.routes.elements {
            let ids = &route.cluster_ids.elements;
            clusters.extend(ids.iter().map(|id| id.value.as_str()));
            if route.proxies.is_none() {
                open.extend(ids.first().map(|id| &id.place));
            }
        }
    }
    for (network, (clusters, open)) in of_networks {
        if clusters.len() < 2 {
            continue;
        }
        for place in open {
            let words = format!(
                "network {network} has {} clusters, and any proxy may name this one for its clients; \
                 expected proxies: [PREFIX] beside cluster_ids, with the addresses of the cluster's proxies",
                clusters.len()
            );
            findings.add(place, words);
        }
    }
}

/// The proxies that may announce their clients in a header.
fn proxies(
    named: &Named<RawService>,
    raw: Option<&At<AnyOrPrefixes>>,
    findings: &mut Findings,
) -> Vec<IpNet> {
    let mut proxies = Vec::new();
    let written = prefixes(raw, &IPV4);
    check_family(named, &written, &IPV4, findings);
    for (prefix, place) in written {
        if prefix.prefix_len() == 0 {
            let words =
                "any client could claim the address of another; expected prefixes of proxies";
            findings.add(place, words);
        }
        proxies.push(prefix);
    }
    proxies
}

fn to(raw: &RawNameRoute, place: &Location, findings: &mut Findings) -> Option<To> {
    if raw.leads_nowhere {
        findings.add(
            place,
            "no destination; expected pool, or redirect with http",
        );
    }
    match (&raw.pool, &raw.redirect) {
        (Some(_), Some(At { place, .. })) => {
            findings.add(place, "a route has pool or redirect, not both");
            None
        }
        (Some(pool), None) => Some(To::Pool(pool.value.clone())),
        (None, Some(_)) => Some(To::Https),
        (None, None) => None,
    }
}

/// A DNS name, or one with `*.` in front, in lower case and without a dot at the end.
fn name(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let lower = lower.strip_suffix('.').unwrap_or(&lower);
    let domain = lower.strip_prefix("*.").unwrap_or(lower);
    if names::is_domain(domain) {
        return Ok(lower.to_owned());
    }
    Err(format!(
        "{} is not a name; expected one such as api.example.com or *.apps.example.com",
        quote(text)
    ))
}

fn otherwise(written: Option<&At<RawOtherwise>>) -> Otherwise {
    match written.map(|at| &at.value) {
        Some(RawOtherwise::Alert) => Otherwise::Alert,
        Some(RawOtherwise::Close) => Otherwise::Close,
        Some(RawOtherwise::Pool(Some(pool))) => Otherwise::Pool(pool.value.clone()),
        Some(RawOtherwise::Pool(None)) | None => Otherwise::default(),
    }
}
