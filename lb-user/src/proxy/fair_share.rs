//! How much clients of one network may have of what there is a limited number of.
//!
//! A network has no more than what is left for the others. Alone it gets half of all, of two that want all
//! each gets a third, of three a quarter: the next network finds something, however much those want that were
//! there before, and nothing is set aside for networks that want nothing. Where no other network has clients
//! all is for the one.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    net::SocketAddrV4,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::api::ShareUse;

/// What is divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Resource {
    /// Sockets of shared VIPs.
    Descriptors,
    /// Places among the connections that the data plane knows to have a socket.
    CellSockets,
    /// Ports of flows to backends of this network that sockets have.
    FlowPorts(Arc<str>),
    /// Ports of connections that are never handed over, to this backend of this network.
    LegPorts(Arc<str>, SocketAddrV4),
}

/// Why there is nothing for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spent {
    /// Nothing is left.
    All,
    /// Its network has its share.
    Share,
}

/// Whether a network that has so many may have one more.
const fn may_have(has: usize, left: usize, is_alone: bool) -> Result<(), Spent> {
    match (left, has) {
        (0, _) => Err(Spent::All),
        (left, has) if is_alone || has < left => Ok(()),
        _ => Err(Spent::Share),
    }
}

/// What has been divided so far; shared by all threads.
#[derive(Clone, Debug, Default)]
pub struct Shares(Arc<Divided>);

#[derive(Debug, Default)]
struct Divided {
    taken: Mutex<HashMap<Resource, SharesTaken>>,
    /// How many networks have clients.
    networks: AtomicUsize,
}

/// What is taken of something.
#[derive(Debug, Default)]
struct SharesTaken {
    all: usize,
    /// By the ids of networks.
    of_network: HashMap<u16, usize>,
}

/// One of something, until this is dropped.
#[derive(Debug)]
pub(super) struct TakenShare {
    shares: Shares,
    resource: Resource,
    network: u16,
}

impl Shares {
    fn taken(&self) -> MutexGuard<'_, HashMap<Resource, SharesTaken>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many networks have clients.
    pub(super) fn divide_among(&self, networks: usize) {
        self.0.networks.store(networks, Ordering::Relaxed);
    }

    /// One for a client of the network with this id, of `total` that there are.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(super) fn take(
        &self,
        resource: Resource,
        network: u16,
        total: usize,
    ) -> Result<TakenShare, Spent> {
        let is_alone = self.0.networks.load(Ordering::Relaxed) <= 1;
        let mut all = self.taken();
        let (had, has) = all.get(&resource).map_or((0, 0), |taken| {
            let has = taken.of_network.get(&network);
            (taken.all, has.copied().unwrap_or_default())
        });
        may_have(has, total.saturating_sub(had), is_alone)?;
        let taken = all.entry(resource.clone()).or_default();
        taken.all += 1;
        *taken.of_network.entry(network).or_default() += 1;
        drop(all);
        Ok(TakenShare {
            shares: self.clone(),
            resource,
            network,
        })
    }

    /// What the clients of each network have, by its id.
    pub fn read(&self) -> BTreeMap<u16, ShareUse> {
        let mut networks: BTreeMap<u16, ShareUse> = BTreeMap::new();
        for (resource, taken) in &*self.taken() {
            let of: fn(&mut ShareUse) -> &mut usize = match resource {
                // Each has a descriptor, or had one.
                Resource::CellSockets => continue,
                Resource::Descriptors => |had| &mut had.descriptors,
                Resource::FlowPorts(_) => |had| &mut had.flow_ports,
                Resource::LegPorts(..) => |had| &mut had.leg_ports,
            };
            for (network, count) in &taken.of_network {
                *of(networks.entry(*network).or_default()) += count;
            }
        }
        networks
    }
}

impl Drop for TakenShare {
    fn drop(&mut self) {
        let mut all = self.shares.taken();
        if let Entry::Occupied(mut entry) = all.entry(self.resource.clone()) {
            let taken = entry.get_mut();
            taken.all -= 1;
            if let Entry::Occupied(mut count) = taken.of_network.entry(self.network) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            if taken.all == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as a network can get of a hundred, one after the other.
    fn take_all(shares: &Shares, network: u16) -> (Vec<TakenShare>, Spent) {
        let mut parts = Vec::new();
        loop {
            match shares.take(Resource::Descriptors, network, 100) {
                Ok(part) => parts.push(part),
                Err(spent) => return (parts, spent),
            }
        }
    }

    #[test]
    fn who_is_alone_gets_all() {
        let shares = Shares::default();
        for networks in [0, 1] {
            shares.divide_among(networks);
            let (parts, spent) = take_all(&shares, 7);
            assert_eq!((parts.len(), spent), (100, Spent::All));
        }
    }

    #[test]
    fn each_has_no_more_than_is_left() {
        let shares = Shares::default();
        shares.divide_among(3);
        let mut parts = Vec::new();
        let mut counts = Vec::new();
        for network in 1..=4 {
            let (taken, spent) = take_all(&shares, network);
            assert_eq!(spent, Spent::Share);
            counts.push(taken.len());
            parts.extend(taken);
        }
        assert_eq!(counts, [50, 25, 13, 6]);
        // What one gives back is there for those that have less.
        parts.drain(..30);
        assert_eq!(take_all(&shares, 1).0.len(), 8);
    }

    /// Whatever others take, and in whatever order they come, the last one finds something.
    #[test]
    fn those_who_want_all_get_the_same_in_the_end() {
        let shares = Shares::default();
        shares.divide_among(9);
        let mut parts: Vec<Vec<TakenShare>> = [1, 2, 3].map(|_| Vec::new()).into();
        for _ in 0..200 {
            for (network, parts) in (0..).zip(&mut parts) {
                parts.extend(shares.take(Resource::Descriptors, network, 100));
                // Connections end, more of those that have more.
                parts.truncate(parts.len() - parts.len() / 10);
            }
        }
        let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(most - least <= 5, "{counts:?}");
        assert!(!take_all(&shares, 99).0.is_empty());
    }

    #[test]
    fn each_resource_is_divided_by_itself_and_nothing_is_left_of_what_was_given_back() {
        let shares = Shares::default();
        shares.divide_among(2);
        let backend = |port| SocketAddrV4::new([10, 0, 0, 1].into(), port);
        let resources = [
            Resource::Descriptors,
            Resource::FlowPorts("a".into()),
            Resource::LegPorts("a".into(), backend(1)),
            Resource::LegPorts("a".into(), backend(2)),
        ];
        let take = |resource: &Resource| shares.take(resource.clone(), 3, 2);
        let parts: Vec<TakenShare> = resources.iter().flat_map(take).collect();
        assert_eq!(parts.len(), 4);
        assert!(resources.iter().all(|resource| take(resource).is_err()));
        let had = ShareUse {
            descriptors: 1,
            flow_ports: 1,
            leg_ports: 2,
        };
        assert_eq!(shares.read(), [(3, had)].into());
        drop(parts);
        assert!(shares.taken().is_empty() && shares.read().is_empty());
    }
}
