//! The front: a thread in a network's cell. It accepts the connections of the network's shared VIPs, and
//! opens those to its backends.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    net::{SocketAddr, SocketAddrV4},
    rc::Rc,
    sync::{Arc, mpsc::sync_channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{mpsc, watch},
    task::{self, AbortHandle, LocalSet},
    time::sleep,
};

use super::{
    Counts, Legs, Setup,
    dial::{Dial, Dialers, Origin, Ports, open},
    http,
    pending::{Everywhere, Pending},
    pump::Pipes,
    reach::Addresses,
    setup::{Routing, Service},
    sni,
};
use crate::network::{namespace, neighbour::Side};

/// Connections that the kernel has made and nobody has accepted yet. The kernel takes no more than
/// `net.core.somaxconn`, 4096 where nobody has changed it.
const BACKLOG: u32 = 4096;
/// How long until an address that could not be had is tried again, and until a front that has no
/// descriptors left accepts again.
const AGAIN: Duration = Duration::from_secs(1);

/// The fronts of all networks. They end with it.
#[derive(Debug)]
pub struct Front {
    setup: Option<watch::Sender<Arc<Setup>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Front {
    /// Starts a front for each network, by its name. They have nothing to do until they are told.
    ///
    /// # Errors
    ///
    /// If a cell cannot be entered, or a thread not be started.
    pub fn start(sides: BTreeMap<String, Side>, legs: &Legs, counts: &Counts) -> Result<Self> {
        let (setup, follow) = watch::channel(Arc::default());
        let mut dialers = BTreeMap::new();
        let mut dials = Vec::new();
        for (network, side) in sides {
            let (dialer, asked) = mpsc::unbounded_channel();
            dialers.insert(network.clone(), dialer);
            dials.push((network, side, asked));
        }
        let dialers = Dialers(Arc::new(dialers));
        let (pending, kept) = (Everywhere::default(), Everywhere::default());
        let mut front = Self {
            setup: Some(setup),
            threads: Vec::new(),
        };
        for (network, side, asked) in dials {
            let work = Work {
                pending: pending.of(&network),
                kept: kept.of(&network),
                network: network.clone(),
                setup: follow.clone(),
                dialers: dialers.clone(),
                legs: legs.clone(),
                counts: counts.clone(),
            };
            let thread = spawn(work, side, asked)
                .with_context(|| format!("serve the shared VIPs of network {network}"))?;
            front.threads.push(thread);
        }
        Ok(front)
    }

    /// From now on new connections go where this says. Listeners that are not in it are closed; legs go
    /// on.
    pub fn set(&self, setup: Setup) {
        if let Some(sender) = &self.setup {
            sender.send_replace(Arc::new(setup));
        }
    }

    /// As [`Self::set`], but what is not wanted any more goes on beside it: the data plane may still send
    /// clients there.
    pub fn add(&self, mut setup: Setup) {
        if let Some(sender) = &self.setup {
            let before = Arc::clone(&sender.borrow());
            setup.keep(&before);
            sender.send_replace(Arc::new(setup));
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // Threads see that nobody will tell them anything any more.
        drop(self.setup.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the shared VIPs has panicked");
            }
        }
    }
}

/// What a thread has to do, before it runs.
struct Work {
    network: String,
    setup: watch::Receiver<Arc<Setup>>,
    dialers: Dialers,
    legs: Legs,
    counts: Counts,
    pending: Pending,
    kept: Pending,
}

fn spawn(work: Work, side: Side, asked: mpsc::UnboundedReceiver<Dial>) -> Result<JoinHandle<()>> {
    let (started, is_ready) = sync_channel(1);
    let name = format!("vip-{}", work.network);
    let run = move || {
        let runtime = match enter(&side) {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error))),
        };
        if started.send(Ok(())).is_ok() {
            let local = LocalSet::new();
            local.block_on(&runtime, serve(work, &side, asked));
        }
    };
    let thread = thread::Builder::new().name(name).spawn(run)?;
    let is_ready = is_ready.recv();
    is_ready.unwrap_or_else(|_| Err(anyhow!("the thread ended")))?;
    Ok(thread)
}

