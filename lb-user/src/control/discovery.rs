//! The backends that clusters of Kubernetes have, in the pools that want them. What a cluster says is no configuration: it
//! is judged here, and what is refused of it is left out.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use crate::{
    config::{Backend, Config, Discover, Network, Pool, ServicePort, is_backend_name},
    sources::kubernetes::FoundNode,
};

/// The ports that a Service may have at nodes (`--service-node-port-range`).
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// A configuration with what was discovered, and what is to be known of that.
#[derive(Debug)]
pub(super) struct MergedConfig {
    pub(super) config: Config,
    /// What was left out, a line each.
    pub(super) refused: BTreeSet<String>,
    /// Pools whose backends stay though their cluster has none now, a line each.
    pub(super) held: BTreeSet<String>,
}

/// Puts what `found` has for a port of a service into the pools that want it: all that the cluster has now, or, where nothing
/// is known of it, what it had in the configuration `before`. Backends of which a cluster has none any more stay as long as
/// one of them `serves`.
pub(super) fn merged(
    config: &Config,
    before: &Config,
    found: impl Fn(&ServicePort) -> Option<Vec<FoundNode>>,
    serves: impl Fn(&Pool, &Backend) -> bool,
) -> MergedConfig {
    let mut merge = Merge {
        config,
        before,
        room: room(config),
        refused: BTreeSet::new(),
        held: BTreeSet::new(),
    };
    let pools = config
        .pools
        .iter()
        .map(|pool| match pool.discover.is_empty() {
            true => pool.clone(),
            false => merge.pool(pool, &found, &serves),
        });
    let pools = pools.collect();
    MergedConfig {
        config: Config {
            pools,
            ..config.clone()
        },
        refused: merge.refused,
        held: merge.held,
    }
}

/// How many backends may be discovered beside those of the file.
fn room(config: &Config) -> usize {
    let backends = config.pools.iter().flat_map(|pool| &pool.backends);
    let literal = backends.filter(|backend| backend.discovered.is_none());
    let limit = usize::try_from(config.limits.backends).unwrap_or(usize::MAX);
    limit.saturating_sub(literal.count())
}

struct Merge<'c> {
    config: &'c Config,
    before: &'c Config,
    room: usize,
    refused: BTreeSet<String>,
    held: BTreeSet<String>,
}

impl Merge<'_> {
    fn pool(
        &mut self,
        pool: &Pool,
        found: impl Fn(&ServicePort) -> Option<Vec<FoundNode>>,
        serves: impl Fn(&Pool, &Backend) -> bool,
    ) -> Pool {
        let literal = pool.backends.iter().filter(|one| one.discovered.is_none());
        let mut members = Members::of(literal.cloned().collect());
        for wanted in &pool.discover {
            let before = self.before(pool, wanted);
            let now = found(&wanted.of).map(|nodes| self.judged(pool, wanted, nodes));
            let stays = |now: &Vec<Backend>| {
                now.is_empty() && before.iter().any(|backend| serves(pool, backend))
            };
            match now {
                None => before.into_iter().for_each(|one| members.add(one)),
                Some(now) if stays(&now) => {
                    self.held.insert(format!(
                        "pool {}: no node has {} any more; {} backends stay until their checks fail",
                        pool.name,
                        wanted.of,
                        before.len()
                    ));
                    before.into_iter().for_each(|one| members.add(one));
                }
                Some(now) => now.into_iter().for_each(|one| members.add(one)),
            }
        }
        self.bounded(pool, members)
    }

    /// What a pool had for this, with the weight that is wanted now.
    fn before(&self, pool: &Pool, wanted: &Discover) -> Vec<Backend> {
        let before = self.before.pool(&pool.name);
        let before = before.filter(|before| before.network == pool.network);
        let backends = before.into_iter().flat_map(|before| &before.backends);
        let of_wanted = backends.filter(|one| one.discovered.as_ref() == Some(&wanted.of));
        let backends = of_wanted.map(|backend| Backend {
            weight: wanted.weight,
            backup: wanted.backup,
            ..backend.clone()
        });
        backends.collect()
    }

    /// The backends that nodes are, without those that are none of this pool.
    fn judged(&mut self, pool: &Pool, wanted: &Discover, nodes: Vec<FoundNode>) -> Vec<Backend> {
        let Some(network) = self.config.network(&pool.network) else {
            return Vec::new();
        };
        let is_ipv6 = is_of_ipv6(pool, network, &nodes);
        let mut backends = Vec::new();
        for node in nodes {
            let of_family = |address: &&IpAddr| address.is_ipv6() == is_ipv6;
            // One without any is none of this pool's, and no news.
            let Some(&address) = node.addresses.iter().find(of_family) else {
                continue;
            };
            match self.refusal(network, address, node.port) {
                None => backends.push(Backend {
                    name: node.name,
                    address,
                    port: node.port,
                    weight: wanted.weight,
                    backup: wanted.backup,
                    discovered: Some(wanted.of.clone()),
                }),
                Some(why) => {
                    let (pool, name) = (&pool.name, node.name.escape_debug());
                    self.refused
                        .insert(format!("pool {pool}: node {name} of {}: {why}", wanted.of));
                }
            }
        }
        backends
    }

    /// Why an address and port cannot be a backend on this network.
    fn refusal(&self, network: &Network, address: IpAddr, port: u16) -> Option<String> {
        let name = &network.name;
        if !network
            .backends
            .iter()
            .any(|prefix| prefix.contains(&address))
        {
            return Some(format!(
                "{address} is in no `backends` prefix of network {name}"
            ));
        }
        if !NODE_PORTS.contains(&port) {
            let (first, last) = (NODE_PORTS.start(), NODE_PORTS.end());
            return Some(format!("{port} is no NodePort; expected {first} to {last}"));
        }
        let services = self.config.services.iter();
        let mut here = services.filter(|service| service.network == *name);
        if here.any(|service| service.listen.iter().any(|vip| vip.address == address)) {
            return Some(format!("{address} is a VIP of network {name}"));
        }
        let is_snat = network.all_snat().any(|snat| snat.address == address);
        if is_snat {
            return Some(format!("{address} is a SNAT address of network {name}"));
        }
        let is_of_checks = network.all_checks_from().any(|one| one == address);
        is_of_checks.then(|| format!("checks of network {name} come from {address}"))
    }

    /// As many as there is room for.
    fn bounded(&mut self, pool: &Pool, members: Members) -> Pool {
        let Members { mut backends, .. } = members;
        let literal = backends.partition_point(|backend| backend.discovered.is_none());
        let discovered = backends.len() - literal;
        if discovered > self.room {
            self.refused.insert(format!(
                "pool {}: {} of {discovered} discovered backends: `limits.backends` has no room for more",
                pool.name,
                discovered - self.room
            ));
            backends.truncate(literal + self.room);
        }
        self.room -= backends.len() - literal;
        Pool {
            backends,
            ..pool.clone()
        }
    }
}

