//! Which backends of a pool serve a client: the same as in XDP, and others where that one does not answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddrV4,
};

use lb_common::maglev;

use crate::config::ProxyProtocol;

/// A pool as it is now.
#[derive(Clone, Debug)]
pub struct ProxyPool {
    /// The name of its network.
    pub network: String,
    /// That network's id.
    pub network_id: u16,
    /// How its backends get the addresses of their clients.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Its Maglev table: ids of backends.
    table: Vec<u32>,
    backends: BTreeMap<u32, SocketAddrV4>,
    /// How many of the backends are in the table.
    serving: usize,
}

impl ProxyPool {
    /// A pool of the network with this name and id; `table` has ids of `backends`.
    pub fn new(
        network: String,
        network_id: u16,
        table: Vec<u32>,
        backends: BTreeMap<u32, SocketAddrV4>,
        proxy_protocol: Option<ProxyProtocol>,
    ) -> Self {
        let ids: BTreeSet<&u32> = table.iter().collect();
        let serving = ids.iter().filter(|id| backends.contains_key(id)).count();
        Self {
            network,
            network_id,
            proxy_protocol,
            table,
            backends,
            serving,
        }
    }

    /// Whether this backend is one of it.
    pub fn has(&self, backend: u32) -> bool {
        self.backends.contains_key(&backend)
    }

    /// Whether a backend of it is there.
    pub fn is_at(&self, address: SocketAddrV4) -> bool {
        self.backends.values().any(|backend| *backend == address)
    }

    /// The backends for this hash, in the order in which they are to be tried: the one that XDP would send a
    /// flow with that hash to, then the others. None: no backend serves the pool.
    pub fn choose(&self, hash: u32) -> impl Iterator<Item = (u32, SocketAddrV4)> {
        let size = u32::try_from(self.table.len()).unwrap_or(u32::MAX);
        let first = maglev::index(hash, size);
        let (before, from) = self
            .table
            .split_at_checked(usize::try_from(first).unwrap_or_default())
            .unwrap_or_default();
        let mut others = self.backends.clone();
        let order = from.iter().chain(before);
        let order = order.filter_map(move |id| Some((*id, others.remove(id)?)));
        // Behind the last one the table has no other.
        order.take(self.serving)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use lb_common::{addr::Be16, maglev::TableMember, maps::flow::FlowKey};

    use super::*;

    fn address(id: u32) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + id), 443)
    }

    /// A pool whose table has `serving` of the backends 1 to 4.
    fn pool(serving: &[u32]) -> ProxyPool {
        let members = serving.iter().map(|&id| TableMember {
            id,
            share: 1,
            whole: 1,
            name: format!("b{id}"),
        });
        let table = maglev::build(&members.collect::<Vec<_>>(), 509, "");
        let backends = (1..=4).map(|id| (id, address(id)));
        ProxyPool::new("mgmt".to_owned(), 2, table, backends.collect(), None)
    }

    fn hash(port: u16) -> u32 {
        maglev::hash(&FlowKey {
            client_port: Be16::new(port),
            ..FlowKey::default()
        })
    }

    #[test]
    fn the_first_is_the_one_of_xdp_and_the_others_differ() {
        let pool = pool(&[1, 2, 3, 4]);
        for port in 0..1000 {
            let chosen: Vec<_> = pool.choose(hash(port)).collect();
            let size = u32::try_from(pool.table.len()).unwrap();
            let index = maglev::index(hash(port), size);
            assert_eq!(chosen[0].0, pool.table[usize::try_from(index).unwrap()]);
            let mut ids: Vec<u32> = chosen.iter().map(|(id, _)| *id).collect();
            ids.sort_unstable();
            assert_eq!(ids, [1, 2, 3, 4]);
            assert!(chosen.iter().all(|(id, at)| *at == address(*id)));
        }
    }

    #[test]
    fn who_does_not_serve_is_not_tried() {
        for port in 0..100 {
            let chosen = |pool: ProxyPool| pool.choose(hash(port)).collect::<Vec<_>>();
            assert_eq!(chosen(pool(&[3])), [(3, address(3))]);
            assert_eq!(chosen(pool(&[])), []);
            let ProxyPool { table, .. } = pool(&[1]);
            let gone = ProxyPool::new("mgmt".to_owned(), 2, table, BTreeMap::new(), None);
            assert_eq!(chosen(gone), []);
        }
    }
}
