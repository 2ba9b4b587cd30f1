//! Which names of shared VIPs the data plane sends to a pool by itself. Pure.
//!
//! It knows a name, or all with up to eight labels in front of it. Where a name leads by the client's address, the clients of its
//! service are in classes: one for each prefix that a route is for, to which the clients belong that are in no longer one, and
//! that of all others. A name that goes to different places for some protocols is in the map as the process's, so that no less
//! exact one takes it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
};

use ipnet::{IpNet, Ipv4Net};
use lb_common::{
    addr::Be32,
    client_hello::glance::MAX_GLANCE,
    maps::server_name::{
        BY_CLASS, NameKey, OTHER_CLIENTS, PoolRoute, UNDER, WITH_HEADER, class, key,
    },
    server_name::ServerName,
};

use crate::{
    config::{
        Config, Ech, LateBinding, NameRoute as Route, Pool, ProxyProtocol, Service, Sni,
        SynCookies, Target, To,
    },
    model::{
        registry::{Ids, Kind},
        rules::Rules,
    },
};

/// What the data plane knows of a service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KnownNames {
    pub(super) routes: HashMap<NameKey, PoolRoute>,
    /// The classes of clients, by their prefixes.
    pub(super) classes: Rules,
}

/// The names of a service with this id, whose pools have ids; none if the process has them all.
pub(super) fn names(service: &Service, id: u16, config: &Config, ids: &Ids) -> Option<KnownNames> {
    let Target::Sni(sni) = &service.target else {
        return None;
    };
    let network = config.network(&service.network)?;
    if network.host || !is_bound(sni) {
        return None;
    }
    let mut patterns: BTreeMap<&str, Vec<&Route>> = BTreeMap::new();
    for route in &sni.routes {
        for name in &route.names {
            patterns.entry(name).or_default().push(route);
        }
    }
    let classes = Classes::of(patterns.values());
    let mut names = KnownNames::default();
    for (pattern, routes) in patterns {
        let (name, kind) = match pattern.strip_prefix("*.") {
            Some(name) => (name, UNDER),
            None => (pattern, 0),
        };
        let mut add = |class, (pool, flags)| {
            let name = ServerName::read(name.as_bytes()).ok();
            let key = name.and_then(|name| key(id, name.as_str(), class | kind));
            if let Some(key) = key {
                let mark = key.mark();
                names.routes.insert(key, PoolRoute { pool, flags, mark });
            }
        };
        let leads = |class| leads(&routes, class, config, ids);
        match way(&routes) {
            Way::Process => add(0, (0, 0)),
            Way::Same => add(0, leads(None).unwrap_or_default()),
            Way::ByClient if classes.are_known => {
                add(0, (BY_CLASS, 0));
                for class in classes.all() {
                    if let Some(pool) = leads(class) {
                        add(number(class), pool);
                    }
                }
            }
            Way::ByClient => add(0, (0, 0)),
        }
    }
    let has_classes = names.routes.values().any(|route| route.pool == BY_CLASS);
    if has_classes {
        names.classes = classes.rules();
    }
    Some(names)
}

/// Where the routes of a name lead.
enum Way {
    /// All clients to one place.
    Same,
    /// Each by its address.
    ByClient,
    /// What the process alone can say.
    Process,
}

fn way(routes: &[&Route]) -> Way {
    let first_is_for_all = routes.first().is_some_and(|first| first.from.is_empty());
    if routes.iter().any(|route| !route.alpn.is_empty()) {
        Way::Process
    } else if first_is_for_all {
        Way::Same
    } else {
        Way::ByClient
    }
}

/// The prefixes of a service's classes of clients, all of IPv4.
struct Classes {
    prefixes: BTreeSet<Ipv4Net>,
    /// No two of them have one number.
    are_known: bool,
}

