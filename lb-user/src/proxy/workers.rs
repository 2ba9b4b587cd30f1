//! The threads of a network's shared VIPs. The first one has the listeners, opens and closes them; the others
//! accept from duplicates of these as long as the first one does, so a listener has one queue, whichever thread
//! takes its next client, and no client is lost where a thread ends.
//!
//! An idle thread costs memory and descriptors: a network has one until it has a shared VIP, and each has fewer where
//! many networks have some, or the limit of open files is low.

use std::{
    cell::RefCell,
    io,
    net::SocketAddrV4,
    os::fd::AsFd as _,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::Result;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::{self, LocalSet},
};

use super::{
    ProxyConfig,
    accept::accept_all,
    context::{AcceptorWork, Context},
    hellos,
};
use crate::network::cell_thread;

/// The most threads of one network: more would wait for each other at the listener.
const MOST_OF_NETWORK: usize = 8;
/// The most of all networks, unless there are more networks.
const MOST_OF_ALL: usize = 256;
/// How many more clients than another thread of the network one may carry before it lets others accept first.
const AHEAD: usize = 2;

/// How many threads a network has, of so many that have shared VIPs, where descriptors allow so many of all networks.
fn count(cpus: usize, networks: usize, allowed: usize) -> usize {
    let share = MOST_OF_ALL.min(allowed) / networks.max(1);
    most(cpus).min(share).max(1)
}

/// The most that a network may have.
pub(super) fn most(cpus: usize) -> usize {
    cpus.clamp(1, MOST_OF_NETWORK)
}

/// The clients that each thread of a network carries.
#[derive(Debug, Default)]
struct Loads {
    threads: AtomicUsize,
    carried: [AtomicUsize; MOST_OF_NETWORK],
}

/// Those of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadLoad {
    loads: Arc<Loads>,
    thread: usize,
}

/// A client that a thread carries until this is dropped.
pub(super) struct Carried(ThreadLoad);

impl ThreadLoad {
    /// That of the next thread.
    fn next(&self) -> Self {
        Self {
            thread: self.loads.threads.fetch_add(1, Ordering::Relaxed) + 1,
            loads: Arc::clone(&self.loads),
        }
    }

    fn carried(&self) -> Option<&AtomicUsize> {
        self.loads.carried.get(self.thread)
    }

    /// One more.
    pub(super) fn carry(&self) -> Carried {
        if let Some(carried) = self.carried() {
            carried.fetch_add(1, Ordering::Relaxed);
        }
        Carried(self.clone())
    }

    /// How many clients it carries.
    pub(super) fn count(&self) -> usize {
        let carried = self.carried();
        carried.map_or(0, |carried| carried.load(Ordering::Relaxed))
    }

