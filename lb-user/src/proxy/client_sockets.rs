//! The connections of clients that were made sockets again, as the data plane must know them: what comes of such a client
//! goes into the cell.
//!
//! Each is marked from time to time as long as this process has it, and afterwards stays until nothing has come of its
//! client for a while: the kernel may still have bytes for it. Those of a process that has ended go in the same way.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_common::maps::{
    cell_socket::MAX_CELL_SOCKETS,
    flow::{FlowKey, TIME_SHIFT},
};
use tokio::sync::Notify;

use super::{
    fair_share::{Resource, Shares, Spent, TakenShare},
    splice::saved_syn::Syn,
};
use crate::dataplane::cell_sockets::CellSocketMap;

/// How often live ones are marked.
pub(super) const MARK_INTERVAL: Duration = Duration::from_secs(20);
/// How long one stays that this process has left; a shorter time where there are many.
const CLOSING_TIME: Duration = Duration::from_secs(60);
const SHORT_CLOSING_TIME: Duration = Duration::from_secs(5);
/// How long one stays that no process marks.
const ABANDONED: Duration = Duration::from_secs(125);

/// All of them, for all threads.
#[derive(Clone, Debug)]
pub(super) struct ClientSockets(Arc<Mutex<Known>>);

#[derive(Debug)]
struct Known {
    map: CellSocketMap,
    shares: Shares,
    live: HashMap<FlowKey, Live>,
    closing: VecDeque<Closing>,
}

/// One that this process has; with its place in the map, once it is there.
#[derive(Debug)]
struct Live {
    connection: Arc<Connection>,
    place: Option<TakenShare>,
}

/// One that this process has left, and whose kernel may still have bytes for its client.
#[derive(Debug)]
struct Closing {
    key: FlowKey,
    since: Instant,
    _place: TakenShare,
}

#[derive(Debug)]
struct Connection {
    of: ClientSockets,
    key: FlowKey,
    syn: Syn,
    replaced: Notify,
}

/// A connection that this process has, until this is dropped. Many of them wait for a backend at a time: so it is a
/// pointer.
#[derive(Debug)]
pub(crate) struct ClientSocket(Arc<Connection>);

impl ClientSockets {
    /// Those in the map that is pinned in `folder`, of which each network has its share.
    ///
    /// # Errors
    ///
    /// If the pin is missing.
    pub(super) fn open(folder: &Path, shares: Shares) -> Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Known {
            map: CellSocketMap::open(folder)?,
            shares,
            live: HashMap::new(),
            closing: VecDeque::new(),
        }))))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that is to have a socket; none if it has one already, or if another one of the same tuple has, which is
    /// ended first: the client repeats its hello.
    pub(super) fn claim(&self, key: FlowKey, syn: Syn) -> Option<ClientSocket> {
        let mut known = self.known();
        if let Some(live) = known.live.get(&key) {
            if live.connection.syn.sequence() != syn.sequence() {
                live.connection.replaced.notify_one();
            }
            return None;
        }
        // One that this process has left, or another one had.
        if known.map.isn(&key) == Some(syn.sequence()) {
            return None;
        }
        let connection = Arc::new(Connection {
            of: self.clone(),
            key,
            syn,
            replaced: Notify::new(),
        });
        let live = Live {
            connection: Arc::clone(&connection),
            place: None,
        };
        known.live.insert(key, live);
        Some(ClientSocket(connection))
    }

    /// Marks those that are live.
    pub(super) fn mark(&self) {
        let keys: Vec<FlowKey> = self.known().live.keys().copied().collect();
        for key in keys {
            let mut known = self.known();
            if let Some(live) = known.live.get(&key) {
                let isn = live.connection.syn.sequence();
                // If it is refused there is another chance, before it counts as abandoned.
                let _refused = known.map.mark(&key, isn);
            }
        }
    }

    /// Takes out those that were left, once nothing comes of their clients any more.
    pub(super) fn forget_left(&self, now: Instant) {
        let mut known = self.known();
        let count = known.live.len() + known.closing.len();
        let is_full = u32::try_from(count).is_ok_and(|count| count > MAX_CELL_SOCKETS / 4);
        let time = if is_full {
            SHORT_CLOSING_TIME
        } else {
            CLOSING_TIME
        };
        while let Some(mut closing) = known.closing.pop_front() {
            if now.saturating_duration_since(closing.since) < time {
                known.closing.push_front(closing);
                break;
            }
            let Closing { key, .. } = closing;
            if known.live.contains_key(&key) {
                continue;
            }
            if known.map.is_silent(&key, coarse(time)) {
                known.map.remove(&key);
            } else {
                closing.since = now;
                known.closing.push_back(closing);
            }
        }
    }

    /// Takes out those that no process has any more.
    pub(super) fn forget_abandoned(&self) {
        let Ok(silent) = self.known().map.silent(coarse(ABANDONED)) else {
            return;
        };
        for key in silent {
            let mut known = self.known();
            if !known.live.contains_key(&key) {
                known.map.remove(&key);
            }
        }
    }
}

/// A time in units of coarse time.
fn coarse(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> TIME_SHIFT).unwrap_or(u32::MAX)
}

impl ClientSocket {
    /// What its client sent first.
    pub(super) fn syn(&self) -> Syn {
        self.0.syn
    }

    /// Its socket is there: from here on what comes from the client goes into the cell. What came before, the cell would have
    /// answered by a reset.
    ///
    /// # Errors
    ///
    /// If there are as many as there may be, of all or of its network.
    pub(super) fn enter(&self) -> Result<(), Spent> {
        let Connection { of, key, syn, .. } = &*self.0;
        let mut known = of.known();
        let total = usize::try_from(MAX_CELL_SOCKETS).unwrap_or(usize::MAX);
        let place = known
            .shares
            .take(Resource::CellSockets, key.network, total)?;
        // Those of a process before have places as well.
        let entered = known.map.enter(key, syn.sequence());
        entered.map_err(|_| Spent::All)?;
        if let Some(live) = known.live.get_mut(key) {
            live.place = Some(place);
        }
        Ok(())
    }

    /// It is a flow of the data plane from here on, and has no socket.
    pub(super) fn hand_over(self) {
        let mut known = self.0.of.known();
        if known.forget(&self.0).is_some() {
            known.map.remove(&self.0.key);
        }
    }
}

impl Known {
    /// Takes a connection out of those that are live; none if it was not one, but another one of its tuple.
    fn forget(&mut self, connection: &Arc<Connection>) -> Option<Live> {
        let live = self.live.get(&connection.key)?;
        let is_it = Arc::ptr_eq(&live.connection, connection);
        is_it.then(|| self.live.remove(&connection.key)).flatten()
    }
}

/// Waits until the client of this connection, if it is one that was made a socket again, has opened another one from the
/// same port.
pub(super) async fn replaced(socket: Option<&ClientSocket>) {
    match socket {
        Some(socket) => socket.0.replaced.notified().await,
        None => pending().await,
    }
}

impl Drop for ClientSocket {
    fn drop(&mut self) {
        let mut known = self.0.of.known();
        let place = known.forget(&self.0).and_then(|live| live.place);
        if let Some(place) = place {
            known.closing.push_back(Closing {
                key: self.0.key,
                since: Instant::now(),
                _place: place,
            });
        }
    }
}