impl Classes {
    fn of<'r>(patterns: impl Iterator<Item = &'r Vec<&'r Route>>) -> Self {
        let by_client = patterns.filter(|routes| matches!(way(routes), Way::ByClient));
        let from = by_client.flatten().flat_map(|route| &route.from);
        let prefixes: BTreeSet<Ipv4Net> = from
            .filter_map(|prefix| match prefix {
                IpNet::V4(prefix) => Some(prefix.trunc()),
                IpNet::V6(_) => None,
            })
            .collect();
        let numbers: BTreeSet<u32> = prefixes
            .iter()
            .map(|prefix| number(Some(*prefix)))
            .collect();
        Self {
            are_known: numbers.len() == prefixes.len(),
            prefixes,
        }
    }

    /// That of the clients in no prefix is `None`.
    fn all(&self) -> impl Iterator<Item = Option<Ipv4Net>> {
        self.prefixes.iter().copied().map(Some).chain([None])
    }

    fn rules(&self) -> Rules {
        let prefixes = self.prefixes.iter();
        prefixes
            .map(|prefix| (IpNet::V4(*prefix), number(Some(*prefix))))
            .collect()
    }
}

/// The number of a class of clients.
fn number(prefix: Option<Ipv4Net>) -> u32 {
    prefix.map_or(OTHER_CLIENTS, |prefix| {
        let address: Ipv4Addr = prefix.addr();
        class(Be32::new(address.into()), prefix.prefix_len())
    })
}

/// The pool that the clients of a class go to, by the first of these routes that is for them, and how its backend is chosen;
/// none where the process has to say it.
fn leads(
    routes: &[&Route],
    class: Option<Ipv4Net>,
    config: &Config,
    ids: &Ids,
) -> Option<(u32, u16)> {
    let is_for = |route: &&&Route| {
        let mut from = route.from.iter();
        route.from.is_empty()
            || class.is_some_and(|class| from.any(|prefix| prefix.contains(&IpNet::V4(class))))
    };
    pool(routes.iter().find(is_for)?, config, ids)
}

/// Whether the data plane may open connections of this service at all.
fn is_bound(sni: &Sni) -> bool {
    sni.late_binding == LateBinding::Always
        && sni.syn_cookies == SynCookies::Always
        && sni.proxies.is_empty()
        && sni.ech == Ech::Route
        && sni.max_hello >= MAX_GLANCE
}

/// The pool of a route, and how its backend is chosen.
fn pool(route: &Route, config: &Config, ids: &Ids) -> Option<(u32, u16)> {
    let To::Pool(name) = &route.to else {
        return None;
    };
    let pool = config.pool(name).filter(|pool| takes(pool))?;
    let flags = u16::try_from(pool.balance.flag()).ok()?;
    let header = match pool.proxy_protocol {
        Some(ProxyProtocol::V2) => WITH_HEADER,
        None => 0,
    };
    Some((ids.get(Kind::Pool, name)?, flags | header))
}

