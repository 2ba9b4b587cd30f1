//! Pending: clients that have connected and not said yet what they want. Each is one of few: whoever
//! brings more loses the oldest of his own.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::Ipv4Addr,
    rc::Rc,
};

use tokio::sync::oneshot;

/// The most of one network.
const OF_NETWORK: usize = 4096;
/// The most of one address.
const OF_SOURCE: usize = 256;

/// Those of a network.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending(Rc<RefCell<Known>>);

#[derive(Debug, Default)]
struct Known {
    last: u64,
    /// By their numbers, so that the oldest is the first: who it is, and what tells it to go.
    clients: BTreeMap<u64, (Ipv4Addr, oneshot::Sender<()>)>,
    /// Their numbers, by who they are.
    sources: HashMap<Ipv4Addr, BTreeSet<u64>>,
}

/// A client that is pending until this is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    pending: Pending,
    number: u64,
    goes: oneshot::Receiver<()>,
}

impl Pending {
    /// Admits a client. Another one goes for it if there are too many.
    pub(super) fn admit(&self, source: Ipv4Addr) -> Ticket {
        let mut known = self.0.borrow_mut();
        let of_source = known.sources.get(&source);
        let of_source = of_source.filter(|numbers| numbers.len() >= OF_SOURCE);
        let oldest = of_source.and_then(|numbers| numbers.first().copied());
        let oldest = oldest.or_else(|| known.oldest_of_all());
        if let Some((_, tell)) = oldest.and_then(|number| known.remove(number)) {
            // It may have gone by itself.
            let _told: Result<(), ()> = tell.send(());
        }
        known.last += 1;
        let number = known.last;
        let (tell, goes) = oneshot::channel();
        known.clients.insert(number, (source, tell));
        known.sources.entry(source).or_default().insert(number);
        Ticket {
            pending: self.clone(),
            number,
            goes,
        }
    }
}

impl Known {
    /// The one that goes if the network has too many.
    fn oldest_of_all(&self) -> Option<u64> {
        let is_full = self.clients.len() >= OF_NETWORK;
        let oldest = self.clients.first_key_value().filter(|_| is_full);
        oldest.map(|(number, _)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<(Ipv4Addr, oneshot::Sender<()>)> {
        let client = self.clients.remove(&number)?;
        if let Some(numbers) = self.sources.get_mut(&client.0) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.sources.remove(&client.0);
            }
        }
        Some(client)
    }
}

impl Ticket {
    /// Waits until it has to go for another one.
    pub(super) async fn goes(&mut self) {
        // Nobody else drops the sender while this is here.
        let _told = (&mut self.goes).await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.pending.0.borrow_mut().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

    fn must_go(ticket: &mut Ticket) -> bool {
        ticket.goes.try_recv().is_ok()
    }

    #[test]
    fn whoever_brings_too_many_loses_his_oldest() {
        let pending = Pending::default();
        let mut other = pending.admit(Ipv4Addr::new(10, 0, 0, 2));
        let mut tickets: Vec<Ticket> = (0..OF_SOURCE).map(|_| pending.admit(SOURCE)).collect();
        assert!(!tickets.iter_mut().any(must_go));
        let _newer = pending.admit(SOURCE);
        let gone: Vec<bool> = tickets.iter_mut().map(must_go).collect();
        assert!(gone[0] && !gone[1..].contains(&true));
        assert!(!must_go(&mut other));
    }

    #[test]
    fn of_a_network_that_is_full_the_oldest_goes() {
        let pending = Pending::default();
        let number = |number: usize| u32::try_from(number).unwrap();
        let sources = (0..OF_NETWORK).map(|source| Ipv4Addr::from(number(source)));
        let mut tickets: Vec<Ticket> = sources.map(|source| pending.admit(source)).collect();
        assert!(!tickets.iter_mut().any(must_go));
        let mut newer = pending.admit(SOURCE);
        let gone: Vec<bool> = tickets.iter_mut().map(must_go).collect();
        assert!(gone[0] && !gone[1..].contains(&true));
        assert!(!must_go(&mut newer));
    }

    #[test]
    fn nothing_is_left_of_those_that_have_gone() {
        let pending = Pending::default();
        let tickets: Vec<Ticket> = (0..OF_SOURCE + 3).map(|_| pending.admit(SOURCE)).collect();
        drop(tickets);
        let known = pending.0.borrow();
        assert!(known.clients.is_empty() && known.sources.is_empty());
    }
}
