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

use super::splice::saved_syn::Syn;
use crate::dataplane::cell_sockets::{CellSocketMap, Entered};

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
    live: HashMap<FlowKey, Arc<Connection>>,
    closing: VecDeque<(FlowKey, Instant)>,
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
    /// Those in the map that is pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Known {
            map: CellSocketMap::open(folder)?,
            live: HashMap::new(),
            closing: VecDeque::new(),
        }))))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a connection that is to have a socket; none if it has one already, or if another one of the same tuple
    /// has, which is ended first: the client repeats its hello.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub(super) fn enter(&self, key: FlowKey, syn: Syn) -> Result<Option<ClientSocket>> {
        let mut known = self.known();
        match known.map.enter(&key, syn.sequence())? {
            Entered::New => {}
            Entered::Repeated => return Ok(None),
            Entered::Other => {
                if let Some(live) = known.live.get(&key) {
                    live.replaced.notify_one();
                    return Ok(None);
                }
                known.map.mark(&key, syn.sequence())?;
            }
        }
        let connection = Arc::new(Connection {
            of: self.clone(),
            key,
            syn,
            replaced: Notify::new(),
        });
        known.live.insert(key, Arc::clone(&connection));
        Ok(Some(ClientSocket(connection)))
    }

    /// Marks those that are live.
    pub(super) fn mark(&self) {
        let keys: Vec<FlowKey> = self.known().live.keys().copied().collect();
        for key in keys {
            let mut known = self.known();
            if let Some(isn) = known.live.get(&key).map(|live| live.syn.sequence()) {
                // Refused only where the map is full, and this one has a place.
                let _full = known.map.mark(&key, isn);
            }
        }
    }

    /// Takes out those that were left, once nothing comes of their clients any more.
    pub(super) fn forget_left(&self, now: Instant) {
        let mut known = self.known();
        let count = known.live.len() + known.closing.len();
        let is_full = u32::try_from(count).is_ok_and(|count| count > MAX_CELL_SOCKETS / 2);
        let time = if is_full {
            SHORT_CLOSING_TIME
        } else {
            CLOSING_TIME
        };
        while let Some((key, since)) = known.closing.front().copied() {
            if now.saturating_duration_since(since) < time {
                break;
            }
            known.closing.pop_front();
            if known.live.contains_key(&key) {
                continue;
            }
            match known.map.is_silent(&key, coarse(time)) {
                true => known.map.remove(&key),
                false => known.closing.push_back((key, now)),
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

    /// It is a flow of the data plane from here on, and has no socket.
    pub(super) fn hand_over(self) {
        let mut known = self.0.of.known();
        if known.forget(&self.0) {
            known.map.remove(&self.0.key);
        }
    }
}

impl Known {
    /// Takes a connection out of those that are live; whether it was one, and not another one of its tuple.
    fn forget(&mut self, connection: &Arc<Connection>) -> bool {
        let live = self.live.get(&connection.key);
        let is_live = live.is_some_and(|live| Arc::ptr_eq(live, connection));
        if is_live {
            self.live.remove(&connection.key);
        }
        is_live
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
        if known.forget(&self.0) {
            known.closing.push_back((self.0.key, Instant::now()));
        }
    }
}
