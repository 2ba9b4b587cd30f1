//! Clients that are pending, because they have no backend yet, or may send another request. Their number is
//! bounded, and so are the bytes that are kept of their hellos: a source or network that brings more loses
//! the oldest of its own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    hash::Hash,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// The most of one address.
const OF_SOURCE: PendingLimit = PendingLimit {
    clients: 256,
    bytes: 4 << 20,
};
/// The most of one network.
const OF_NETWORK: PendingLimit = PendingLimit {
    clients: 4096,
    bytes: 32 << 20,
};
/// The most of all networks.
const OF_ALL: PendingLimit = PendingLimit {
    clients: 16_384,
    bytes: 128 << 20,
};

#[derive(Clone, Copy)]
struct PendingLimit {
    clients: usize,
    /// Those that are kept for them.
    bytes: usize,
}

/// Those of all networks.
#[derive(Clone, Debug)]
pub(super) struct Admission(Arc<Mutex<PendingClients>>);

/// Those of a network.
#[derive(Clone, Debug)]
pub(super) struct NetworkAdmission {
    everywhere: Admission,
    network: Arc<str>,
}

/// A client that is pending until this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    everywhere: Admission,
    number: u64,
    goes: Arc<Notify>,
}

impl Admission {
    /// No client yet, and so many clients of all networks at most.
    pub(super) fn up_to(clients: usize) -> Self {
        let known = PendingClients {
            most: clients.min(OF_ALL.clients),
            ..PendingClients::default()
        };
        Self(Arc::new(Mutex::new(known)))
    }

    /// Those of this network.
    pub(super) fn of(&self, network: &str) -> NetworkAdmission {
        NetworkAdmission {
            everywhere: self.clone(),
            network: network.into(),
        }
    }

    /// Whether no client is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.known().clients.is_empty()
    }

    fn known(&self) -> MutexGuard<'_, PendingClients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NetworkAdmission {
    /// Admits a client. Others go for it if there are too many.
    pub(super) fn admit(&self, source: Ipv4Addr) -> Permit {
        let goes = Arc::new(Notify::new());
        let client = PendingClient {
            place: (Arc::clone(&self.network), source),
            bytes: 0,
            goes: Arc::clone(&goes),
        };
        let number = self.everywhere.known().admit(client);
        Permit {
            everywhere: self.everywhere.clone(),
            number,
            goes,
        }
    }
}

impl Permit {
    /// So many bytes are kept for it now. Others go for them if they are too many, or itself.
    pub(super) fn keeps(&self, bytes: usize) {
        self.everywhere.known().keeps(self.number, bytes);
    }

    /// Waits until it has to go for another one.
    pub(super) async fn goes(&self) {
        self.goes.notified().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.everywhere.known().remove(self.number);
    }
}

/// A network, and an address there.
type Place = (Arc<str>, Ipv4Addr);

#[derive(Debug, Default)]
struct PendingClients {
    last: u64,
    /// By their numbers, which grow: the oldest is the first.
    clients: BTreeMap<u64, PendingClient>,
    sources: HashMap<Place, ClientGroup>,
    networks: HashMap<Arc<str>, ClientGroup>,
    bytes: usize,
    /// The most clients.
    most: usize,
}

#[derive(Debug)]
struct PendingClient {
    place: Place,
    bytes: usize,
    goes: Arc<Notify>,
}

/// Clients that have something in common.
#[derive(Debug, Default)]
struct ClientGroup {
    numbers: BTreeSet<u64>,
    bytes: usize,
}

impl ClientGroup {
    fn exceeds(&self, limit: PendingLimit) -> bool {
        self.numbers.len() > limit.clients || self.bytes > limit.bytes
    }

    /// What it has of what all may have, in bytes.
    fn share(&self) -> usize {
        let clients = self.numbers.len() * (OF_ALL.bytes / OF_ALL.clients);
        clients.max(self.bytes)
    }
}

impl PendingClients {
    fn admit(&mut self, client: PendingClient) -> u64 {
        self.last += 1;
        let (number, place) = (self.last, client.place.clone());
        self.clients.insert(number, client);
        let network = self.networks.entry(Arc::clone(&place.0)).or_default();
        network.numbers.insert(number);
        let source = self.sources.entry(place.clone()).or_default();
        source.numbers.insert(number);
        self.make_room(&place);
        number
    }

    fn keeps(&mut self, number: u64, bytes: usize) {
        let Some(client) = self.clients.get_mut(&number) else {
            // It goes.
            return;
        };
        let before = std::mem::replace(&mut client.bytes, bytes);
        let place = client.place.clone();
        let count = |sum: &mut usize| *sum = *sum - before + bytes;
        count(&mut self.bytes);
        if let Some(network) = self.networks.get_mut(&place.0) {
            count(&mut network.bytes);
        }
        if let Some(source) = self.sources.get_mut(&place) {
            count(&mut source.bytes);
        }
        self.make_room(&place);
    }

    /// Evicts the clients that are too many, now that there is more at this place.
    fn make_room(&mut self, place: &Place) {
        while let Some(client) = self
            .one_too_many(place)
            .and_then(|number| self.remove(number))
        {
            client.goes.notify_one();
        }
    }

    /// The oldest of the source, of the network, or of the network that has the most.
    fn one_too_many(&self, place: &Place) -> Option<u64> {
        let source = self.sources.get(place);
        let network = self.networks.get(&place.0);
        let is_full = self.clients.len() > self.most || self.bytes > OF_ALL.bytes;
        let greatest = || self.networks.values().max_by_key(|network| network.share());
        let group = source
            .filter(|source| source.exceeds(OF_SOURCE))
            .or_else(|| network.filter(|network| network.exceeds(OF_NETWORK)))
            .or_else(|| is_full.then(greatest).flatten());
        group?.numbers.first().copied()
    }

