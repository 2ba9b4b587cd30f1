//! Backends that can be reached, and that are not this load balancer itself.

use std::{
    collections::{HashMap, hash_map},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{
    address_index::{Facts, Known},
    health_and_drain::Care,
    kubernetes,
    service::{Mention, Usage},
};
use crate::config::{
    address::family,
    algorithm::Algorithm,
    authorities::Library,
    list::{List, Named},
    model::{Backend, Pool, ProxyProtocol},
    names::Names,
    place::{At, Location, quote, value_of},
    problem::Findings,
    schema::{LiteralPool, RawBackend},
};

/// The pools.
pub(super) fn validate(
    raw: &List<Named<LiteralPool>>,
    networks: &Known<'_>,
    usage: &Usage<'_>,
    clusters: &Names<'_>,
    findings: &mut Findings,
) -> Vec<Pool> {
    let mut library = Library::default();
    let mut pools = Vec::new();
    for (index, named) in raw.elements.iter().enumerate() {
        let network = named.value.keys.network.as_ref();
        let network_index = network.and_then(|network| networks.names.find(network, findings));
        let backends = backends(&named.value, findings);
        if let (Some(at), Some(network)) = (network, network_index) {
            let user = usage.pools.get(&index);
            let like = backends.first().map(|(backend, _)| backend.address);
            check_snat(
                named,
                &at.place,
                like,
                networks.facts(network),
                user,
                findings,
            );
        }
        let care = Care::read(named, &mut library, findings);
        if let Some(network) = network_index {
            let mut blamed = None;
            for (backend, place) in &backends {
                // A group of nodes that is on another network is one mistake, not one for each.
                if blamed != Some(place) {
                    let result =
                        check_reachable(backend, network, networks, usage, place, findings);
                    blamed = findings
                        .check(place, result)
                        .map_or(Some(place), |()| blamed);
                }
            }
        }
        if let Some(network) = network {
            pools.push(Pool {
                hosted: None,
                name: named.name.clone(),
                network: network.value.clone(),
                backends: backends.into_iter().map(|(backend, _)| backend).collect(),
                discover: kubernetes::discover(&named.value.discovered, clusters, findings),
                balance: value_of(&named.value.keys.selection.balance),
                source_timeout: source_timeout(named, findings),
                max_connections: named
                    .value
                    .keys
                    .selection
                    .max_connections
                    .as_ref()
                    .map(|at| at.value),
                proxy_protocol: wants_header(&named.value).and_then(|at| at.value),
                health: care.health,
                drain_timeout: care.drain_timeout,
                slow_start: care.slow_start,
                min_up: care.min_up,
                below_min_up: care.below_min_up,
            });
        }
    }
    pools
}

/// With another algorithm a client has no backend of its own.
fn source_timeout(named: &Named<LiteralPool>, findings: &mut Findings) -> Option<Duration> {
    let keys = &named.value.keys.selection;
    let timeout = keys.source_timeout.as_ref()?;
    let balance: Algorithm = value_of(&keys.balance);
    if balance != Algorithm::Source {
        let words = "only a pool with `balance: source` has clients that stay with a backend; expected that, or no \
                     source_timeout";
        findings.add(named.blame(&timeout.place), words.to_owned());
    }
    Some(timeout.value)
}

/// Where a pool says that its backends want a header.
pub(super) fn wants_header(raw: &LiteralPool) -> Option<&At<Option<ProxyProtocol>>> {
    let written = raw.keys.proxy_protocol.as_ref();
    written.filter(|at| at.value.is_some())
}

/// Every flow is full NAT, and every check comes from where the flows do: without a SNAT address on
/// the backends' network, of their family, there is none.
fn check_snat(
    named: &Named<LiteralPool>,
    place: &Location,
    like: Option<IpAddr>,
    facts: &Facts<'_>,
    user: Option<&Mention<'_>>,
    findings: &mut Findings,
) {
    if !facts.lacks_snat(like) {
        return;
    }
    // In words of their own only where there are others.
    let family = match like.filter(|_| !facts.lacks_snat(None)) {
        Some(like) => format!("{} ", family(like)),
        None => String::new(),
    };
    let without = |place: &Location, findings: &Findings| {
        let line = findings.line(facts.place, place);
        format!(
            "network {} in {line} has no {family}snat address",
            facts.name
        )
    };
    if let Some(Mention { service, place: at }) = user {
        let place = named.blame(place);
        let words = format!(
            "{}, but service {service} in {} uses this pool",
            without(place, findings),
            findings.line(at, place)
        );
        findings.add(place, words);
    } else if let Some(At {
        place,
        value: Some(_),
    }) = &named.value.keys.care.health
    {
        let place = named.blame(place);
        let words = format!(
            "{}, which checks of this pool would come from",
            without(place, findings)
        );
        findings.add(place, words);
    }
}

/// The backends that could be read, each with the place of its address.
fn backends<'r>(raw: &'r LiteralPool, findings: &mut Findings) -> Vec<(Backend, &'r Location)> {
    let mut backends = Vec::new();
    let mut tuples = HashMap::new();
    let mut names = written_names(raw, findings);
    for At { value: raw, .. } in &raw.backends.elements {
        let (weight, backup) = (value_of(&raw.weight), value_of(&raw.backup));
        let Some(At { place, value }) = &raw.address else {
            continue;
        };
        let (address, port) = (value.ip(), value.port());
        match tuples.entry((address, port)) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(place);
            }
            hash_map::Entry::Occupied(first) => {
                let line = findings.line(first.get(), place);
                let words = format!("{value} is already listed in {line}");
                findings.add(place, words);
                continue;
            }
        }
        let backend = Backend {
            name: name(raw, address, port, &mut names),
            address,
            port,
            weight,
            backup,
            discovered: None,
        };
        backends.push((backend, place));
    }
    backends
}

