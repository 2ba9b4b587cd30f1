//! Which backends of a pool serve a client: the same as in XDP, and others where that one does not answer.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, SocketAddrV4},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use lb_common::{
    addr::Be32,
    maglev,
    maps::{flow::FlowKey, usage},
};

use crate::{
    config::{Algorithm, ProxyProtocol},
    dataplane::affinities::AffineClient,
    model::maglev::MaglevTable,
};

/// What a client has that its backend is chosen by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChosenBy {
    /// The hash of the name that it requests, whatever the algorithm of the pool.
    Name(u32),
    /// What the algorithm of the pool goes by.
    Flow {
        /// The hash of its flow.
        flow: u32,
        /// That of its address alone.
        client: u32,
        /// What the backend that it has had is remembered by.
        affine: AffineClient,
    },
}

impl ChosenBy {
    /// For the flow with this key, of the client with this address.
    pub(crate) fn flow(key: &FlowKey, client: IpAddr) -> Self {
        let (client, address) = match client {
            IpAddr::V4(client) => (maglev::hash_of_client(client.into()), client.into()),
            // A proxy in front may have clients of IPv6.
            IpAddr::V6(client) => {
                let hash = maglev::hash_of_name(&client.to_string());
                (hash, Be32::new(hash))
            }
        };
        Self::Flow {
            flow: maglev::hash(key),
            client,
            affine: AffineClient {
                network: key.network,
                address,
            },
        }
    }
}

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
    table: MaglevTable,
    /// How many entries of it each backend has.
    shares: BTreeMap<u32, u32>,
    backends: BTreeMap<u32, SocketAddrV4>,
    /// How many of the backends are in the table.
    serving: usize,
    balance: Algorithm,
    /// The most connections of each backend.
    max_connections: Option<u32>,
    /// Its id.
    id: u32,
    /// For how many seconds a client keeps the backend that it has had; 0: it goes by the hash alone.
    source_timeout: u32,
    /// How many turns clients have taken.
    turns: Arc<AtomicU32>,
}

impl ProxyPool {
    /// A pool of the network with this name and id; `table` has ids of `backends`.
    pub fn new(
        network: String,
        network_id: u16,
        table: MaglevTable,
        backends: BTreeMap<u32, SocketAddrV4>,
        proxy_protocol: Option<ProxyProtocol>,
    ) -> Self {
        let mut shares = BTreeMap::<u32, u32>::new();
        for id in table.iter() {
            *shares.entry(*id).or_default() += 1;
        }
        let serving = shares.keys().filter(|id| backends.contains_key(id)).count();
        Self {
            network,
            network_id,
            proxy_protocol,
            table,
            shares,
            backends,
            serving,
            balance: Algorithm::default(),
            max_connections: None,
            id: 0,
            source_timeout: 0,
            turns: Arc::default(),
        }
    }

    /// The same where another algorithm chooses.
    pub(crate) fn balanced(self, balance: Algorithm) -> Self {
        Self { balance, ..self }
    }

    /// The same with a limit of connections for each backend.
    pub(crate) fn limited(self, max_connections: Option<u32>) -> Self {
        Self {
            max_connections,
            ..self
        }
    }

    /// The same with the id of the pool, and how many seconds a client keeps the backend that it has had; 0 for none.
    pub(crate) fn remembering(self, id: u32, source_timeout: u32) -> Self {
        Self {
            id,
            source_timeout,
            ..self
        }
    }

    /// The client that stays with the backend that it has had, the pool's id, and for how many seconds; none where
    /// clients are not remembered.
    pub(crate) fn remembers(&self, by: ChosenBy) -> Option<(AffineClient, u32, u32)> {
        match by {
            ChosenBy::Flow { affine, .. } if self.source_timeout != 0 => {
                Some((affine, self.id, self.source_timeout))
            }
            _ => None,
        }
    }

    /// Whether this backend has a share.
    pub(crate) fn serves(&self, backend: u32) -> bool {
        self.shares.contains_key(&backend)
    }

    /// The most connections that each backend may have.
    pub(crate) const fn max_connections(&self) -> Option<u32> {
        self.max_connections
    }