    /// Whether another thread of the network carries clearly fewer. Others count at the same time, so this may be
    /// wrong by these: then a client is accepted by the other thread, or a moment later.
    pub(super) fn is_ahead(&self) -> bool {
        let others = self.loads.threads.load(Ordering::Relaxed);
        if others == 0 {
            return false;
        }
        let read = |carried: &AtomicUsize| carried.load(Ordering::Relaxed);
        let carried = self.loads.carried.iter().take(others + 1).map(read);
        let own = self.carried().map(read).unwrap_or_default();
        own > carried.min().unwrap_or_default() + AHEAD
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if let Some(carried) = self.0.carried() {
            carried.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A listener that a thread accepts from.
struct Job {
    vip: SocketAddrV4,
    listener: std::net::TcpListener,
    /// It does so until the sender is gone.
    until: watch::Receiver<()>,
}

/// The threads of a network beside its first one, which has this.
pub(super) struct Workers {
    work: AcceptorWork,
    load: ThreadLoad,
    threads: RefCell<Vec<(mpsc::UnboundedSender<Job>, JoinHandle<()>)>>,
}

impl Workers {
    /// None so far. They do this `work`; the first thread has this `load`.
    pub(super) fn new(work: AcceptorWork, load: ThreadLoad) -> Self {
        Self {
            work,
            load,
            threads: RefCell::default(),
        }
    }

    /// Starts those that the network lacks with this setup. They are where the calling thread is, and have its
    /// privileges. Those that cannot be started are left out.
    pub(super) fn start(&self, setup: &ProxyConfig) {
        let allowed = self.work.descriptors.threads();
        let count = count(self.work.cpus, setup.client_networks(), allowed);
        let lacks = count.saturating_sub(1 + self.threads.borrow().len());
        for _ in 0..lacks {
            match self.start_one() {
                Ok(thread) => self.threads.borrow_mut().push(thread),
                Err(error) => {
                    tracing::error!(
                        network = self.work.network,
                        "start another thread for shared VIPs: {error:#}; they are served by those that are there"
                    );
                    return;
                }
            }
        }
    }

    fn start_one(&self) -> Result<(mpsc::UnboundedSender<Job>, JoinHandle<()>)> {
        let (sender, jobs) = mpsc::unbounded_channel();
        let (work, load) = (self.work.clone(), self.load.clone());
        let name = work.thread_name();
        let thread = cell_thread::start_listener(name, None, move |runtime| {
            let load = load.next();
            let hellos = work.hellos(&load);
            let shared = Rc::new(Context::new(work, load));
            LocalSet::new().block_on(&runtime, async {
                if let Some(hellos) = hellos {
                    task::spawn_local(hellos::take(hellos, Rc::clone(&shared)));
                }
                do_all(jobs, shared).await;
            });
        })?;
        Ok((sender, thread))
    }

    /// Has all of them accept from this listener until what this returns is dropped.
    pub(super) fn accept(&self, vip: SocketAddrV4, listener: &TcpListener) -> watch::Sender<()> {
        let (goes_on, until) = watch::channel(());
        for (thread, _) in &*self.threads.borrow() {
            let duplicate = listener.as_fd().try_clone_to_owned();
            let sent = duplicate.map(|listener| {
                let until = until.clone();
                thread.send(Job {
                    vip,
                    listener: listener.into(),
                    until,
                })
            });
            if !matches!(sent, Ok(Ok(()))) {
                tracing::warn!(
                    network = self.work.network,
                    address = %vip,
                    "a thread of the shared VIP has no part in it: there are too many open files"
                );
            }
        }
        goes_on
    }

    /// Ends them, with all that they carry.
    pub(super) fn end(&self) {
        for (jobs, thread) in self.threads.take() {
            drop(jobs);
            if thread.join().is_err() {
                tracing::error!(
                    "a thread of the shared VIPs has panicked, see the panic above: please report it"
                );
            }
        }
    }
}

/// Accepts where the first thread does, until that has ended.
async fn do_all(mut jobs: mpsc::UnboundedReceiver<Job>, shared: Rc<Context>) {
    while let Some(job) = jobs.recv().await {
        let shared = Rc::clone(&shared);
        task::spawn_local(async move {
            let Job {
                vip,
                listener,
                mut until,
            } = job;
            let accepts = async {
                let listener = TcpListener::from_std(listener)?;
                accept_all(&listener, vip, &shared).await;
                io::Result::Ok(())
            };
            tokio::select! {
                biased;
                _closed = until.changed() => {}
                accepted = accepts => if let Err(error) = accepted {
                    tracing::warn!(
                        network = shared.work.network,
                        address = %vip,
                        "a thread of the shared VIP has no part in it: {error}"
                    );
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_as_many_threads_as_there_are_cpus_within_bounds() {
        for (cpus, networks, allowed, expected) in [
            (1, 1, 1000, 1),
            (0, 0, 1000, 1),
            (2, 1, 1000, 2),
            (2, 1, 1, 1),
            (2, 1, 0, 1),
            (4, 2, 6, 3),
            (2, 128, 1000, 2),
            (2, 129, 1000, 1),
            (8, 32, 1000, 8),
            (8, 40, 1000, 6),
            (64, 1, 1000, 8),
            (64, 1000, 1000, 1),
        ] {
            let found = count(cpus, networks, allowed);
            assert_eq!(found, expected, "{cpus} {networks} {allowed}");
        }
    }

    #[test]
    fn a_thread_is_ahead_when_another_carries_clearly_fewer() {
        let first = ThreadLoad::default();
        let alone: Vec<Carried> = (0..10).map(|_| first.carry()).collect();
        assert!(!first.is_ahead(), "there is no other");
        let second = first.next();
        assert!(first.is_ahead() && !second.is_ahead());
        let mut beside: Vec<Carried> = (0..8).map(|_| second.carry()).collect();
        assert!(!first.is_ahead() && !second.is_ahead());
        beside.pop();
        assert!(first.is_ahead() && !second.is_ahead());
        drop(alone);
        assert!(!first.is_ahead() && second.is_ahead());
        drop(beside);
        assert!(!first.is_ahead() && !second.is_ahead());
    }
}
