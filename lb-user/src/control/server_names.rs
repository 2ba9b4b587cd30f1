//! Which names of shared VIPs the data plane sends to a pool by itself. Pure.
//!
//! It knows a name, or all with one label in front of it. A name that goes to different places for some clients or protocols
//! is in the map as the process's, so that no less exact one takes it.

use std::collections::{BTreeMap, HashMap};

use lb_common::{
    client_hello::glance::MAX_GLANCE,
    maps::server_name::{NameKey, PoolRoute, UNDER, key},
    server_name::ServerName,
};

use crate::{
    config::{
        Config, Ech, LateBinding, NameRoute as Route, Pool, Service, Sni, SynCookies, Target, To,
    },
    model::registry::{Ids, Kind},
};

/// The names of a service with this id, whose pools have ids; none if the process has them all.
pub(super) fn names(
    service: &Service,
    id: u16,
    config: &Config,
    ids: &Ids,
) -> Option<HashMap<NameKey, PoolRoute>> {
    let Target::Sni(sni) = &service.target else {
        return None;
    };
    let network = config.network(&service.network)?;
    if network.host || !is_bound(sni) {
        return None;
    }
    let mut routes: BTreeMap<&str, Vec<&Route>> = BTreeMap::new();
    for route in &sni.routes {
        for name in &route.names {
            routes.entry(name).or_default().push(route);
        }
    }
    let names = routes.into_iter().filter_map(|(pattern, routes)| {
        let (name, kind) = match pattern.strip_prefix("*.") {
            Some(name) => (name, UNDER),
            None => (pattern, 0),
        };
        let name = ServerName::read(name.as_bytes()).ok()?;
        let key = key(id, name.as_str(), kind)?;
        let (pool, flags) = match &routes[..] {
            [route] => pool(route, config, ids).unwrap_or_default(),
            _ => (0, 0),
        };
        let mark = key.mark();
        Some((key, PoolRoute { pool, flags, mark }))
    });
    Some(names.collect())
}

/// Whether the data plane may open connections of this service at all.
fn is_bound(sni: &Sni) -> bool {
    sni.late_binding == LateBinding::Always
        && sni.syn_cookies == SynCookies::Always
        && sni.proxies.is_empty()
        && sni.ech == Ech::Route
        && sni.max_hello >= MAX_GLANCE
}

/// The pool that every client of a route goes to, and how its backend is chosen.
fn pool(route: &Route, config: &Config, ids: &Ids) -> Option<(u32, u16)> {
    let To::Pool(name) = &route.to else {
        return None;
    };
    let is_for_all = route.alpn.is_empty() && route.from.is_empty();
    let pool = config.pool(name).filter(|pool| is_for_all && takes(pool))?;
    let flags = u16::try_from(pool.balance.flag()).ok()?;
    Some((ids.get(Kind::Pool, name)?, flags))
}

/// Whether the data plane can open connections to the backends of a pool, which are of IPv4.
const fn takes(pool: &Pool) -> bool {
    pool.proxy_protocol.is_none() && pool.source_timeout.is_none()
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
        - { names: [g.example], pool: one, from: [192.168.203.0/25] }
        - { names: [g.example], pool: two }
        - { regex: [\"h.*\"], pool: one }
        - { no_name: true, pool: one }
";

    fn found(change: impl Fn(&str) -> String) -> Option<HashMap<NameKey, PoolRoute>> {
        let config = config::parse("f", &change(CONFIG)).unwrap();
        let mut ids = Ids::new(None);
        for pool in &config.pools {
            ids.assign(Kind::Pool, &pool.name, 99).unwrap();
        }
        names(&config.services[0], 7, &config, &ids)
    }

    #[test]
    fn names_that_go_to_one_pool_are_the_data_planes() {
        let names = found(str::to_owned).unwrap();
        let of = |name: &str, kind| {
            let key = key(7, name, kind).unwrap();
            let route = names.get(&key)?;
            assert_eq!(route.mark, key.mark());
            Some((route.pool, route.flags))
        };
        for name in ["a.example", "a.other.example"] {
            assert_eq!(of(name, 0), Some((1, 0)), "{name}");
        }
        assert_eq!(of("a.example", UNDER), Some((1, 0)));
        assert_eq!(of("b.example", 0), Some((2, 4)));
        for name in ["d.example", "e.example", "f.example", "g.example"] {
            assert_eq!(of(name, 0), Some((0, 0)), "{name} is the process's");
        }
        assert_eq!(names.len(), 8);
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