    /// Goes on with the turns of what the pool was `before`: one that is often replaced would prefer the backend of its
    /// first entry.
    pub(crate) fn take_turns(&mut self, before: &Self) {
        self.turns = Arc::clone(&before.turns);
    }

    /// Whether this backend is one of it.
    pub fn has(&self, backend: u32) -> bool {
        self.backends.contains_key(&backend)
    }

    /// Whether a backend of it is there.
    pub fn is_at(&self, address: SocketAddrV4) -> bool {
        self.backends.values().any(|backend| *backend == address)
    }

    /// The entry that a client begins with, as in XDP; `flows` are those that a backend has.
    pub(crate) fn first(&self, by: ChosenBy, flows: impl Fn(u32) -> u32) -> u32 {
        let size = u32::try_from(self.table.len()).unwrap_or(u32::MAX);
        let (flow, client) = match by {
            ChosenBy::Name(hash) => return maglev::index(hash, size),
            ChosenBy::Flow { flow, client, .. } => (flow, client),
        };
        match self.balance {
            Algorithm::Maglev => maglev::index(flow, size),
            Algorithm::Source => maglev::index(client, size),
            Algorithm::RoundRobin => {
                let turn = self.turns.fetch_add(1, Ordering::Relaxed);
                turn.checked_rem(size).unwrap_or_default()
            }
            Algorithm::LeastConnections => self.lighter([size; 2].map(random), flows),
        }
    }

    /// The one of two entries whose backend has fewer flows for its share.
    fn lighter(&self, [one, other]: [u32; 2], flows: impl Fn(u32) -> u32) -> u32 {
        let load = |slot| {
            let id = usize::try_from(slot)
                .ok()
                .and_then(|slot| self.table.get(slot));
            let share = id.and_then(|id| self.shares.get(id)).copied();
            (id.map_or(0, |id| flows(*id)), share.unwrap_or(1))
        };
        match usage::is_lighter(load(one), load(other)) {
            true => one,
            false => other,
        }
    }

    /// The backends in the order in which they are to be tried: the one that the client has `kept`, then from this entry
    /// on the one that XDP would send a flow of the entry to, then the others. None: no backend serves the pool.
    pub(crate) fn choose(
        &self,
        kept: Option<u32>,
        first: u32,
    ) -> impl Iterator<Item = (u32, SocketAddrV4)> {
        let (before, from) = self
            .table
            .split_at_checked(usize::try_from(first).unwrap_or_default())
            .unwrap_or_default();
        let mut others = self.backends.clone();
        let order = kept.into_iter().chain(from.iter().chain(before).copied());
        let order = order.filter_map(move |id| Some((id, others.remove(&id)?)));
        // Behind the last one the table has no other.
        order.take(self.serving)
    }
}