/// The names that are written for single backends, and their places.
fn written_names<'r>(
    raw: &'r LiteralPool,
    findings: &mut Findings,
) -> HashMap<String, &'r Location> {
    let mut names = HashMap::new();
    for At { value: raw, .. } in &raw.backends.elements {
        let Some(At { place, value }) = &raw.name else {
            continue;
        };
        match names.entry(value.clone()) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(place);
            }
            hash_map::Entry::Occupied(first) => {
                let line = findings.line(first.get(), place);
                let words = format!("{} is already used in {line}", quote(value));
                findings.add(place, words);
            }
        }
    }
    names
}

/// The name of a backend: its own, or that of its node, with the port if the node has it already.
fn name<'r>(
    raw: &'r RawBackend,
    address: IpAddr,
    port: u16,
    names: &mut HashMap<String, &'r Location>,
) -> String {
    match (&raw.name, &raw.node, &raw.address) {
        (Some(name), ..) => name.value.clone(),
        (None, Some(node), Some(at)) if !names.contains_key(node) => {
            names.insert(node.clone(), &at.place);
            node.clone()
        }
        (None, Some(node), _) if node.parse() != Ok(address) => format!("{node}:{port}"),
        (None, ..) => SocketAddr::new(address, port).to_string(),
    }
}

fn check_reachable(
    backend: &Backend,
    network: usize,
    networks: &Known<'_>,
    usage: &Usage<'_>,
    place: &Location,
    findings: &Findings,
) -> Result<(), String> {
    let facts = networks.facts(network);
    let address = backend.address;
    facts.check_backend(address)?;
    if let Some(vip) = usage.vips.get(&(network, address)) {
        return Err(format!(
            "{address} is the VIP of service {} in {}; expected a backend, not the load balancer \
             itself",
            vip.service,
            findings.line(vip.place, place)
        ));
    }
    if let Some(snat) = facts.snat_place(address) {
        return Err(format!(
            "{address} is a SNAT address of network {} in {}; expected a backend, not the load \
             balancer itself",
            facts.name,
            findings.line(snat, place)
        ));
    }
    match facts.checks.place(address) {
        Some(checks) => Err(format!(
            "checks of network {} come from {address} in {}; expected a backend, not the load \
             balancer itself",
            facts.name,
            findings.line(checks, place)
        )),
        None => Ok(()),
    }
}
