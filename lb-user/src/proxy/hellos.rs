//! Hellos of clients whose SYNs the data plane has answered by cookies: a thread takes them, and gives each to one of the
//! threads in the cell of its network, which makes a socket of it. The same thread turns the keys of cookies.

use std::{
    collections::BTreeMap,
    path::Path,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use tokio::{
    sync::{mpsc, watch},
    task::yield_now,
    time::{Instant as Moment, MissedTickBehavior, interval, sleep_until},
};

use super::{
    accept::{begin, refuse},
    client_sockets::{ClientSockets, MARK_INTERVAL},
    context::Context,
    dial::select::{ConnectionAddresses, NoBackend},
    snapshot::Routing,
    splice::{port_lease::PortLeases, rebuilt},
    workers::ThreadLoad,
};
use crate::{
    dataplane::{
        cookies::Cookies,
        hellos::{HelloRecord, HelloRing},
    },
    network::cell_thread,
};

/// Hellos that wait for a thread; more are dropped, and repeated by their clients.
const MAX_WAITING: usize = 1024;
/// How often the data plane is noted to have a process for its hellos.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// How often the names of flows that are over are forgotten.
const NAMES_INTERVAL: Duration = Duration::from_secs(10);
/// How often connections are looked for that no process has any more.
const ABANDONED_INTERVAL: Duration = Duration::from_secs(60);

/// The threads that make sockets, by the id of their network.
#[derive(Clone, Debug, Default)]
pub(super) struct HelloQueues(Arc<Mutex<BTreeMap<u16, Vec<HelloQueue>>>>);

#[derive(Debug)]
struct HelloQueue {
    sender: mpsc::Sender<HelloRecord>,
    load: ThreadLoad,
}

impl HelloQueues {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u16, Vec<HelloQueue>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hellos of a thread with this load, in the cell of the network with this id.
    pub(super) fn of_thread(&self, network: u16, load: ThreadLoad) -> mpsc::Receiver<HelloRecord> {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let queue = HelloQueue { sender, load };
        self.known().entry(network).or_default().push(queue);
        receiver
    }

    /// Gives a hello to the thread of its network that carries the fewest clients.
    fn give(&self, hello: HelloRecord) {
        let mut known = self.known();
        let Some(queues) = known.get_mut(&hello.head.key.network) else {
            return;
        };
        queues.retain(|queue| !queue.sender.is_closed());
        let queue = queues.iter().min_by_key(|queue| queue.load.count());
        if let Some(queue) = queue {
            // Its client repeats it.
            let _full = queue.sender.try_send(hello);
        }
    }
}

/// Makes sockets of the hellos that a thread is given, for ever.
pub(super) async fn take(mut hellos: mpsc::Receiver<HelloRecord>, shared: Rc<Context>) {
    while let Some(hello) = hellos.recv().await {
        rebuild(&hello, &shared);
        // Pending clients that are evicted for it go before the next one comes.
        yield_now().await;
    }
}

/// Makes a socket of the connection of a client that was answered by a cookie, and serves it.
fn rebuild(hello: &HelloRecord, shared: &Rc<Context>) {
    let (vip, client) = rebuilt::ends(&hello.head.key);
    let service = shared.service(vip);
    let Some(service) = service.filter(|service| matches!(service.routing, Routing::Sni(_))) else {
        return;
    };
    let Some(cookies) = &shared.work.cookies else {
        return;
    };
    if !rebuilt::is_whole(hello) || rebuilt::is_late(hello) {
        return;
    }
    let syn = rebuilt::syn(&hello.head);
    let Some(socket) = cookies.sockets.claim(hello.head.key, syn) else {
        return;
    };
    // A duplicate of one that has been handed over: it would open another connection to a backend. Only now: a flow is in the
    // index before its connection can be claimed again.
    if !matches!(cookies.flows.find(&hello.head.key), Ok(None)) {
        return;
    }
    let stream = match rebuilt::rebuild(hello) {
        Ok(stream) => stream,
        // A client may bring this about: one line for each would fill the log.
        Err(error) => {
            tracing::debug!(
                network = shared.work.network,
                address = %vip,
                "make a socket of the connection of {client}, which was opened by a cookie: {error}"
            );
            return;
        }
    };
    match socket.enter() {
        Ok(()) => begin(
            stream,
            ConnectionAddresses { client, vip },
            Some(socket),
            shared,
        ),
        Err(spent) => refuse(&stream, &service, NoBackend::without_socket(spent), shared),
    }
}

/// The thread that takes hellos. It ends with the sender of `ends`.
pub(super) fn start(
    maps: &Path,
    cookies: Cookies,
    (queues, sockets): (HelloQueues, ClientSockets),
    names: Option<PortLeases>,
    ceased: watch::Receiver<bool>,
    ends: watch::Receiver<()>,
) -> Result<JoinHandle<()>> {
    cookies.follow(SystemTime::now());
    cookies.beat();
    let maps = maps.to_owned();
    let thread = cell_thread::start_listener("hellos".to_owned(), None, move |runtime| {
        runtime.block_on(async {
            let _guard = runtime.enter();
            match HelloRing::open(&maps) {
                Ok(ring) => {
                    let kept = Kept {
                        cookies,
                        sockets,
                        names,
                    };
                    serve(ring, kept, queues, ceased, ends).await;
                }
                Err(error) => tracing::error!(
                    "shared VIPs with `syn_cookies` get no clients: {error:#}: please report it"
                ),
            }
        });
    });
    thread.context("start the thread that takes hellos")
}

/// What the thread keeps in order.
struct Kept {
    cookies: Cookies,
    sockets: ClientSockets,
    /// By which the names of flows are reached.
    names: Option<PortLeases>,
}

impl Kept {
    fn forget_names(&self) {
        let forgotten = self.names.as_ref().map_or(Ok(()), PortLeases::forget_names);
        if let Err(error) = forgotten {
            tracing::warn!("the names of flows that are over are kept: {error:#}");
        }
    }
}

async fn serve(
    mut ring: HelloRing,
    kept: Kept,
    queues: HelloQueues,
    mut ceased: watch::Receiver<bool>,
    mut ends: watch::Receiver<()>,
) {
    let tick = |period| {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    };
    let (mut beats, mut next_epoch) = (tick(BEAT_INTERVAL), Moment::now());
    let (mut marks, mut sweeps) = (tick(MARK_INTERVAL), tick(ABANDONED_INTERVAL));
    let mut names = tick(NAMES_INTERVAL);
    loop {
        let takes = !*ceased.borrow_and_update();
        tokio::select! {
            hello = ring.next(), if takes => match hello {
                Ok(hello) => queues.give(hello),
                Err(error) => {
                    tracing::error!("take the hellos of shared VIPs: {error}: please report it");
                    return;
                }
            },
            _ = beats.tick() => if takes {
                kept.cookies.beat();
                // Also where the wall clock was set.
                next_epoch = Moment::now() + kept.cookies.follow(SystemTime::now());
                kept.sockets.forget_left(Instant::now());
            },
            () = sleep_until(next_epoch), if takes => {
                next_epoch = Moment::now() + kept.cookies.follow(SystemTime::now());
            },
            _ = marks.tick() => kept.sockets.mark(),
            _ = sweeps.tick() => if takes {
                kept.sockets.forget_abandoned();
            },
            _ = names.tick() => if takes {
                kept.forget_names();
            },
            _ = ceased.changed() => {}
            _ = ends.changed() => return,
        }
    }
}