/// An entry of a table of `size` that no client foresees.
fn random(size: u32) -> u32 {
    let number = RandomState::new().hash_one(size) >> 32;
    maglev::index(u32::try_from(number).unwrap_or_default(), size)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::Ipv4Addr};

    use lb_common::{addr::Be16, maglev::TableMember};

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
        ProxyPool::new("mgmt".to_owned(), 2, table.into(), backends.collect(), None)
    }

    fn key(port: u16) -> FlowKey {
        FlowKey {
            client_port: Be16::new(port),
            ..FlowKey::default()
        }
    }

    fn hash(port: u16) -> u32 {
        maglev::hash(&key(port))
    }

    fn begin(pool: &ProxyPool, port: u16) -> u32 {
        let client = Ipv4Addr::new(10, 9, 0, 1).into();
        pool.first(ChosenBy::flow(&key(port), client), |_| 0)
    }

    /// How often each backend is the first of 3000 clients' ports; `flows` by backend.
    fn firsts(pool: &ProxyPool, flows: &BTreeMap<u32, u32>) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        for port in 0..3000 {
            let by = ChosenBy::flow(&key(port), Ipv4Addr::new(10, 9, 0, 1).into());
            let first = pool.first(by, |id| flows.get(&id).copied().unwrap_or(0));
            let (id, _) = pool.choose(None, first).next().unwrap();
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    #[test]
    fn backends_take_turns_over_the_changes_of_a_pool() {
        let mut one = pool(&[1, 2, 3]).balanced(Algorithm::RoundRobin);
        one.table = [1, 2, 3].into();
        assert_eq!(
            firsts(&one, &BTreeMap::new()),
            BTreeMap::from([(1, 1000), (2, 1000), (3, 1000)])
        );
        one.first(
            ChosenBy::flow(&FlowKey::default(), Ipv4Addr::LOCALHOST.into()),
            |_| 0,
        );
        let mut next = pool(&[1, 2, 3]).balanced(Algorithm::RoundRobin);
        next.table = [1, 2, 3].into();
        next.take_turns(&one);
        assert_eq!(begin(&next, 7), 1, "not the first again");
    }

    #[test]
    fn a_client_stays_with_its_backend_by_its_address() {
        let pool = pool(&[1, 2, 3, 4]).balanced(Algorithm::Source);
        assert_eq!(firsts(&pool, &BTreeMap::new()).len(), 1);
        let others = (0..200).map(|host| {
            let by = ChosenBy::flow(&FlowKey::default(), Ipv4Addr::new(10, 9, 0, host).into());
            pool.choose(None, pool.first(by, |_| 0)).next().unwrap().0
        });
        assert_eq!(others.collect::<BTreeSet<_>>().len(), 4);
    }

    #[test]
    fn of_two_the_one_with_fewer_flows_for_its_share_is_chosen() {
        let pool = pool(&[1, 2]).balanced(Algorithm::LeastConnections);
        let none = firsts(&pool, &BTreeMap::new());
        // Half of them; five standard deviations are 137.
        assert!(none[&1].abs_diff(1500) <= 137, "{none:?}");
        let busy = firsts(&pool, &BTreeMap::from([(1, 10), (2, 5)]));
        // Only where both choices are the busy one: a quarter; five standard deviations are 119.
        assert!(busy[&1].abs_diff(750) <= 119, "{busy:?}");
        let mut weighted = pool;
        weighted.shares = BTreeMap::from([(1, 300), (2, 100)]);
        let busy = firsts(&weighted, &BTreeMap::from([(1, 10), (2, 5)]));
        assert!(
            busy[&2].abs_diff(750) <= 119,
            "10 of 3 parts are fewer: {busy:?}"
        );
    }

    #[test]
    fn the_backend_that_a_client_has_kept_is_the_first_one_and_the_others_follow() {
        let pool = pool(&[1, 2, 3]);
        for port in 0..100 {
            let first = begin(&pool, port);
            let usual: Vec<u32> = pool.choose(None, first).map(|(id, _)| id).collect();
            for kept in 1..=3 {
                let chosen: Vec<u32> = pool.choose(Some(kept), first).map(|(id, _)| id).collect();
                let others = usual.iter().copied().filter(|id| *id != kept);
                assert_eq!(chosen, [kept].into_iter().chain(others).collect::<Vec<_>>());
            }
        }
        assert!(pool.serves(3) && !pool.serves(4));
    }

    #[test]
    fn a_name_comes_before_the_algorithm() {
        let pool = pool(&[1, 2]).balanced(Algorithm::RoundRobin);
        let first = || pool.first(ChosenBy::Name(7 << 29), |_| 0);
        assert_eq!([first(), first()], [445; 2]);
    }

    #[test]
    fn the_first_is_the_one_of_xdp_and_the_others_differ() {
        let pool = pool(&[1, 2, 3, 4]);
        for port in 0..1000 {
            let chosen: Vec<_> = pool.choose(None, begin(&pool, port)).collect();
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
            let chosen =
                |pool: ProxyPool| pool.choose(None, begin(&pool, port)).collect::<Vec<_>>();
            assert_eq!(chosen(pool(&[3])), [(3, address(3))]);
            assert_eq!(chosen(pool(&[])), []);
            let ProxyPool { table, .. } = pool(&[1]);
            let gone = ProxyPool::new("mgmt".to_owned(), 2, table, BTreeMap::new(), None);
            assert_eq!(chosen(gone), []);
        }
    }
}
