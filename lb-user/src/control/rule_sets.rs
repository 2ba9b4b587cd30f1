//! Rule sets: from prefixes of the configuration to numbered sets in the map. Pure.

use std::collections::BTreeMap;

use ipnet::IpNet;
use lb_common::maps::rule::{ALLOW, DENY, NEIGHBOUR, Owner};

use crate::{
    config::{self, Role},
    model::rules::Rules,
};

/// What may be a source in `network`: what the configuration has, but never the network and broadcast
/// addresses of a link; of IPv6 it has no broadcast address, and the first one is any router's. And what else
/// is on the link: a station there that may solicit the MAC of our addresses.
pub(super) fn sources(network: &config::Network) -> Rules {
    let mut rules: Rules = network
        .sources
        .iter()
        .map(|&prefix| (prefix, ALLOW))
        .collect();
    for prefix in &network.prefixes {
        if !network.sources.iter().any(|source| source.contains(prefix)) {
            rules.insert(*prefix, NEIGHBOUR);
        }
        rules.insert(IpNet::from(prefix.network()), DENY);
        if prefix.addr().is_ipv4() {
            rules.insert(IpNet::from(prefix.broadcast()), DENY);
        }
    }
    rules
}

/// What is on the link of `network`, what it has behind its gateways, and what its frames must not reach through the
/// host: what the tenants' networks have, except where the network itself has the same addresses. No frame of a
/// tenant gets there.
pub(super) fn destinations(network: &config::Network, all: &[config::Network]) -> Rules {
    let own: Vec<IpNet> = reach(network).collect();
    let others = all.iter().filter(|_| network.role != Role::Tenant);
    let tenants = others.filter(|other| other.role == Role::Tenant);
    let theirs = tenants.flat_map(reach);
    let theirs = theirs.filter(|prefix| !own.iter().any(|own| own.contains(prefix)));
    let mut rules: Rules = theirs.map(|prefix| (prefix, DENY)).collect();
    rules.extend(behind(network).map(|prefix| (prefix, ALLOW)));
    rules.extend(network.prefixes.iter().map(|&prefix| (prefix, NEIGHBOUR)));
    rules
}

/// The prefixes of a network, on its link and behind its gateways.
fn reach(network: &config::Network) -> impl Iterator<Item = IpNet> {
    network.prefixes.iter().copied().chain(behind(network))
}

/// The prefixes behind its gateways, but for that of everything else.
fn behind(network: &config::Network) -> impl Iterator<Item = IpNet> {
    let routes = network.routes.iter().map(|route| route.to);
    routes.filter(|to| to.prefix_len() > 0)
}

/// The clients of `service`; nothing if it takes every client that its network lets in.
pub(super) fn clients(service: &config::Service) -> Rules {
    let verdict = |rule: &config::Rule| if rule.allow { ALLOW } else { DENY };
    service
        .rules
        .iter()
        .map(|rule| (rule.prefix, verdict(rule)))
        .collect()
}

/// Which set an owner's rules are in, or shall be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RuleSetChoice {
    /// Its number.
    pub(super) set: u32,
    /// Whether it holds these rules already.
    pub(super) written: bool,
}

/// Chooses the set for the rules of `owner`: one that holds them already, else one that nothing
/// points to. `held` are the sets in the map, `used` the numbers that records point to.
pub(super) fn choose(
    owner: Owner,
    rules: &Rules,
    held: &BTreeMap<u32, Rules>,
    used: impl Fn(u32) -> bool,
) -> RuleSetChoice {
    let sets = owner.sets();
    let written = sets.into_iter().find(|set| held.get(set) == Some(rules));
    let [first, second] = sets;
    // Both are in use only if a change was interrupted and then another one requested.
    let unused = if used(first) { second } else { first };
    RuleSetChoice {
        set: written.unwrap_or(unused),
        written: written.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], routes: [{ to: 0.0.0.0/0, via: 10.32.96.1 }] }
  tenant-a: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24] }
  tenant-b: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24] }
  tenant-c: { role: tenant, interface: eth0, vlan: 2005, prefixes: [10.32.0.0/16] }
  tenant-d: { role: tenant, interface: eth0, vlan: 2006, prefixes: [10.32.97.0/24], routes: [{ to: 172.20.0.0/16, via: 10.32.97.1 }, { to: 0.0.0.0/0, via: 10.32.97.1 }] }
