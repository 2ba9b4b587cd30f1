//! Which network's clients reach which pool, and at which VIPs.

use std::{
    collections::{HashMap, hash_map},
    net::IpAddr,
};

use ipnet::IpNet;
use lb_common::maps;

use super::{
    address_index::Known,
    family::check_family,
    shared::{self, check_listen},
    timeouts::{Life, is_own},
};
use crate::config::{
    list::{List, Named},
    listen::Listen,
    model::{Role, Rule, Service, any},
    names::Names,
    place::{At, Location, quote, value_of},
    problem::Findings,
    schema::{AnyOrPrefixes, LiteralPool, RawService},
    shared::SynCookies,
};

/// The most VIPs, SNAT addresses and link-local ones of cells: the size of the map `ADDRESSES`.
const MAX_ADDRESSES: usize = 4096;

const _: () = assert!(MAX_ADDRESSES == maps::MAX_ADDRESSES as usize);

/// A service and the place of something of it.
#[derive(Clone, Copy)]
pub(super) struct Mention<'r> {
    pub(super) service: &'r str,
    pub(super) place: &'r Location,
}

/// What the services use, for the pools to be checked against.
#[derive(Default)]
pub(super) struct Usage<'r> {
    /// (index of the network, VIP) -> its first listen entry.
    pub(super) vips: HashMap<(usize, IpAddr), Mention<'r>>,
    /// Index of the pool -> the first service that uses it.
    pub(super) pools: HashMap<usize, Mention<'r>>,
    /// (index of the network, listen entry) -> where it was written first.
    listen: HashMap<(usize, Listen), Mention<'r>>,
    /// Whether it is reported that the VIPs are too many.
    crowded: bool,
}

/// The services, and what they use.
pub(super) fn validate<'r>(
    raw: &'r List<Named<RawService>>,
    networks: &Known<'r>,
    pools: &Names<'r>,
    findings: &mut Findings,
) -> (Vec<Service>, Usage<'r>) {
    let mut usage = Usage::default();
    let mut services = Vec::new();
    for named in &raw.elements {
        let network = named.value.network.as_ref();
        let network_index = network.and_then(|network| networks.names.find(network, findings));
        for pool in shared::pools(&named.value) {
            if let Some(index) = pools.find(pool, findings) {
                let user = Mention {
                    service: &named.name,
                    place: &named.place,
                };
                usage.pools.entry(index).or_insert(user);
            }
        }
        let mut listen = Vec::new();
        for At { place, value } in &named.value.listen.elements {
            let entry = *value;
            listen.push(entry);
            check_listen(&named.value, entry, place, findings);
            if let Some(index) = network_index {
                let mention = Mention {
                    service: &named.name,
                    place,
                };
                usage.add_listen(index, entry, mention, networks, findings);
            }
        }
        let life = Life::read(named, &listen, named.value.listen.whole, findings);
        let rules = rules(named, &listen, findings);
        let target = shared::target(named, findings);
        check_cookies(named, &listen, findings);
        if let (Some(network), Some(target)) = (network, target) {
            services.push(Service {
                hosted: None,
                name: named.name.clone(),
                network: network.value.clone(),
                listen,
                target,
                rules,
                idle_timeout: life.idle_timeout,
                udp_idle_timeout: life.udp_idle_timeout,
                keepalive: life.keepalive,
                reject: value_of(&named.value.life.reject),
                syn_cookies: match &named.value.life.syn_cookies {
                    Some(at) => at.value,
                    None => SynCookies::Auto,
                },
                max_flows: named.value.max_flows.as_ref().map(|at| at.value),
            });
        }
    }
    (services, usage)
}

/// SYNs are answered by cookies where XDP opens the flows of a pool, over IPv4.
fn check_cookies(named: &Named<RawService>, listen: &[Listen], findings: &mut Findings) {
    let raw = &named.value;
    let Some(At { value, place }) = raw.life.syn_cookies.as_ref() else {
        return;
    };
    // What is written for a cluster, or among the defaults, is for those of its services that can have it.
    let is_own = place.key.starts_with(&named.place.key);
    if *value == SynCookies::Never || !is_own {
        return;
    }
    let words = if raw.sni.is_some() {
        "a service with sni has this key in there; expected it in sni"
    } else if raw.http.is_some() {
        "lb accepts the connections of a service with http, and the kernel answers their SYNs by cookies in a flood; expected \
         syn_cookies: never, or no such key"
    } else if *value == SynCookies::Always && listen.iter().any(|entry| entry.address.is_ipv6()) {
        "SYNs over IPv6 have no cookies; expected listeners of IPv4 alone, or auto"
    } else {
        return;
    };
    findings.add(named.blame(place), words);
}

