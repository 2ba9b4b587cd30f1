//! The allow-list of the cells: answers of backends that are checked, or dialled for a shared VIP, are let
//! in, and no others.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    path::Path,
    time::Instant,
};

use anyhow::Result;
use lb_common::maps::cell_peer::PeerKey;

use crate::{
    config::{Backend, Config, Health},
    dataplane::peers::{LocalPeers, peer},
    model::registry::{Ids, Kind},
    proxy::Legs,
};

/// A peer of a cell: the name of a network, and the address and port there.
pub type CellPeer<'c> = (&'c str, SocketAddr);

/// The peers whose answers are let in. The default lets in all, and has no data plane.
#[derive(Default)]
pub struct Heard {
    peers: Option<LocalPeers>,
}

impl Heard {
    /// In the data plane whose maps are pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing, or cannot be read.
    pub fn open(folder: &Path) -> Result<Self> {
        let peers = Some(LocalPeers::open(folder)?);
        Ok(Self { peers })
    }

    /// From now on answers of the peers of `config` are let in, of others only for a while. Returns the peers
    /// for which there is no room.
    pub fn set<'c>(&mut self, config: &'c Config, ids: &Ids) -> BTreeSet<CellPeer<'c>> {
        let Some(peers) = &mut self.peers else {
            return BTreeSet::new();
        };
        let wanted = wanted(config, ids);
        let refused = peers.set(&wanted.keys().copied().collect(), Instant::now());
        let unheard = refused.iter().filter_map(|key| wanted.get(key).copied());
        let unheard: BTreeSet<CellPeer<'_>> = unheard.collect();
        if !unheard.is_empty() {
            tracing::error!(
                "the running data plane has no room for so many backends, so these are not checked and get no \
                 connections of shared VIPs: {}; `lb down` and a new start with a higher limits.backends make room",
                words(&unheard)
            );
        }
        unheard
    }

    /// Forgets the peers that have not been wanted for a while, and that no leg is connected to.
    pub fn tidy(&mut self, legs: &Legs) {
        if let Some(peers) = &mut self.peers {
            peers.forget(Instant::now(), |peer| legs.talk_to(peer));
        }
    }
}

/// The address and port where a backend is checked.
pub fn address(health: &Health, backend: &Backend) -> SocketAddr {
    SocketAddr::new(backend.address, health.port.unwrap_or(backend.port))
}

/// The backends that are checked from a cell, or dialled for a shared VIP; in a host network both are the
/// host's own traffic.
pub(super) fn wanted<'c>(config: &'c Config, ids: &Ids) -> HashMap<PeerKey, CellPeer<'c>> {
    let shared = config.services.iter();
    let shared = shared.filter(|service| config.is_of_cell(service));
    let dialled: BTreeSet<&str> = shared.flat_map(|service| service.target.pools()).collect();
    let mut wanted = HashMap::new();
    for pool in &config.pools {
        let network = config.network(&pool.network);
        let Some(network) = network.filter(|network| !network.host) else {
            continue;
        };
        let id = ids.get(Kind::Network, &network.name);
        let Some(id) = id.and_then(|id| u16::try_from(id).ok()) else {
            continue;
        };
        for backend in &pool.backends {
            let asked = pool.health.as_ref().map(|health| address(health, backend));
            let dialled = dialled.contains(pool.name.as_str());
            let dialled = dialled.then(|| SocketAddr::new(backend.address, backend.port));
            for address in asked.into_iter().chain(dialled) {
                if let Some(record) = ids.stands_for(address.ip()) {
                    let asked = (network.name.as_str(), address);
                    wanted.insert(peer(id, record, address.port()), asked);
                }
            }
        }
    }
    wanted
}

fn words(unheard: &BTreeSet<CellPeer<'_>>) -> String {
    let words = unheard.iter();
    let words = words.map(|(network, address)| format!("{address} in network {network}"));
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const TEXT: &str = r#"
version: 1
networks:
  mgmt:   { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }
  host:   { role: mgmt, interface: eth2, address: host, prefixes: [10.0.1.0/24], snat: [{ address: 10.0.1.9, ports: 20000-20999 }] }
pools:
  p: { network: mgmt, health: { tcp: {} }, backends: ["10.0.0.1:1", "10.0.0.2:1"] }
  q: { network: mgmt, health: { tcp: { port: 99 } }, backends: ["10.0.0.1:1", "10.0.0.1:2"] }
  r: { network: mgmt, backends: ["10.0.0.3:1"] }
  s: { network: host, health: { tcp: {} }, backends: ["10.0.1.1:1"] }
  t: { network: mgmt, backends: ["10.0.0.4:1"] }
  u: { network: mgmt, proxy_protocol: v2, backends: ["10.0.0.5:1"] }
services:
  v: { network: host, listen: ["10.0.1.9:443/tcp"], sni: { routes: [{ names: [a.b], pool: t }, { names: [c.d], pool: s }] } }
  w: { network: host, listen: ["10.0.1.9:80/tcp"], pool: u }
  x: { network: host, listen: ["10.0.1.9:81/tcp"], pool: r }
"#;

    #[test]
    fn those_are_heard_whom_checks_ask_where_they_ask_them() {
        let config = config::parse("f", TEXT).unwrap();
        let mut ids = Ids::default();
        ids.insert(Kind::Network, "mgmt", 5);
        ids.insert(Kind::Network, "host", 6);
        let key = |last, port| PeerKey {
            address: std::net::Ipv4Addr::new(10, 0, 0, last).into(),
            port: lb_common::addr::Be16::new(port),
            network: 5,
        };
        let at = |text: &str| ("mgmt", text.parse().unwrap());
        let peers = [
            (key(1, 1), at("10.0.0.1:1")),
            (key(2, 1), at("10.0.0.2:1")),
            (key(1, 99), at("10.0.0.1:99")),
            (key(4, 1), at("10.0.0.4:1")),
            (key(5, 1), at("10.0.0.5:1")),
        ];
        assert_eq!(wanted(&config, &ids), HashMap::from(peers));
    }

    #[test]
    fn who_is_not_heard_is_named() {
        let unheard = [("b", "10.0.0.1:2"), ("a", "10.0.0.1:1")];
        let unheard = unheard.map(|(network, address)| (network, address.parse().unwrap()));
        assert_eq!(
            words(&unheard.into()),
            "10.0.0.1:1 in network a, 10.0.0.1:2 in network b"
        );
    }
}
