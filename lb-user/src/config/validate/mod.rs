//! The second word of a change. Typed values become a [`Config`], or the reasons why not.
//!
//! Every entry is literal here. Networks come first, then services, because a VIP must be known
//! before a backend or a gateway can be found to be one, then pools. The result is whole only if
//! there was no problem; what could not be read is absent from it, and the caller drops it.

mod address_index;
mod admin;
mod checks_from;
mod family;
pub(in crate::config) mod ha;
mod health_and_drain;
mod kubernetes;
mod likely_mistakes;
mod network;
mod pool;
mod prefixes;
mod proxy;
mod quota;
mod service;
mod shared;
mod timeouts;

use lb_common::maps::{MAX_NETWORKS, MAX_RULES};
use serde_json::Value;

use super::{
    expand::Expanded,
    model::{Config, Limits, Network, Role},
    names::{self, Names},
    place::{Location, MAIN, value_of},
    problem::Findings,
    schema::{RawLimits, RawLog},
    syslog::Syslog,
};

/// The one version of the file format.
const VERSION: u64 = 1;

/// The most prefixes of all rule sets: a change writes new sets before it removes the old ones.
const MAX_PREFIXES: usize = 1 << 16;

const _: () = assert!(2 * MAX_PREFIXES == MAX_RULES as usize);

/// Checks everything that the schema cannot know.
pub(super) fn validate(raw: &Expanded, findings: &mut Findings) -> Config {
    for version in raw.versions.iter().filter(|at| at.value != VERSION) {
        let words = format!("found {}, expected {VERSION}", version.value);
        findings.add(&version.place, words);
    }
    let limits = limits(&raw.limits);
    check_capacities(raw, limits, findings);

    let boxes = ha::Boxes::new(raw.ha.as_ref(), names::host_name, findings);
    let (mut networks, known) = network::validate(&raw.networks, &boxes, findings);
    let pool_names = Names::new("pool", &raw.pools);
    let (services, usage) = service::validate(&raw.services, &known, &pool_names, findings);
    let kubernetes_names = Names::new(kubernetes::CLUSTER, &raw.kubernetes);
    let pools = pool::validate(&raw.pools, &known, &usage, &kubernetes_names, findings);
    service::check_directions(&raw.services, &known, &pool_names, &raw.pools, findings);
    likely_mistakes::check_allow(&raw.services, &known, findings);
    likely_mistakes::check_mgmt(&raw.networks, findings);
    shared::check_claims(&raw.services, findings);
    proxy::check_listeners(&raw.services, &pool_names, &raw.pools, findings);
    family::check(&raw.services, &pool_names, &raw.pools, findings);
    network::check_gateways(&known, &usage, findings);
    quota::size_rings(&raw.networks, &mut networks, &pools, &services);
    let admin = admin::admin(&raw.admin, &networks, &services, findings);
    let clusters = kubernetes::clusters(&raw.kubernetes, &raw.services, &networks, findings);
    let has_hosted = clusters.iter().any(|one| !one.hosted_clusters.is_empty());
    let mut config = Config {
        networks,
        pools,
        services,
        kubernetes: clusters,
        hosted: Vec::new(),
        cluster_defaults: cluster_defaults(raw).filter(|_| has_hosted),
        limits,
        timeouts: timeouts::timeouts(&raw.timeouts),
        flow_log: timeouts::flow_log(raw.log.flows.as_ref(), findings),
        syslog: syslog(&raw.log),
        admin,
        ha: None,
        http_log: timeouts::http_log(raw.log.http.as_ref(), raw.log.flows.as_ref(), findings),
        seed: raw.seed.as_ref().map(|at| at.value.clone()),
        syn_cookie_key: raw
            .syn_cookie_key
            .as_ref()
            .and_then(|at| names::file_path(at, "/etc/lb/syn-cookie.key", findings)),
        watch: value_of(&raw.watch),
        on_stop: value_of(&raw.on_stop),
    };
    let networks = &raw.networks.elements;
    config.ha = ha::ha(raw.ha.as_ref(), &boxes, networks, &config, findings);
    check_rules(&config, findings);
    quota::check(&config, &raw.networks, findings);
    family::check_name_lengths(&config, &raw.pools, findings);
    config
}

/// The defaults of `clusters`, for those that are discovered: a group of nodes is none of theirs.
fn cluster_defaults(raw: &Expanded) -> Option<Value> {
    let mut defaults = raw.cluster_defaults.clone()?;
    let keys = defaults.as_object_mut()?;
    keys.remove("nodes");
    keys.remove("apps");
    (!keys.is_empty()).then_some(defaults)
}

/// The syslog server, if there is one.
fn syslog(raw: &RawLog) -> Option<Syslog> {
    let syslog = raw.syslog.as_ref()?;
    Some(Syslog {
        to: syslog.value.to.as_ref()?.value.clone(),
        facility: value_of(&syslog.value.facility),
    })
}

/// Whether all rule sets fit into the map, and their successors beside them during a change.
fn check_rules(config: &Config, findings: &mut Findings) {
    let tenants = config
        .networks
        .iter()
        .filter(|network| network.role == Role::Tenant);
    let reach = |network: &Network| network.prefixes.len() + network.routes.len();
    let of_tenants: usize = tenants.map(reach).sum();
    let of_network = |network: &Network| {
        let destinations = match network.role {
            Role::Tenant => 0,
            Role::Mgmt | Role::Uplink => of_tenants,
        };
        // Of a link, the network and broadcast addresses are denied, and its stations have a rule.
        network.sources.len() + 3 * network.prefixes.len() + reach(network) + destinations
    };
    let networks: usize = config.networks.iter().map(of_network).sum();
    let services: usize = config
        .services
        .iter()
        .map(|service| service.rules.len())
        .sum();
    let total = networks + services;
    if total > MAX_PREFIXES {
        let place = Location::root(MAIN).with_key("services".to_owned());
        let words = format!(
            "{total} prefixes in allow, deny and sources of all, but there is room for {MAX_PREFIXES}"
        );
        findings.add(&place, words);
    }
}

fn limits(raw: &RawLimits) -> Limits {
    let RawLimits {
        snat_addresses,
        services,
        backends,
        pools,
        handed_over,
    } = raw;
    Limits {
        snat_addresses: value_of(snat_addresses),
        services: value_of(services),
        backends: value_of(backends),
        pools: value_of(pools),
        handed_over: value_of(handed_over),
    }
}

fn check_capacities(raw: &Expanded, limits: Limits, findings: &mut Findings) {
    let networks = raw.networks.elements.iter();
    let pools = raw.pools.elements.iter();
    let services = raw.services.elements.iter();
    let snat = networks
        .clone()
        .flat_map(|network| &network.value.snat.elements);
    let backends = pools.clone().flat_map(|pool| &pool.value.backends.elements);
    let listen = services.flat_map(|service| &service.value.listen.elements);
    let mut check = |places: Vec<&Location>, what: &str, limit: u32, source: &str| {
        let first_beyond = usize::try_from(limit)
            .ok()
            .and_then(|limit| places.get(limit));
        if let Some(place) = first_beyond {
            let total = match u16::try_from(places.len()) {
                Ok(total) => total.to_string(),
                Err(_) => format!("more than {}", u16::MAX),
            };
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