/// Whether the data plane can open connections to the backends of a pool, which are of IPv4.
const fn takes(pool: &Pool) -> bool {
    pool.source_timeout.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  one:  { network: mgmt, backends: [\"10.32.96.105:1\"] }
  two:  { network: mgmt, backends: [\"10.32.96.105:2\"], balance: round-robin }
  head: { network: mgmt, backends: [\"10.32.96.105:3\"], proxy_protocol: v2 }
  kept: { network: mgmt, backends: [\"10.32.96.105:4\"], balance: source, source_timeout: 1m }
services:
  shared:
    network: tenant-a
    listen: [\"192.168.203.110:443/tcp\"]
    sni:
      late_binding: always
      routes:
        - { names: [a.example, \"*.a.example\", A.Other.example], pool: one }
        - { names: [b.example], pool: two }
        - { names: [d.example], pool: head }
        - { names: [e.example], pool: kept }
        - { names: [f.example], pool: one, alpn: [h2] }
        - { names: [g.example], pool: one, from: [192.168.203.0/25, 192.168.203.200/32] }
        - { names: [g.example], pool: head, from: [192.168.203.0/26] }
        - { names: [g.example], pool: two }
        - { names: [k.example, \"*.k.example\"], pool: kept, from: [192.168.203.0/26] }
        - { names: [k.example, \"*.k.example\"], pool: two, from: [192.168.203.0/24] }
        - { regex: [\"h.*\"], pool: one }
        - { no_name: true, pool: one }
";

    fn found(change: impl Fn(&str) -> String) -> Option<KnownNames> {
        let config = config::parse("f", &change(CONFIG)).unwrap();
        let mut ids = Ids::new(None);
        for pool in &config.pools {
            ids.assign(Kind::Pool, &pool.name, 99).unwrap();
        }
        names(&config.services[0], 7, &config, &ids)
    }

    /// The pool of a key, and its flags.
    fn of(names: &KnownNames, name: &str, kind: u32) -> Option<(u32, u16)> {
        let key = key(7, name, kind).unwrap();
        let route = names.routes.get(&key)?;
        assert_eq!(route.mark, key.mark());
        Some((route.pool, route.flags))
    }

    #[test]
    fn names_that_go_to_one_pool_are_the_data_planes() {
        let names = found(str::to_owned).unwrap();
        let of = |name: &str, kind| of(&names, name, kind);
        for name in ["a.example", "a.other.example"] {
            assert_eq!(of(name, 0), Some((1, 0)), "{name}");
        }
        assert_eq!(of("a.example", UNDER), Some((1, 0)));
        assert_eq!(of("b.example", 0), Some((2, 4)));
        assert_eq!(of("d.example", 0), Some((3, WITH_HEADER)));
        for name in ["e.example", "f.example"] {
            assert_eq!(of(name, 0), Some((0, 0)), "{name} is the process's");
        }
    }

    #[test]
    fn a_name_may_lead_by_the_class_of_the_client() {
        let names = found(str::to_owned).unwrap();
        let classes = [
            "192.168.203.0/24",
            "192.168.203.0/25",
            "192.168.203.0/26",
            "192.168.203.200/32",
        ];
        let prefixes: Vec<IpNet> = names.classes.keys().copied().collect();
        let wanted: BTreeSet<IpNet> = classes.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(prefixes.into_iter().collect::<BTreeSet<_>>(), wanted);
        let of_class = |name: &str, class: &str, kind| {
            let prefix = class.parse::<IpNet>().ok();
            let class = prefix.map_or(OTHER_CLIENTS, |prefix| names.classes[&prefix]);
            of(&names, name, class | kind)
        };
        let (one, two) = (Some((1, 0)), Some((2, 4)));
        // The first route counts that is for a client, whichever is longer.
        for (class, pool) in classes
            .into_iter()
            .chain(["others"])
            .zip([two, one, one, one, two])
        {
            assert_eq!(of_class("g.example", class, 0), pool, "{class}");
        }
        // Those of a pool that the data plane cannot use are the process's, and so are those that get nothing.
        for kind in [0, UNDER] {
            let pools = classes.map(|class| of_class("k.example", class, kind));
            assert_eq!(pools, [two, two, None, two]);
            assert_eq!(of_class("k.example", "others", kind), None);
        }
        let by_class = Some((BY_CLASS, 0));
        for (name, kind) in [("g.example", 0), ("k.example", 0), ("k.example", UNDER)] {
            assert_eq!(of(&names, name, kind), by_class);
        }
        let without = found(|text| text.replace("from:", "alpn: [h2], from:")).unwrap();
        assert_eq!(without.classes, Rules::new());
    }

    #[test]
    fn a_service_may_leave_them_all_to_the_process() {
        for other in [
            "late_binding: never",
            "late_binding: always\n      ech: deny",
            "late_binding: always\n      max_hello: 2047",
            "late_binding: always\n      proxy_protocol_from: [192.168.203.7/32]",
        ] {
            let change = |text: &str| text.replace("late_binding: always", other);
            assert_eq!(found(change), None, "{other}");
        }
    }
}
