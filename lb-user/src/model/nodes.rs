//! Nodes: which backends are on one machine. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use super::{
    names::parse_backend,
    registry::{Ids, Kind},
};
use crate::config::{Backend, Config, Pool, closest};

/// Where a backend is: the network of its pool, and its address there.
pub type Place<'c> = (&'c str, IpAddr);

/// The backends of all pools that are on one machine: each shares its name or its place with another one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendNode<'c> {
    /// The first name that one of them has; without one, the first address.
    pub name: String,
    /// In the order of the file, each once.
    pub places: Vec<Place<'c>>,
    /// In the order of the file, with their pools.
    pub backends: Vec<(&'c Pool, &'c Backend)>,
}

impl<'c> BackendNode<'c> {
    fn of(backends: Vec<(&'c Pool, &'c Backend)>) -> Self {
        let names = backends.iter().map(|(_, backend)| backend.name.as_str());
        let name = names.filter_map(own_name).next().map(ToOwned::to_owned);
        let mut known = HashSet::new();
        let places = backends.iter().map(|(pool, backend)| place(pool, backend));
        let places: Vec<Place<'_>> = places.filter(|place| known.insert(*place)).collect();
        let address = places.first().map(|(_, address)| address.to_string());
        Self {
            name: name.or(address).unwrap_or_default(),
            places,
            backends,
        }
    }

    /// The pools that have a backend on it, in the order of the file.
    #[must_use]
    pub fn pools(&self) -> Vec<&'c str> {
        let mut pools: Vec<&str> = self.backends.iter().map(|(pool, _)| &*pool.name).collect();
        pools.dedup();
        pools
    }

    /// The ids of its backends, also of those that only finish their flows.
    #[must_use]
    pub fn ids(&self, by_place: &HashMap<Place<'_>, Vec<u32>>) -> BTreeSet<u32> {
        let ids = self.places.iter().filter_map(|place| by_place.get(place));
        ids.flatten().copied().collect()
    }

    /// Whether `wanted` is a name or an address of it.
    fn is_called(&self, wanted: &str) -> bool {
        let is_name = |(_, backend): &(&Pool, &Backend)| backend.name == wanted;
        let address = wanted.parse().map(|address: IpAddr| address.to_canonical());
        let is_address = |place: &Place<'_>| address == Ok(place.1);
        self.backends.iter().any(is_name) || self.places.iter().any(is_address)
    }
}

/// The ids of all backends that have one, by their places.
#[must_use]
pub fn ids_by_place(ids: &Ids) -> HashMap<Place<'_>, Vec<u32>> {
    let mut by_place = HashMap::<_, Vec<u32>>::new();
    for (name, id) in ids.of(Kind::Backend) {
        if let Some(place) = parse_backend(name) {
            by_place.entry(place).or_default().push(id);
        }
    }
    by_place
}

/// All nodes, in the order in which the file first has a backend of each.
#[must_use]
pub fn nodes(config: &Config) -> Vec<BackendNode<'_>> {
    let pools = config.pools.iter();
    let backends = pools.flat_map(|pool| pool.backends.iter().map(move |backend| (pool, backend)));
    let backends: Vec<(&Pool, &Backend)> = backends.collect();
    // Of each backend an earlier one on the same node, or itself.
    let mut earlier: Vec<usize> = (0..backends.len()).collect();
    let (mut by_name, mut by_place) = (HashMap::new(), HashMap::new());
    for (index, (pool, backend)) in backends.iter().enumerate() {
        let place = *by_place.entry(place(pool, backend)).or_insert(index);
        let name = own_name(&backend.name);
        let name = name.map_or(index, |name| *by_name.entry(name).or_insert(index));
        for other in [place, name] {
            let (one, other) = (first(&mut earlier, index), first(&mut earlier, other));
            earlier[one.max(other)] = one.min(other);
        }
    }
    let mut order = Vec::new();
    let mut of_first = HashMap::<usize, Vec<_>>::new();
    for (index, backend) in backends.into_iter().enumerate() {
        let first = first(&mut earlier, index);
        if first == index {
            order.push(index);
        }
        of_first.entry(first).or_default().push(backend);
    }
    let groups = order.iter().filter_map(|first| of_first.remove(first));
    groups.map(BackendNode::of).collect()
}

/// The first backend of the node that a backend is on.
fn first(earlier: &mut [usize], backend: usize) -> usize {
    let mut backend = backend;
    while earlier[backend] != backend {
        // Halves the path of the next search.
        earlier[backend] = earlier[earlier[backend]];
        backend = earlier[backend];
    }
    backend
}

