//! Pools: backends that can be reached, and that are not this load balancer itself.

use std::collections::HashMap;

use super::{
    check_name,
    network::Known,
    service::{Mention, Usage},
};
use crate::config::{
    address,
    model::{Backend, Pool},
    place::{At, Place, quote},
    problem::Findings,
    schema::{List, Named, RawBackend, RawPool},
};

/// The largest weight of a backend. A Maglev table has room for a few of them, not for thousands.
const MAX_WEIGHT: u16 = 256;

/// The one way of choosing a backend so far.
const MAGLEV: &str = "maglev";

/// The pools.
pub(super) fn validate(
    raw: &List<Named<RawPool>>,
    networks: &Known<'_>,
    usage: &Usage<'_>,
    findings: &mut Findings,
) -> Vec<Pool> {
    let mut pools = Vec::new();
    for (index, named) in raw.elements.iter().enumerate() {
        check_name(&named.name, &named.place, findings);
        check_balance(&named.value, findings);
        let network = named.value.network.as_ref();
        let network_index = network.and_then(|network| networks.names.find(network, findings));
        if let (Some(at), Some(network)) = (network, network_index) {
            let user = usage.pools.get(&index);
            check_snat(&at.place, network, networks, user, findings);
        }
        let backends = backends(&named.value, findings);
        if let Some(network) = network_index {
            for (backend, place) in &backends {
                check_reachable(backend, network, networks, usage, place, findings);
            }
        }
        if let Some(network) = network {
            pools.push(Pool {
                name: named.name.clone(),
                network: network.value.clone(),
                backends: backends.into_iter().map(|(backend, _)| backend).collect(),
            });
        }
    }
    pools
}

fn check_balance(raw: &RawPool, findings: &mut Findings) {
    if let Some(balance) = raw.balance.as_ref().filter(|at| at.value != MAGLEV) {
        let words = format!("found {}, expected {MAGLEV}", quote(&balance.value));
        findings.add(&balance.place, words);
    }
}

/// Every flow is full NAT: without a SNAT address on the backends' network there is none.
fn check_snat(
    place: &Place,
    network: usize,
    networks: &Known<'_>,
    user: Option<&Mention<'_>>,
    findings: &mut Findings,
) {
    let facts = networks.facts(network);
    if let Some(Mention { service, line }) = user.filter(|_| facts.without_snat) {
        let words = format!(
            "network {} in line {} has no snat address, but service {service} in line {line} \
             uses this pool",
            facts.name, facts.line
        );
        findings.add(place, words);
    }
}

/// The backends that could be read, each with the place of its address.
fn backends<'r>(raw: &'r RawPool, findings: &mut Findings) -> Vec<(Backend, &'r Place)> {
    let mut backends = Vec::new();
    // Address and port, and name -> line.
    let mut tuples = HashMap::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    for At { value: raw, .. } in &raw.backends.elements {
        let weight = weight(raw, findings);
        if let Some(At { place, value }) = &raw.name {
            check_name(value, place, findings);
            match names.get(value) {
                Some(line) => {
                    let words = format!("{} is already used in line {line}", quote(value));
                    findings.add(place, words);
                }
                None => {
                    names.insert(value.clone(), place.line);
                }
            }
        }
        let Some(At { place, value }) = &raw.address else {
            continue;
        };
        let Some((address, port)) = findings.check(place, address::address_and_port(value)) else {
            continue;
        };
        let first = *tuples.entry((address, port)).or_insert(place);
        if first != place {
            let words = format!("{address}:{port} is already listed in line {}", first.line);
            findings.add(place, words);
        }
        let name = match &raw.name {
            Some(name) => name.value.clone(),
            None => format!("{address}:{port}"),
        };
        let backend = Backend {
            name,
            address,
            port,
            weight,
        };
        backends.push((backend, place));
    }
    backends
}

fn weight(raw: &RawBackend, findings: &mut Findings) -> u16 {
    let Some(At { place, value }) = &raw.weight else {
        return 1;
    };
    match u16::try_from(*value) {
        Ok(weight @ 1..=MAX_WEIGHT) => weight,
        _ => {
            findings.add(place, format!("found {value}, expected 1 to {MAX_WEIGHT}"));
            1
        }
    }
}

fn check_reachable(
    backend: &Backend,
    network: usize,
    networks: &Known<'_>,
    usage: &Usage<'_>,
    place: &Place,
    findings: &mut Findings,
) {
    let facts = networks.facts(network);
    let address = backend.address;
    findings.check(place, facts.check_host(address, "backend"));
    if let Some(vip) = usage.vips.get(&(network, address)) {
        let words = format!(
            "{address} is the VIP of service {} in line {}; expected a backend, not the load \
             balancer itself",
            vip.service, vip.line
        );
        findings.add(place, words);
    } else if let Some(line) = facts.snat_line(address) {
        let words = format!(
            "{address} is a SNAT address of network {} in line {line}; expected a backend, not the \
             load balancer itself",
            facts.name
        );
        findings.add(place, words);
    }
}