";

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn network_and_broadcast_address_are_no_sources() {
        let config = config::parse("f", CONFIG).unwrap();
        let rules = sources(config.network("mgmt").unwrap());
        let expected = [
            (net("10.32.96.0/20"), ALLOW),
            (net("10.32.96.0/32"), DENY),
            (net("10.32.111.255/32"), DENY),
        ];
        assert_eq!(rules, Rules::from(expected));
    }

    /// Backends and gateways solicit our addresses whether they may be clients or not.
    #[test]
    fn what_is_on_the_link_of_a_network_may_be_a_station_of_it() {
        let keys = "prefixes: [10.32.96.0/20], sources: [10.32.96.128/25, 10.50.0.0/16]";
        let text = CONFIG.replacen("prefixes: [10.32.96.0/20]", keys, 1);
        let config = config::parse("f", &text).unwrap();
        let expected = [
            (net("10.32.96.128/25"), ALLOW),
            (net("10.50.0.0/16"), ALLOW),
            (net("10.32.96.0/20"), NEIGHBOUR),
            (net("10.32.96.0/32"), DENY),
            (net("10.32.111.255/32"), DENY),
        ];
        assert_eq!(
            sources(config.network("mgmt").unwrap()),
            Rules::from(expected)
        );
    }

    #[test]
    fn both_families_have_rules_of_their_own() {
        let text = CONFIG
            .replace("[10.32.96.0/20]", "[10.32.96.0/20, fd00:96::/64]")
            .replacen("[192.168.203.0/24]", "[192.168.203.0/24, fd00:203::/64]", 1);
        let config = config::parse("f", &text).unwrap();
        let mgmt = config.network("mgmt").unwrap();
        let of_6 = |rules: Rules| -> Vec<_> {
            let rules = rules
                .into_iter()
                .filter(|(prefix, _)| prefix.addr().is_ipv6());
            rules.collect()
        };
        let expected = [(net("fd00:96::/128"), DENY), (net("fd00:96::/64"), ALLOW)];
        let mut found = of_6(sources(mgmt));
        found.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.prefix_len()));
        assert_eq!(found, expected);
        let expected = [
            (net("fd00:96::/64"), NEIGHBOUR),
            (net("fd00:203::/64"), DENY),
        ];
        assert_eq!(of_6(destinations(mgmt, &config.networks)), expected);
    }

    #[test]
    fn mgmt_reaches_no_tenant_but_keeps_its_own_addresses() {
        let config = config::parse("f", CONFIG).unwrap();
        let rules = |name: &str| destinations(config.network(name).unwrap(), &config.networks);
        let expected = [
            (net("192.168.203.0/24"), DENY),
            (net("10.32.0.0/16"), DENY),
            (net("10.32.96.0/20"), NEIGHBOUR),
            (net("172.20.0.0/16"), DENY),
        ];
        assert_eq!(rules("mgmt"), Rules::from(expected));
    }

    #[test]
    fn the_link_is_known_from_what_is_behind_its_gateways() {
        let config = config::parse("f", CONFIG).unwrap();
        let rules = |name: &str| destinations(config.network(name).unwrap(), &config.networks);
        let expected = [(net("192.168.203.0/24"), NEIGHBOUR)];
        assert_eq!(rules("tenant-a"), Rules::from(expected));
        let expected = [
            (net("10.32.97.0/24"), NEIGHBOUR),
            (net("172.20.0.0/16"), ALLOW),
        ];
        assert_eq!(rules("tenant-d"), Rules::from(expected));
    }

    #[test]
    fn changed_rules_go_into_the_set_that_is_not_in_use() {
        let owner = Owner::Service(7);
        let [first, second] = owner.sets();
        let old = Rules::from([(net("10.0.0.0/8"), ALLOW)]);
        let new = Rules::from([(net("10.0.0.0/9"), ALLOW)]);
        let fresh = choose(owner, &old, &BTreeMap::new(), |_| false);
        assert_eq!(
            fresh,
            RuleSetChoice {
                set: first,
                written: false
            }
        );
        let held = BTreeMap::from([(first, old.clone())]);
        let same = choose(owner, &old, &held, |set| set == first);
        assert_eq!(
            same,
            RuleSetChoice {
                set: first,
                written: true
            }
        );
        let changed = choose(owner, &new, &held, |set| set == first);
        assert_eq!(
            changed,
            RuleSetChoice {
                set: second,
                written: false
            }
        );
        let back = BTreeMap::from([(first, old), (second, new.clone())]);
        let interrupted = choose(owner, &new, &back, |_| true);
        assert_eq!(
            interrupted,
            RuleSetChoice {
                set: second,
                written: true
            }
        );
    }
}