fn place<'c>(pool: &'c Pool, backend: &Backend) -> Place<'c> {
    (&pool.network, backend.address)
}

/// A name that says more than the address does, which stands for a name that is not written.
fn own_name(name: &str) -> Option<&str> {
    let is_address = name.parse::<IpAddr>().is_ok() || name.parse::<SocketAddr>().is_ok();
    (!is_address).then_some(name)
}

/// The node that has this name or address.
///
/// # Errors
///
/// If there is none, or several networks have one with this address.
pub fn find<'n, 'c>(
    nodes: &'n [BackendNode<'c>],
    wanted: &str,
) -> Result<&'n BackendNode<'c>, String> {
    let found: Vec<&BackendNode<'_>> = nodes.iter().filter(|node| node.is_called(wanted)).collect();
    match found[..] {
        [node] => Ok(node),
        [] => {
            let names = nodes.iter().map(|node| node.name.as_str());
            // One address is not another one with a typing error.
            let near = own_name(wanted).and_then(|wanted| closest(wanted, names));
            let hint = near.map_or(String::new(), |name| format!(" did you mean {name}?"));
            Err(format!(
                "there is no node {wanted:?};{hint} `lb nodes` lists them with their addresses"
            ))
        }
        _ => {
            let places = found.iter().flat_map(|node| &node.places);
            let networks: BTreeSet<&str> = places.map(|(network, _)| *network).collect();
            let networks: Vec<&str> = networks.into_iter().collect();
            Err(format!(
                "{wanted} means {} nodes, on the networks {}; `lb backend` overrides a backend by \
                 POOL/BACKEND",
                found.len(),
                networks.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config, model::names::backend_name};

    /// Two networks that have the same prefix, and pools with these lists of backends: `p`, `q` and `r` on the first one,
    /// `far` on the other.
    fn config(p: &str, q: &str, r: &str, far: &str) -> Config {
        let text = format!(
            "
version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.0.0.0/24, \"fd00::/64\"], snat: [10.0.0.9, \"fd00::9\"] }}
  far: {{ role: tenant, interface: eth2, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }}
pools:
  p: {{ network: mgmt, backends: [{p}] }}
  q: {{ network: mgmt, backends: [{q}] }}
  r: {{ network: mgmt, backends: [{r}] }}
  far: {{ network: far, backends: [{far}] }}
"
        );
        config::parse("f", &text).unwrap()
    }

    fn named(name: &str, address: &str) -> String {
        format!("{{ name: {name}, address: \"{address}\" }}")
    }

    fn quoted(address: &str) -> String {
        format!("\"{address}\"")
    }

    /// Name, addresses and backends of a node.
    fn text(node: &BackendNode<'_>) -> String {
        let places = node.places.iter();
        let places: Vec<String> = places
            .map(|(network, address)| format!("{network}/{address}"))
            .collect();
        let backends = node.backends.iter();
        let backends: Vec<String> = backends
            .map(|(pool, backend)| format!("{}/{}", pool.name, backend.name))
            .collect();
        format!(
            "{}: {}: {}",
            node.name,
            places.join(" "),
            backends.join(" ")
        )
    }

    fn texts(config: &Config) -> Vec<String> {
        nodes(config).iter().map(text).collect()
    }

    #[test]
    fn a_node_is_what_shares_a_name_or_an_address() {
        let p = [named("n1", "10.0.0.1:80"), named("n2", "10.0.0.2:80")].join(", ");
        let q = [named("n2", "[fd00::2]:80"), named("n1", "[fd00::1]:80")].join(", ");
        // Without a name, and with another one.
        let r = [
            quoted("[fd00::2]:81"),
            named("one", "[fd00::1]:81"),
            quoted("[fd00::3]:81"),
        ]
        .join(", ");
        assert_eq!(
            texts(&config(&p, &q, &r, "")),
            [
                "n1: mgmt/10.0.0.1 mgmt/fd00::1: p/n1 q/n1 r/one",
                "n2: mgmt/10.0.0.2 mgmt/fd00::2: p/n2 q/n2 r/[fd00::2]:81",
                "fd00::3: mgmt/fd00::3: r/[fd00::3]:81",
            ]
        );
    }

    #[test]
    fn what_is_found_to_be_one_node_late_is_one() {
        let p = [named("a", "10.0.0.1:80"), named("b", "10.0.0.2:80")].join(", ");
        let q = named("c", "10.0.0.3:80");
        let r = [named("c", "10.0.0.2:80"), named("a", "10.0.0.3:80")].join(", ");
        assert_eq!(
            texts(&config(&p, &q, &r, "")),
            ["a: mgmt/10.0.0.1 mgmt/10.0.0.2 mgmt/10.0.0.3: p/a p/b q/c r/c r/a"]
        );
    }

    #[test]
    fn two_ports_of_a_node_are_one_node_and_its_pool_counts_once() {
        let p = [quoted("10.0.0.1:80"), quoted("10.0.0.1:81")].join(", ");
        let config = config(&p, &quoted("10.0.0.1:80"), "", "");
        let nodes = nodes(&config);
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].pools(), ["p", "q"]);
    }

    #[test]
    fn an_address_in_another_network_is_another_node_unless_both_have_a_name() {
        let one = quoted("10.0.0.1:80");
        let apart = config(&one, "", "", &one);
        assert_eq!(
            texts(&apart),
            [
                "10.0.0.1: mgmt/10.0.0.1: p/10.0.0.1:80",
                "10.0.0.1: far/10.0.0.1: far/10.0.0.1:80",
            ]
        );
        assert_eq!(
            find(&nodes(&apart), "10.0.0.1").unwrap_err(),
            "10.0.0.1 means 2 nodes, on the networks far, mgmt; `lb backend` overrides a backend by POOL/BACKEND"
        );
        let both = config(
            &named("n1", "10.0.0.1:80"),
            "",
            "",
            &named("n1", "10.0.0.7:80"),
        );
        assert_eq!(
            texts(&both),
            ["n1: mgmt/10.0.0.1 far/10.0.0.7: p/n1 far/n1"]
        );
    }

    #[test]
    fn a_node_is_found_by_each_of_its_names_and_addresses() {
        let p = [named("n1", "10.0.0.1:80"), named("n2", "10.0.0.2:80")].join(", ");
        let q = named("n2", "[fd00::2]:80");
        let r = [quoted("10.0.0.2:81"), named("two", "10.0.0.2:82")].join(", ");
        let config = config(&p, &q, &r, "");
        let nodes = nodes(&config);
        for wanted in [
            "n2",
            "two",
            "10.0.0.2",
            "10.0.0.2:81",
            "fd00::2",
            "fd00:0::2",
            "::ffff:10.0.0.2",
        ] {
            assert_eq!(find(&nodes, wanted).unwrap().name, "n2", "{wanted}");
        }
        assert_eq!(find(&nodes, "n1").unwrap().backends.len(), 1);
    }

    #[test]
    fn a_name_of_no_node_is_refused_with_the_nearest() {
        let nodes_of = config(&named("node-2", "10.0.0.2:80"), "", "", "");
        let nodes = nodes(&nodes_of);
        let refused = |wanted| find(&nodes, wanted).unwrap_err();
        let listed = "`lb nodes` lists them with their addresses";
        for wanted in ["nodes-2", "p/node-2", "Node-2"] {
            assert_eq!(
                refused(wanted),
                format!("there is no node {wanted:?}; did you mean node-2? {listed}")
            );
        }
        for wanted in ["", "worker-2", "10.0.0.3", "fd00::3", "[10.0.0.2]", "\n"] {
            assert_eq!(
                refused(wanted),
                format!("there is no node {wanted:?}; {listed}")
            );
        }
        assert!(find(&[], "node-2").is_err());
    }

    #[test]
    fn ids_are_those_of_its_places_also_of_what_is_configured_no_more() {
        let config = config(
            &named("n1", "10.0.0.1:80"),
            &named("n1", "[fd00::1]:80"),
            &named("n2", "10.0.0.2:80"),
            "",
        );
        let mut ids = Ids::default();
        let nodes = nodes(&config);
        let backends = nodes.iter().flat_map(|node| &node.backends);
        for (id, (pool, backend)) in (1..).zip(backends) {
            ids.insert(Kind::Backend, &backend_name(pool, backend), id);
        }
        ids.insert(Kind::Backend, "gone/x@mgmt/10.0.0.1", 11);
        ids.insert(Kind::Backend, "gone/n1@far/10.0.0.1", 12);
        let by_place = ids_by_place(&ids);
        let of = |index: usize| nodes[index].ids(&by_place).into_iter().collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![1, 2, 11], vec![3]));
    }
}
