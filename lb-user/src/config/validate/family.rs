//! What a service listens at, where its flows go and where they come from are of one.

use std::net::IpAddr;

use ipnet::IpNet;
use lb_common::maps::registry::NAME_BYTES;

use super::{pool::wants_header, timeouts::is_own};
use crate::config::{
    address::family,
    list::{List, Named},
    model::{Config, Pool},
    names::Names,
    place::{At, Location, quote},
    problem::Findings,
    schema::{LiteralPool, RawService},
};

/// Checks that no service or pool mixes families, and that nothing is required of IPv6 that only IPv4 has.
pub(super) fn check(
    services: &List<Named<RawService>>,
    pool_names: &Names<'_>,
    pools: &List<Named<LiteralPool>>,
    findings: &mut Findings,
) {
    for named in &pools.elements {
        check_pool(named, findings);
    }
    for named in &services.elements {
        let is_shared = named.value.sni.is_some() || named.value.http.is_some();
        for pool in super::shared::pools(&named.value) {
            let index = pool_names.position(&pool.value);
            let Some(raw) = index.and_then(|index| pools.elements.get(index)) else {
                continue;
            };
            let Some((backend, _)) = backends(&raw.value).next() else {
                check_alike(named, findings);
                check_header(named, raw, findings);
                continue;
            };
            if is_shared && backend.is_ipv6() {
                let words = format!(
                    "the backends of {} are of IPv6, which no route by name leads to; expected a \
                     pool of IPv4",
                    quote(&pool.value)
                );
                findings.add(named.blame(&pool.place), words);
            } else if !is_shared {
                check_listen(named, &pool.value, backend, findings);
            }
        }
        check_service(named, is_shared, findings);
    }
}

/// The addresses of the backends that can be read, and their places.
fn backends(raw: &LiteralPool) -> impl Iterator<Item = (IpAddr, &Location)> {
    raw.backends.elements.iter().filter_map(|at| {
        let At { place, value } = at.value.address.as_ref()?;
        Some((value.ip(), place))
    })
}

fn check_pool(named: &Named<LiteralPool>, findings: &mut Findings) {
    let Some((first, place)) = backends(&named.value).next() else {
        return;
    };
    let other = backends(&named.value).find(|(address, _)| address.is_ipv4() != first.is_ipv4());
    if let Some((address, place)) = other {
        let words = format!(
            "pool {} has {} and {} backends; a pool has one family",
            named.name,
            family(first),
            family(address)
        );
        findings.add(place, words);
    } else if let Some(at) = wants_header(&named.value).filter(|_| first.is_ipv6()) {
        let blamed = named.blame(&at.place);
        let words = format!(
            "pool {} has IPv6 backends in {}, which get no header of the PROXY protocol; \
             expected proxy_protocol: none",
            named.name,
            findings.line(place, blamed)
        );
        findings.add(blamed, words);
    }
}

/// A pool that is empty now will have backends of one family.
fn check_alike(named: &Named<RawService>, findings: &mut Findings) {
    let Some((first, _)) = listen(&named.value).next() else {
        return;
    };
    for (address, place) in listen(&named.value) {
        if address.is_ipv4() != first.is_ipv4() {
            let words = format!(
                "{address} is of {}, but {first} of {}; expected a service and a pool for each family",
                family(address),
                family(first)
            );
            findings.add(place, words);
        }
    }
}

/// A pool whose backends get a header of the PROXY protocol gets no connections of IPv6.
fn check_header(named: &Named<RawService>, pool: &Named<LiteralPool>, findings: &mut Findings) {
    let six = listen(&named.value).find(|(address, _)| address.is_ipv6());
    if let (Some((address, place)), Some(at)) = (six, wants_header(&pool.value)) {
        let words = format!(
            "{address} is of IPv6, whose backends get no header of the PROXY protocol, but pool {} \
             has proxy_protocol in {}; expected proxy_protocol: none",
            pool.name,
            findings.line(pool.blame(&at.place), place)
        );
        findings.add(place, words);
    }
}

/// There is no way from one family into the other.
fn check_listen(named: &Named<RawService>, pool: &str, backend: IpAddr, findings: &mut Findings) {
    for (address, place) in listen(&named.value) {
        if address.is_ipv4() != backend.is_ipv4() {
            let words = format!(
                "{address} is of {}, but the backends of pool {pool} are of {}; expected a service \
                 and a pool for each family",
                family(address),
                family(backend)
            );
            findings.add(place, words);
        }
    }
}

fn check_service(named: &Named<RawService>, is_shared: bool, findings: &mut Findings) {
    let Some((address, place)) = listen(&named.value).find(|(address, _)| address.is_ipv6()) else {
        return;
    };
    if is_shared {
        let words = format!(
            "{address} is of IPv6, which has no routes by name; expected an IPv4 address, or pool \
             instead of sni and http"
        );
        findings.add(place, words);
    }
    let keepalive = named.value.life.keepalive.as_ref();
    if let Some(At { place: at, .. }) = keepalive.filter(|at| is_own(&at.place)) {
        let blamed = named.blame(at);
        let words = format!(
            "flows of IPv6 are not probed, and this service has some in {}; leave keepalive out",
            findings.line(place, blamed)
        );
        findings.add(blamed, words);
    }
}

/// A list of prefixes that are all of another family than `clients`, the possible clients, is a mistake.
pub(super) fn check_family(
    named: &Named<RawService>,
    list: &[(IpNet, &Location)],
    clients: &[IpNet],
    findings: &mut Findings,
) {
    let comes = |prefix: &IpNet| {
        let mut clients = clients.iter();
        clients.any(|all| all.addr().is_ipv4() == prefix.addr().is_ipv4())
    };
    if let (Some((prefix, place)), [all]) = (list.first(), clients)
        && !list.iter().any(|(prefix, _)| comes(prefix))
    {
        let written = if is_own(place) {
            ""
        } else {
            " among the defaults"
        };
        let words = format!(
            "{prefix}{written} is of {}, but service {} listens at {other} alone; expected a prefix of {other}",
            family(prefix.addr()),
            named.name,
            other = family(all.addr())
        );
        findings.add(named.blame(place), words);
    }
}

/// The VIPs that can be read, and their places.
fn listen(raw: &RawService) -> impl Iterator<Item = (IpAddr, &Location)> {
    let listen = raw.listen.elements.iter();
    listen.map(|At { place, value }| (value.address, place))
}

/// The registry knows a backend as `POOL/NAME@NETWORK/ADDRESS`, for which the longest names leave no room
/// with an address of IPv6.
pub(super) fn check_name_lengths(
    config: &Config,
    pools: &List<Named<LiteralPool>>,
    findings: &mut Findings,
) {
    let length = |pool: &Pool, name: &str, address: IpAddr| {
        pool.name.len() + name.len() + pool.network.len() + address.to_string().len() + 3
    };
    for named in &pools.elements {
        let Some(pool) = config.pools.iter().find(|pool| pool.name == named.name) else {
            continue;
        };
        let mut backends = pool.backends.iter();
        let is_long =
            backends.find(|backend| length(pool, &backend.name, backend.address) > NAME_BYTES);
        if let Some(backend) = is_long {
            let words = format!(
                "the names of pool {}, of network {} and of backend {} have {} characters too many \
                 together; expected shorter ones",
                pool.name,
                pool.network,
                backend.name,
                length(pool, &backend.name, backend.address) - NAME_BYTES
            );
            findings.add(&named.place, words);
        }
    }
}