/// All backends of a pool are of one family: that of those in the file, else that of the network, which prefers IPv4 where it
/// has both and the nodes do, too.
fn is_of_ipv6(pool: &Pool, network: &Network, nodes: &[FoundNode]) -> bool {
    let literal = pool.backends.iter().find(|one| one.discovered.is_none());
    if let Some(backend) = literal {
        return backend.address.is_ipv6();
    }
    let addresses = || nodes.iter().flat_map(|node| &node.addresses);
    let has_4 = |snat: &IpAddr| snat.is_ipv4();
    let of_network = network.snat.iter().any(|snat| has_4(&snat.address));
    !(of_network && addresses().any(has_4)) && network.has_ipv6()
}

/// The backends of a pool, each with a name and a tuple of its own.
struct Members {
    backends: Vec<Backend>,
    names: HashSet<String>,
    tuples: HashSet<(IpAddr, u16)>,
}

impl Members {
    fn of(backends: Vec<Backend>) -> Self {
        Self {
            names: backends.iter().map(|one| one.name.clone()).collect(),
            tuples: backends.iter().map(|one| (one.address, one.port)).collect(),
            backends,
        }
    }

    /// Adds one, unless its tuple is there. It has the name of its node, with the port behind it if another one has that, or
    /// else its address and port.
    fn add(&mut self, backend: Backend) {
        if !self.tuples.insert((backend.address, backend.port)) {
            return;
        }
        let tuple = SocketAddr::new(backend.address, backend.port).to_string();
        let with_port = format!("{}:{}", backend.name, backend.port);
        let names = [backend.name.clone(), with_port, tuple];
        let name = names
            .into_iter()
            .find(|name| is_backend_name(name) && !self.names.contains(name));
        let Some(name) = name else {
            return;
        };
        self.names.insert(name.clone());
        self.backends.push(Backend { name, ..backend });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config;

    /// Two pools want the same service, one of them beside a backend of its own.
    const FILE: &str = "version: 1
networks:
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24], snat: [192.168.203.9] }
kubernetes: { hub: { kubeconfig: /etc/lb/hub.kubeconfig } }
pools:
  api: { network: mgmt, backends: { discover: { cluster: hub, service: a/kas, port: https } } }
  both:
    network: mgmt
    backends: [\"10.32.96.200:1\", { discover: { cluster: hub, service: a/kas, port: https }, weight: 7, backup: true }]
services:
  api: { network: a, listen: [\"192.168.203.110:6443/tcp\"], pool: api }
  vip: { network: mgmt, listen: [\"10.32.96.60:1/tcp\"], pool: both }
";

    fn file() -> Config {
        config::parse("lb.yaml", FILE).unwrap()
    }

    fn node(name: &str, address: &str, port: u16) -> FoundNode {
        FoundNode {
            name: name.to_owned(),
            addresses: address.split(' ').map(|one| one.parse().unwrap()).collect(),
            port,
        }
    }

    fn nodes() -> Vec<FoundNode> {
        vec![
            node("n1", "10.32.96.105", 30_918),
            node("n2", "fd00::1 10.32.96.106", 30_918),
        ]
    }

    fn merge(before: &Config, found: Option<&[FoundNode]>, serves: bool) -> MergedConfig {
        merged(
            &file(),
            before,
            |_| found.map(<[FoundNode]>::to_vec),
            |_, _| serves,
        )
    }

    /// Backends of all pools, by pool: `NAME ADDRESS:PORT`.
    fn backends(config: &Config) -> BTreeMap<&str, Vec<String>> {
        let pools = config.pools.iter().map(|pool| {
            let backends = pool.backends.iter();
            let backends = backends.map(|one| format!("{} {}:{}", one.name, one.address, one.port));
            (pool.name.as_str(), backends.collect())
        });
        pools.collect()
    }

    #[test]
    fn nodes_are_backends_of_all_pools_that_want_them() {
        let MergedConfig {
            config,
            refused,
            held,
        } = merge(&file(), Some(&nodes()), true);
        let all = backends(&config);
        assert_eq!(
            all["api"],
            ["n1 10.32.96.105:30918", "n2 10.32.96.106:30918"]
        );
        let both = [
            "10.32.96.200:1 10.32.96.200:1",
            "n1 10.32.96.105:30918",
            "n2 10.32.96.106:30918",
        ];
        assert_eq!(all["both"], both);
        let last = config
            .pool("both")
            .unwrap()
            .backends
            .last()
            .unwrap()
            .clone();
        assert_eq!((last.weight, last.backup), (7, true));
        assert!(
            refused.is_empty() && held.is_empty(),
            "{refused:?} {held:?}"
        );
        // The same again is no change.
        assert_eq!(merge(&config, Some(&nodes()), true).config, config);
    }

    #[test]
    fn an_unknown_cluster_has_what_it_had() {
        let before = merge(&file(), Some(&nodes()), true).config;
        let MergedConfig { config, held, .. } = merge(&before, None, false);
        assert_eq!(config, before);
        assert!(held.is_empty());
        assert_eq!(merge(&file(), None, false).config, file());
    }

    #[test]
    fn no_node_any_more_is_believed_when_the_checks_agree() {
        let before = merge(&file(), Some(&nodes()), true).config;
        let MergedConfig { config, held, .. } = merge(&before, Some(&[]), true);
        assert_eq!(config, before);
        assert_eq!(held.len(), 2, "{held:?}");
        let MergedConfig { config, held, .. } = merge(&before, Some(&[]), false);
        assert_eq!(config, file());
        assert!(held.is_empty());
        // Of two the one that is left is no reason to hold.
        let MergedConfig { config, .. } = merge(&before, Some(&nodes()[..1]), true);
        assert_eq!(backends(&config)["api"], ["n1 10.32.96.105:30918"]);
    }

    #[test]
    fn what_is_none_of_the_networks_backends_is_refused() {
        let bad = [
            node("loopback", "127.0.0.1", 30_918),
            node("tenant", "192.168.203.101", 30_918),
            node("ssh", "10.32.96.105", 22),
            node("above", "10.32.96.105", 32_768),
            node("snat", "10.32.96.50", 30_918),
            node("vip", "10.32.96.60", 30_918),
            node("good", "10.32.96.105", 32_767),
        ];
        let MergedConfig {
            config, refused, ..
        } = merge(&file(), Some(&bad), true);
        assert_eq!(backends(&config)["api"], ["good 10.32.96.105:32767"]);
        let of_api: Vec<_> = refused
            .iter()
            .filter(|line| line.starts_with("pool api: "))
            .collect();
        assert_eq!(of_api.len(), 6, "{refused:?}");
        for words in [
            "node loopback of port https of service a/kas of hub: 127.0.0.1 is in no `backends` prefix of network mgmt",
            "node ssh of port https of service a/kas of hub: 22 is no NodePort; expected 30000 to 32767",
            "10.32.96.50 is a SNAT address of network mgmt",
            "10.32.96.60 is a VIP of network mgmt",
        ] {
            assert!(
                of_api.iter().any(|line| line.contains(words)),
                "{words}: {of_api:?}"
            );
        }
    }

    #[test]
    fn names_and_tuples_are_unique_and_room_is_limited() {
        let odd = [
            node("n1", "10.32.96.105", 30_918),
            node("N 1", "10.32.96.106", 30_918),
            node("n1", "10.32.96.107", 30_918),
            node("again", "10.32.96.105", 30_918),
        ];
        let config = merge(&file(), Some(&odd), true).config;
        assert_eq!(
            backends(&config)["api"],
            [
                "n1 10.32.96.105:30918",
                "10.32.96.106:30918 10.32.96.106:30918",
                "n1:30918 10.32.96.107:30918",
            ]
        );
        let mut small = file();
        small.limits.backends = 4;
        let MergedConfig {
            config, refused, ..
        } = merged(&small, &small, |_| Some(odd.to_vec()), |_, _| true);
        let counts: Vec<usize> = config
            .pools
            .iter()
            .map(|pool| pool.backends.len())
            .collect();
        assert_eq!(counts, [3, 1]);
        assert_eq!(refused.len(), 1, "{refused:?}");
    }
}