    fn remove(&mut self, number: u64) -> Option<PendingClient> {
        let client = self.clients.remove(&number)?;
        self.bytes -= client.bytes;
        leave(
            &mut self.networks,
            client.place.0.clone(),
            number,
            client.bytes,
        );
        leave(
            &mut self.sources,
            client.place.clone(),
            number,
            client.bytes,
        );
        Some(client)
    }
}

/// Takes a client out of its group, which goes with its last one.
fn leave<K: Eq + Hash>(groups: &mut HashMap<K, ClientGroup>, key: K, number: u64, bytes: usize) {
    if let Entry::Occupied(mut group) = groups.entry(key) {
        group.get_mut().numbers.remove(&number);
        group.get_mut().bytes -= bytes;
        if group.get().numbers.is_empty() {
            group.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    /// Those of these that must go.
    async fn gone(tickets: &[Permit]) -> Vec<usize> {
        let mut gone = Vec::new();
        for (number, ticket) in tickets.iter().enumerate() {
            tokio::select! {
                biased;
                () = ticket.goes() => gone.push(number),
                () = ready(()) => {}
            }
        }
        gone
    }

    /// Clients of as many addresses.
    fn strangers(pending: &NetworkAdmission, count: usize) -> Vec<Permit> {
        let first = u32::from(Ipv4Addr::new(10, 1, 0, 0));
        let sources = (first..).map(Ipv4Addr::from).take(count);
        sources.map(|source| pending.admit(source)).collect()
    }

    #[tokio::test]
    async fn whoever_brings_too_many_loses_his_oldest() {
        let pending = Admission::up_to(OF_ALL.clients).of("a");
        let other = [pending.admit(Ipv4Addr::new(10, 0, 0, 2))];
        let tickets: Vec<Permit> = (0..OF_SOURCE.clients)
            .map(|_| pending.admit(SOURCE))
            .collect();
        assert!(gone(&tickets).await.is_empty());
        let _newer = pending.admit(SOURCE);
        assert_eq!(gone(&tickets).await, [0]);
        assert!(gone(&other).await.is_empty());
    }

    #[tokio::test]
    async fn of_a_network_that_is_full_the_oldest_goes() {
        let everywhere = Admission::up_to(OF_ALL.clients);
        let pending = everywhere.of("a");
        let other = strangers(&everywhere.of("b"), 1);
        let tickets = strangers(&pending, OF_NETWORK.clients);
        assert!(gone(&tickets).await.is_empty());
        let newer = [pending.admit(SOURCE)];
        assert_eq!(gone(&tickets).await, [0]);
        assert!(gone(&newer).await.is_empty() && gone(&other).await.is_empty());
    }

    /// A tenant that opens all that there are takes nothing from those that open few.
    #[tokio::test]
    async fn of_all_networks_the_greatest_loses_its_oldest() {
        let everywhere = Admission::up_to(OF_ALL.clients);
        let few = strangers(&everywhere.of("few"), 3);
        let mut many = Vec::new();
        let networks = ["a", "b", "c", "d"].map(|name| everywhere.of(name));
        for network in &networks {
            many.push(strangers(network, OF_NETWORK.clients - 1));
        }
        // 16,380 and 3 so far.
        let _more = [
            networks[0].admit(SOURCE),
            everywhere.of("few").admit(SOURCE),
        ];
        let mut all_gone = Vec::new();
        for tickets in &many {
            all_gone.push(gone(tickets).await);
        }
        assert_eq!(all_gone, [vec![0], vec![], vec![], vec![]]);
        assert!(gone(&few).await.is_empty());
    }

    #[tokio::test]
    async fn bytes_are_limited_like_clients() {
        let pending = Admission::up_to(OF_ALL.clients).of("a");
        let tickets: Vec<Permit> = (0..3).map(|_| pending.admit(SOURCE)).collect();
        tickets[0].keeps(OF_SOURCE.bytes / 2);
        tickets[2].keeps(OF_SOURCE.bytes / 2);
        tickets[2].keeps(OF_SOURCE.bytes / 2);
        assert!(gone(&tickets).await.is_empty());
        tickets[1].keeps(1);
        assert_eq!(gone(&tickets).await, [0]);
        // It keeps nothing any more.
        tickets[0].keeps(OF_SOURCE.bytes);
        tickets[1].keeps(OF_SOURCE.bytes / 2);
        assert!(gone(&tickets).await.is_empty());
        let others = strangers(&pending, 8);
        for other in &others {
            other.keeps(OF_SOURCE.bytes);
        }
        assert_eq!(gone(&tickets).await, [1, 2]);
        assert!(gone(&others).await.is_empty());
        // One alone may be too much.
        others[7].keeps(OF_SOURCE.bytes + 1);
        assert_eq!(gone(&others).await, [7]);
    }

    #[test]
    fn nothing_is_left_of_those_that_have_gone() {
        let everywhere = Admission::up_to(OF_ALL.clients);
        let pending = everywhere.of("a");
        let tickets: Vec<Permit> = (0..OF_SOURCE.clients + 3)
            .map(|_| {
                let ticket = pending.admit(SOURCE);
                ticket.keeps(7);
                ticket
            })
            .collect();
        drop(tickets);
        let known = everywhere.known();
        assert!(known.clients.is_empty() && known.bytes == 0);
        assert!(known.sources.is_empty() && known.networks.is_empty());
    }
}