fn enter(side: &Side) -> Result<tokio::runtime::Runtime> {
    if let Some(cell) = &side.cell {
        namespace::enter(cell)?;
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}

/// What all connections of a network share.
pub(super) struct Shared {
    pub(super) setup: watch::Receiver<Arc<Setup>>,
    pub(super) dialers: Dialers,
    pub(super) legs: Legs,
    pub(super) counts: Counts,
    /// Who has no backend yet.
    pub(super) pending: Pending,
    /// Who has been answered, and may ask again.
    pub(super) kept: Pending,
    pub(super) pipes: Pipes,
    pub(super) network: String,
}

impl Shared {
    /// The service of a VIP here, as it is now.
    pub(super) fn service(&self, vip: SocketAddrV4) -> Option<Arc<Service>> {
        let key = (self.network.clone(), vip);
        self.setup.borrow().services.get(&key).cloned()
    }
}

/// Follows what is wanted until nobody wants anything any more.
async fn serve(work: Work, side: &Side, asked: mpsc::UnboundedReceiver<Dial>) {
    let Work {
        network,
        mut setup,
        dialers,
        legs,
        counts,
        pending,
        kept,
    } = work;
    let origin = match side.cell {
        Some(_) => Origin::Cell,
        None => Origin::Host,
    };
    task::spawn_local(dial_all(asked, network.clone(), origin, setup.clone()));
    let shared = Rc::new(Shared {
        setup: setup.clone(),
        dialers,
        legs,
        counts,
        pending,
        kept,
        pipes: Pipes::default(),
        network,
    });
    let mut listeners = BTreeMap::new();
    while setup.changed().await.is_ok() {
        let now = Arc::clone(&setup.borrow_and_update());
        let here = now.services.keys();
        let here = here.filter(|(network, _)| *network == shared.network);
        let mut before = std::mem::take(&mut listeners);
        for (_, address) in here {
            let listener = before.remove(address);
            let listener = listener.unwrap_or_else(|| listen(*address, &shared));
            listeners.insert(*address, listener);
        }
    }
}

/// A listener that is accepted from until this is dropped.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn listen(address: SocketAddrV4, shared: &Rc<Shared>) -> Listening {
    let accept = accept(address, Rc::clone(shared));
    Listening(task::spawn_local(accept).abort_handle())
}

/// Accepts connections to a VIP as long as this is wanted, whatever comes in between.
async fn accept(vip: SocketAddrV4, shared: Rc<Shared>) {
    let mut listener = None;
    let mut was_said = false;
    loop {
        let Err(error) = accept_one(&mut listener, vip, &shared).await else {
            was_said = false;
            continue;
        };
        if !was_said {
            tracing::error!(network = shared.network, address = %vip, "no new connections: {error}");
        }
        was_said = true;
        sleep(AGAIN).await;
    }
}

/// Serves the next client that connects to a VIP, with a task of its own; first makes the listener if
/// there is none.
async fn accept_one(
    listener: &mut Option<TcpListener>,
    vip: SocketAddrV4,
    shared: &Rc<Shared>,
) -> io::Result<()> {
    let listener = match listener {
        Some(listener) => listener,
        None => listener.insert(bind(vip)?),
    };
    match listener.accept().await {
        Ok((stream, SocketAddr::V4(client))) => begin(stream, Addresses { client, vip }, shared),
        Ok(_) => {}
        // One that is gone before it is accepted says nothing of the next one.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Serves a client, in a task of its own.
fn begin(client: TcpStream, addresses: Addresses, shared: &Rc<Shared>) {
    let Some(service) = shared.service(addresses.vip) else {
        return;
    };
    let shared = Rc::clone(shared);
    match service.routing.clone() {
        Routing::Sni(sni) => {
            task::spawn_local(sni::serve(client, addresses, service, sni, shared));
        }
        Routing::Http(http) => {
            task::spawn_local(http::serve(client, addresses, service, http, shared));
        }
    }
}

fn bind(address: SocketAddrV4) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections of an earlier process may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address.into())?;
    socket.listen(BACKLOG)
}

/// Opens the connections that are wished for.
async fn dial_all(
    mut asked: mpsc::UnboundedReceiver<Dial>,
    network: String,
    origin: Origin,
    setup: watch::Receiver<Arc<Setup>>,
) {
    let ports = Rc::new(RefCell::new(Ports::default()));
    while let Some(dial) = asked.recv().await {
        let setup = Arc::clone(&setup.borrow());
        let (network, ports) = (network.clone(), Rc::clone(&ports));
        task::spawn_local(async move {
            let sources = setup.sources.get(&network).map_or(&[][..], Vec::as_slice);
            open(dial, origin, sources, &ports).await;
        });
    }
}