/// The clients that may use the service. `deny` alone lets all others in.
fn rules(named: &Named<RawService>, listen: &[Listen], findings: &mut Findings) -> Vec<Rule> {
    let raw = &named.value;
    let clients = possible_clients(listen);
    let allowed = prefixes(raw.allow.as_ref(), &clients);
    let denied = prefixes(raw.deny.as_ref(), &clients);
    check_family(named, &allowed, &clients, findings);
    // The clients that a default denies may be those of other services alone.
    if denied.first().is_some_and(|(_, place)| is_own(place)) {
        check_family(named, &denied, &clients, findings);
    }
    for (prefix, place) in denied.iter().filter(|(prefix, _)| prefix.prefix_len() == 0) {
        // In words of its own where the file has no `allow` that it is in conflict with.
        if raw.allow.is_none() {
            findings.add(
                place,
                format!("{prefix} denies every client; expected prefixes"),
            );
        }
    }
    let mut first = HashMap::new();
    let mut rules = Vec::new();
    if raw.allow.is_none() && raw.deny.is_some() {
        rules.extend(clients.iter().map(|&prefix| Rule {
            prefix,
            allow: true,
        }));
    }
    let allowed = allowed
        .into_iter()
        .map(|(prefix, place)| (prefix, place, true));
    let denied = denied
        .into_iter()
        .map(|(prefix, place)| (prefix, place, false));
    for (prefix, place, allow) in allowed.chain(denied) {
        match first.entry(prefix) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(place);
                rules.push(Rule { prefix, allow });
            }
            hash_map::Entry::Occupied(first) => {
                let words = format!(
                    "{prefix} is already listed in {}",
                    findings.line(first.get(), place)
                );
                findings.add(place, words);
            }
        }
    }
    rules.sort_unstable();
    let is_all = |rule: &Rule| rule.allow && rule.prefix.prefix_len() == 0;
    let has = |prefix: &IpNet| rules.iter().any(|rule| rule.prefix == *prefix);
    if rules.iter().all(is_all) && clients.iter().all(has) {
        rules.clear();
    }
    rules
}

/// All clients that may come to `listen`: those of its families.
fn possible_clients(listen: &[Listen]) -> Vec<IpNet> {
    let is_of = |prefix: &IpNet, entry: &Listen| prefix.addr().is_ipv4() == entry.address.is_ipv4();
    let mut clients = any().to_vec();
    clients.retain(|prefix| listen.iter().any(|entry| is_of(prefix, entry)));
    clients
}

/// The prefixes that are written, where `any` means `clients`.
pub(super) fn prefixes<'r>(
    raw: Option<&'r At<AnyOrPrefixes>>,
    clients: &[IpNet],
) -> Vec<(IpNet, &'r Location)> {
    match raw {
        None => Vec::new(),
        Some(At {
            place,
            value: AnyOrPrefixes::Any,
        }) => clients.iter().map(|&prefix| (prefix, place)).collect(),
        Some(At {
            value: AnyOrPrefixes::Prefixes(list),
            ..
        }) => {
            let prefixes = list.elements.iter();
            prefixes
                .map(|At { place, value }| (*value, place))
                .collect()
        }
    }
}

/// No client on the management network opens a flow to a tenant.
pub(super) fn check_directions(
    services: &List<Named<RawService>>,
    networks: &Known<'_>,
    pool_names: &Names<'_>,
    pools: &List<Named<LiteralPool>>,
    findings: &mut Findings,
) {
    for named in &services.elements {
        let is = |name: &str, role: Role| networks.role(name) == Some(role);
        let network = named.value.network.as_ref();
        let Some(network) = network.filter(|network| is(&network.value, Role::Mgmt)) else {
            continue;
        };
        for pool in shared::pools(&named.value) {
            let backends = pool_names
                .position(&pool.value)
                .and_then(|index| pools.elements.get(index)?.value.keys.network.as_ref());
            if let Some(to) = backends.filter(|to| is(&to.value, Role::Tenant)) {
                let words = format!(
                    "the backends of {} are on network {} of a tenant; from network {}, which is \
                     mgmt, no flow to a tenant is opened",
                    quote(&pool.value),
                    to.value,
                    network.value
                );
                findings.add(named.blame(&pool.place), words);
            }
        }
    }
}

impl<'r> Usage<'r> {
    fn add_listen(
        &mut self,
        network: usize,
        entry: Listen,
        mention: Mention<'r>,
        networks: &Known<'r>,
        findings: &mut Findings,
    ) {
        let place = mention.place;
        let facts = networks.facts(network);
        findings.check(place, facts.check_vip(entry.address));
        if let Some(words) = facts.snat_conflict(entry, place, findings) {
            findings.add(place, words);
        }
        if let Some(checks) = facts.checks.place(entry.address) {
            let words = format!(
                "checks of network {} come from {} in {}; expected an address of its own",
                facts.name,
                entry.address,
                findings.line(checks, place)
            );
            findings.add(place, words);
        }
        self.vips.entry((network, entry.address)).or_insert(mention);
        if !self.crowded && self.vips.len() + networks.addresses() > MAX_ADDRESSES {
            self.crowded = true;
            let words = format!("more than {MAX_ADDRESSES} VIPs and SNAT addresses in all");
            findings.add(place, words);
        }
        match self.listen.entry((network, entry)) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(mention);
            }
            hash_map::Entry::Occupied(first) => {
                let Mention {
                    service,
                    place: first,
                } = first.get();
                let line = findings.line(first, place);
                let words = format!("{entry} is already used by service {service} in {line}");
                findings.add(place, words);
            }
        }
    }
}
