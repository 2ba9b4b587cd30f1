//! Connections that are served at a time: so many, and of those that have sent no request the oldest goes for one more.

use std::{
    collections::VecDeque,
    future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{AbortHandle, JoinSet},
    time::Instant,
};

/// How long a connection has in any case for its request.
pub(crate) const GRACE: Duration = Duration::from_millis(100);

/// Connections that are served.
pub(crate) struct Connections {
    tasks: JoinSet<()>,
    /// The oldest first; some have ended.
    all: VecDeque<ServedConnection>,
    /// The most at a time.
    most: usize,
}

/// A connection.
struct ServedConnection {
    task: AbortHandle,
    since: Instant,
    /// Whether its request is there.
    asked: Arc<AtomicBool>,
}

impl ServedConnection {
    /// Whether it has had its time, and has still sent no request.
    fn is_silent(&self) -> bool {
        !self.asked.load(Ordering::Relaxed) && self.since.elapsed() >= GRACE
    }
}

impl Connections {
    /// None yet, and so many at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            all: VecDeque::new(),
            most,
        }
    }

    /// Waits until one has ended; for ever if there is none.
    pub(crate) async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(_ended) => {}
            None => future::pending().await,
        }
    }

    /// Whether one more can be served.
    pub(crate) fn have_room(&mut self) -> bool {
        self.all.retain(|known| !known.task.is_finished());
        self.all.len() < self.most || self.all.iter().any(ServedConnection::is_silent)
    }

    /// Serves one more. If there are too many the oldest that has sent no request goes; where each has sent
    /// one meanwhile, the new one does.
    pub(crate) fn add(
        &mut self,
        task: impl Future<Output = ()> + Send + 'static,
        asked: Arc<AtomicBool>,
    ) {
        if self.all.len() >= self.most {
            let silent = self.all.iter().position(ServedConnection::is_silent);
            let Some(silent) = silent.and_then(|silent| self.all.remove(silent)) else {
                return;
            };
            silent.task.abort();
        }
        self.all.push_back(ServedConnection {
            task: self.tasks.spawn(task),
            since: Instant::now(),
            asked,
        });
    }
}
