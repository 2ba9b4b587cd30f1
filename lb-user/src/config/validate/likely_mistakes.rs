//! What is allowed, and is hardly ever meant: warnings.

use super::address_index::Known;
use crate::config::{
    list::{List, Named},
    model::Role,
    place::At,
    problem::Findings,
    schema::{AnyOrPrefixes, RawNetwork, RawService},
};

/// Warns of an `allow` that no client of the service's network can match.
pub(super) fn check_allow(
    services: &List<Named<RawService>>,
    networks: &Known<'_>,
    findings: &mut Findings,
) {
    for named in &services.elements {
        let RawService { network, allow, .. } = &named.value;
        let network = network.as_ref();
        let index = network.and_then(|network| networks.names.position(&network.value));
        let (Some(index), Some(allow)) = (index, allow) else {
            continue;
        };
        let AnyOrPrefixes::Prefixes(prefixes) = &allow.value else {
            continue;
        };
        let facts = networks.facts(index);
        for At { place, value } in &prefixes.elements {
            if facts.has_no_client_in(value) {
                let sources: Vec<String> = facts.sources.iter().map(ToString::to_string).collect();
                let words = format!(
                    "no client of network {} has an address in {value}, so service {} lets none in by it; its sources \
                     are {}",
                    facts.name,
                    named.name,
                    sources.join(", ")
                );
                findings.warn(named.blame(place), "idle-allow", words);
            }
        }
    }
}

/// Warns of a prefix of mgmt that contains one of a tenant.
pub(super) fn check_mgmt(networks: &List<Named<RawNetwork>>, findings: &mut Findings) {
    let of = |wanted: Role| {
        let networks = networks.elements.iter();
        networks.filter(move |named| {
            let role = named.value.role.as_ref();
            role.is_some_and(|role| role.value == wanted)
        })
    };
    for mgmt in of(Role::Mgmt) {
        for At {
            place,
            value: outer,
        } in &mgmt.value.prefixes.elements
        {
            let inside = of(Role::Tenant).find_map(|tenant| {
                let mut prefixes = tenant.value.prefixes.elements.iter();
                let inner = prefixes.find(|inner| outer.contains(&inner.value))?;
                Some((tenant, inner.value))
            });
            if let Some((tenant, inner)) = inside {
                let words = format!(
                    "{outer} of network {} contains {inner} of the tenant's network {}; expected prefixes of its own",
                    mgmt.name, tenant.name
                );
                findings.warn(place, "tenant-in-mgmt", words);
            }
        }
    }
}
