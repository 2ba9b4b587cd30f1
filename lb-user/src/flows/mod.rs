//! Ends flows that are idle for too long, those whose peer has died, and those that are cut.
//!
//! A thread of its own walks the flow table in memory. [`idle`] has how long a flow may be idle; [`expire`]
//! ends one beside the data plane, which ends flows as well; [`keepalive`] finds dead peers, also of flows
//! that the data plane doubts; [`evict`] ends flows at once, and [`reset`] resets both ends;
//! [`usage_recount`] counts what lives. No netlink message and no log line delays it, and it delays none.
//!
//! CPU is spent in batches of less than a millisecond of the thread's clock. To look at a flow takes
//! no system call; to end one takes one, because its id goes back into a queue of the kernel.

pub mod doubts;
pub mod evict;
pub mod expire;
pub(crate) mod filter;
pub mod idle;
pub mod keepalive;
pub mod log;
mod map_cache;
pub mod reason;
pub mod reset;
#[cfg(test)]
mod stress;
mod stuck_claims;
mod syn_repeat;
pub mod usage_recount;
mod worker;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use anyhow::{Context as _, Result};
use tokio::sync::oneshot;

pub use self::evict::queue::Done;
use self::{
    evict::selector::EvictSelector,
    idle::Policy,
    keepalive::next_hops::{NextHop, NextHops},
    worker::{Worker, WorkerLinks},
};
use crate::{dataplane::maps::Maps, flows::log::Reporter, network::cell_thread};

/// What the thread has done since it started.
#[derive(Debug, Default)]
pub struct ExpiryCounts {
    /// Flows that ended for being idle.
    pub expired: Count,
    /// Flows that ended because an end did not answer.
    pub dead: Count,
    /// Flows that were cut.
    pub cut: Count,
    /// Frames that ended a connection at one of its ends.
    pub resets: Count,
    /// Those that could not be sent.
    pub resets_unsent: Count,
    /// Keepalive probes.
    pub probes: Count,
    /// Those that could not be sent; they are tried again.
    pub probes_unsent: Count,
    /// SYNs that were sent again to backends of flows that a cookie has opened.
    pub syns: Count,
    /// Ids that could not be put back; the next start finds them.
    pub ids_lost: Count,
    /// Numbers of live flows that were wrong.
    pub corrections: Count,
    /// Passes over the table.
    pub passes: Count,
    /// CPU time in all, in microseconds.
    pub cpu_us: Count,
    /// CPU time of the longest batch, in microseconds.
    pub longest_batch_us: Count,
}

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::Relaxed);
    }
}

/// What the thread is ordered to do.
#[derive(Debug)]
enum ExpiryOrder {
    Policy(Policy),
    Follow(BTreeMap<u16, NextHop>),
    Cut(Box<EvictSelector>, oneshot::Sender<Done>),
    /// It drops this when it rests.
    Rest(oneshot::Sender<()>),
    GoOn,
    /// Whether flows end by the clock of this box.
    Serve(bool),
}

/// The running thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Expiry {
    /// Its sender is what keeps the thread running.
    orders: Option<mpsc::Sender<ExpiryOrder>>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<ExpiryCounts>,
}

impl Expiry {
    /// Starts the thread on these maps, which are pinned in `folder`, when the queues of free
    /// ids are those that will stay. Every flow that it ends is reported. `serves` as of [`Self::serve`].
    ///
    /// # Errors
    ///
    /// If a map cannot be opened or mapped, or the thread cannot be started.
    pub fn start(
        folder: &Path,
        maps: Maps,
        policy: Policy,
        next_hops: NextHops,
        reporter: Reporter,
        serves: bool,
    ) -> Result<Self> {
        let (sender, orders) = mpsc::channel();
        let counts = Arc::<ExpiryCounts>::default();
        let links = WorkerLinks {
            policy,
            orders,
            next_hops,
            reporter,
            counts: Arc::clone(&counts),
            serves,
        };
        let worker = Worker::open(folder, maps, links)?;
        let work = move |()| worker.run();
        let thread = cell_thread::start("expiry".to_owned(), None, || Ok(()), work);
        Ok(Self {
            orders: Some(sender),
            thread: Some(thread.context("start the expiry thread")?),
            counts,
        })
    }

    /// From now on flows may be idle for as long as `policy` has it.
    pub fn set(&self, policy: Policy) {
        self.order(ExpiryOrder::Policy(policy));
    }

    /// From now on these are the networks, by id, and the threads that resolve their next hops. The answers
    /// go where they went before.
    pub fn follow(&self, networks: BTreeMap<u16, NextHop>) {
        self.order(ExpiryOrder::Follow(networks));
    }

    /// From now on flows end by the clock of this box, or, if another one `serves` them, only where they are cut, and neither
    /// end is sent anything: what is known here of when a packet came is old then.
    pub fn serve(&self, serves: bool) {
        self.order(ExpiryOrder::Serve(serves));
    }

    /// Ends the flows that `cut` selects, at once. To be called when no new flow can come to be one of them:
    /// after the maps were changed. What the answer comes to is [`Done`]; it is an error only if the thread
    /// ends before. A caller that does not need it drops it.
    pub fn cut(&self, cut: EvictSelector) -> oneshot::Receiver<Done> {
        let (done, answer) = oneshot::channel();
        self.order(ExpiryOrder::Cut(Box::new(cut), done));
        answer
    }

    /// Has the thread make the cuts that were ordered, and then do nothing until it is to [go
    /// on](Self::go_on): another process ends flows meanwhile.
    pub async fn rest(&self) {
        let (begun, begins) = oneshot::channel();
        self.order(ExpiryOrder::Rest(begun));
        // Nothing is ever sent.
        let _rests = begins.await;
    }

    /// Has a thread that rests begin as a new one would.
    pub fn go_on(&self) {
        self.order(ExpiryOrder::GoOn);
    }

    fn order(&self, order: ExpiryOrder) {
        if let Some(sender) = &self.orders {
            // It ends with this handle only.
            let _ended: Result<(), mpsc::SendError<ExpiryOrder>> = sender.send(order);
        }
    }

    /// What it has done so far.
    pub fn counts(&self) -> &ExpiryCounts {
        &self.counts
    }
}

impl Drop for Expiry {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the expiry thread has panicked");
        }
    }
}
